"""A home's recent alerts, out of the alert container."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from leasehold.errors import LeaseholdError
from leasehold.feeds.container import Container

SHOWN = 20
PAGE = 200
LOOK_S = 0.5
HOMES_KEPT = 2000


class RecentAlerts:
    """Asked by every open page every second, so a home is read again only after a change."""

    def __init__(self, container: Container | None) -> None:
        self._container = container
        self._known: OrderedDict[str, tuple[tuple[int, ...], list[dict[str, Any]]]] = OrderedDict()
        self._state: tuple[int, ...] = ()
        self._looked_at = -1e9
        self.failing = ""

    def of(self, home_id: str) -> list[dict[str, Any]]:
        """The newest first."""
        if self._container is None:
            return []
        try:
            state = self._changes()
            known = self._known.get(home_id)
            if known is None or known[0] != state:
                known = (state, self._read(self._container, home_id))
                self._known[home_id] = known
                self._known.move_to_end(home_id)
                while len(self._known) > HOMES_KEPT:
                    self._known.popitem(last=False)
            self.failing = ""
            return known[1]
        except LeaseholdError as error:  # the page shows all the rest, and says so
            self.failing = str(error)
            return []

    def _changes(self) -> tuple[int, ...]:
        """Where the container's ranges end."""
        assert self._container is not None
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = time.monotonic()
            self._state = tuple(extent.end for extent in self._container.feed().kept())
        return self._state

    def _read(self, container: Container, home_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while page := container.list(
            home_id, max_items=PAGE, after=str(found[-1]["id"]) if found else ""
        ):
            found += page
        shown = [_shown(document) for document in found]
        return sorted(shown, key=lambda each: -each["ts_ms"])[:SHOWN]


def _shown(document: dict[str, Any]) -> dict[str, Any]:
    ts, value = document.get("ts"), document.get("value")
    written = document.get("_ts", 0)
    return {
        "id": str(document["id"]),
        "kind": str(document.get("kind") or document.get("type") or "alert"),
        "ts_ms": ts if isinstance(ts, int) else int(written * 1000),
        "value": value if isinstance(value, int | float) else None,
    }
