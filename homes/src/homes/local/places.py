"""Where the application keeps its things: one folder, the same names for all of its processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from homes.local.urls import EMBEDDED, Urls
from leasehold import strict_json

ACTIVITY = "activity"
"""The group of the Spark pipeline."""


@dataclass(frozen=True, slots=True)
class Places:
    folder: Path
    urls: Urls = EMBEDDED

    @property
    def hub(self) -> Path:
        """The embedded hub; the sensors keep their small files beside it, wherever they send to."""
        return self.folder / "sensors.db"

    @property
    def feed(self) -> str:
        """What the sensors send to and the pipelines read."""
        return self.urls.feed or str(self.hub)

    @property
    def table(self) -> str:
        """The Delta table of the aggregates."""
        return self.urls.table or str(self.activity)

    @property
    def archived(self) -> str:
        """Where the unit ``archive`` moves alerts to."""
        return self.urls.archive or str(self.archive)

    @property
    def alerts_file(self) -> Path:
        """The embedded container of the alerts."""
        return self.folder / "alerts.db"

    @property
    def alerts(self) -> str:
        """The container of the alerts."""
        return self.urls.alerts or str(self.alerts_file)

    @property
    def activity(self) -> Path:
        """The embedded table."""
        return self.folder / "activity"

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    @property
    def store(self) -> str:
        """The URL of the lease store."""
        return self.urls.store or f"sqlite:///{self.folder.resolve() / 'leases.db'}"

    @property
    def dead_letters(self) -> str:
        return self.urls.dead_letters or f"sqlite:///{self.folder.resolve() / 'dead.db'}"

    @property
    def fast(self) -> Path:
        """There if sensors ever ran faster than real time, so that their clock may be ahead."""
        return self.folder / "sensors.fast"

    @property
    def town(self) -> Path:
        """How many homes there are."""
        return self.folder / "town.json"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def cycles(self) -> Path:
        """A file for each pipeline instance: its latest cycle."""
        return self.folder / "cycles"

    @property
    def charges(self) -> Path:
        """A file for each process that Cosmos DB charges: how many request units a second."""
        return self.folder / "charges"

    @property
    def lock(self) -> Path:
        return self.folder / "demo.lock"

    @property
    def snapshot(self) -> Path:
        """What the web process had in memory; it may be removed at any time."""
        return self.folder / "web-window.npz"

    @property
    def secrets(self) -> Path:
        return self.folder / "web-secrets.json"

    @property
    def signed_out(self) -> Path:
        """Sessions that were signed out before they expired."""
        return self.folder / "web-signed-out.json"

    @property
    def known_addresses(self) -> Path:
        """Where operators have signed in from."""
        return self.folder / "web-known-addresses.json"

    @property
    def codes(self) -> Path:
        """Homes whose access code was revoked."""
        return self.folder / "web-codes.json"

    @property
    def audit(self) -> Path:
        return self.folder / "audit.jsonl"


def sensor_clock(hub: Path, wall: Callable[[], float] = time.time) -> Callable[[], float]:
    """The time of day, or that of simulated sensors that run ahead of it."""
    kept = hub.with_name(f"{hub.name}.sensors.json")
    read_at, ahead_s = 0.0, 0.0

    def now() -> float:
        nonlocal read_at, ahead_s
        here = wall()
        if not 0 <= here - read_at < 1:
            read_at = here
            with suppress(OSError, ValueError, TypeError):
                ahead_s = max(
                    0.0, (strict_json.loads(kept.read_bytes())["next_ms"] or 0) / 1000 - here
                )
        return here + ahead_s

    return now


def history_share(hub: Path) -> float | None:
    """How much of their history simulated sensors have sent; None: they are not at it."""
    with suppress(OSError, ValueError, TypeError, KeyError, ZeroDivisionError):
        kept = strict_json.loads(hub.with_name(f"{hub.name}.sensors.json").read_bytes())
        begin_ms, end_ms = kept["history_from_ms"], kept["history_until_ms"]
        share = float((kept["next_ms"] - begin_ms) / (end_ms - begin_ms))
        return min(1.0, max(0.0, share))
    return None


def co_wanted(hub: Path, identity: str) -> bool:
    """Whether the homes of this hub have carbon monoxide detectors, or will at the next reading."""
    with suppress(OSError, ValueError):
        kept = strict_json.loads(hub.with_name(f"{hub.name}.sensors.co").read_bytes())
        return bool(kept == {"hub": identity})
    return False
