"""Where the application keeps its things: one folder, the same names for all of its processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ACTIVITY = "activity"
"""The group of the Spark pipeline."""


@dataclass(frozen=True, slots=True)
class Places:
    folder: Path

    @property
    def hub(self) -> Path:
        return self.folder / "sensors.db"

    @property
    def alerts(self) -> Path:
        """The container of the alerts."""
        return self.folder / "alerts.db"

    @property
    def activity(self) -> Path:
        """The Delta table of the aggregates."""
        return self.folder / "activity"

    @property
    def archive(self) -> Path:
        """Where the unit ``archive`` moves alerts to."""
        return self.folder / "archive"

    @property
    def store(self) -> str:
        """The URL of the lease store."""
        return f"sqlite:///{self.folder.resolve() / 'leases.db'}"

    @property
    def dead_letters(self) -> str:
        return f"sqlite:///{self.folder.resolve() / 'dead.db'}"

    @property
    def fast(self) -> Path:
        """There if sensors ever ran faster than real time, so that their clock may be ahead."""
        return self.folder / "sensors.fast"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

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
                ahead_s = max(0.0, (json.loads(kept.read_bytes())["next_ms"] or 0) / 1000 - here)
        return here + ahead_s

    return now


def co_wanted(hub: Path, identity: str) -> bool:
    """Whether the homes of this hub have carbon monoxide detectors, or will at the next reading."""
    with suppress(OSError, ValueError):
        kept = json.loads(hub.with_name(f"{hub.name}.sensors.co").read_bytes())
        return bool(kept == {"hub": identity})
    return False
