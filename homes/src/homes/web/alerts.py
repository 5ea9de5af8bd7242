"""A home's recent alerts, out of the alert container."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from math import inf
from typing import Any

from homes.pipelines.alerts import TS_MAX_MS
from leasehold import Documents, LeaseholdError

SHOWN = 20
PAGE = 200
LOOK_S = 0.5
READ_AGAIN_S = 300.0
"""For what the change feed does not tell: that alerts were removed."""
HOMES_KEPT = 2000

Document = Mapping[str, Any]


@dataclass(slots=True)
class _Home:
    known_at: float
    alerts: list[dict[str, Any]] = field(default_factory=list)
    newest: dict[str, Document] = field(default_factory=dict)
    whole: bool = False
    """Its documents were read; before that there are only changes."""

    def take(self, documents: Iterable[Document]) -> None:
        for document in documents:
            known = self.newest.get(document["id"])
            if known is None or known["_lsn"] < document["_lsn"]:
                self.newest[document["id"]] = document
        newest = _newest(self.newest.values())
        self.newest = {document["id"]: document for document in newest}
        self.alerts = [_shown(document) for document in newest]


class RecentAlerts:
    """Asked by every open page every second. The changes of all homes are followed from the
    beginning, once for all pages: most homes never had an alert, and those that had are read once.
    Files are read in threads; all else happens on the loop."""

    def __init__(self, container: Documents | None) -> None:
        self._container = container
        self._homes: OrderedDict[str, _Home] = OrderedDict()
        self._positions: dict[str, str] = {}
        """By range, the continuation of its changes."""
        self._alerted: set[str] = set()
        """Homes that had alerts, once the changes are followed."""
        self._looked_at = -inf
        self.failing = ""

    async def of(self, home_id: str) -> list[dict[str, Any]]:
        """The newest first."""
        if self._container is None:
            return []
        home = self._homes.get(home_id)
        try:
            if time.monotonic() - self._looked_at >= LOOK_S:
                await self._look(self._container)
            if self._positions and home_id not in self._alerted:
                return []
            home = self._home(home_id)
            if not home.whole:
                followed = bool(self._positions)  # else what comes while it is read is missed
                home.take(await asyncio.to_thread(_read, self._container, home_id))
                home.whole = followed
        except LeaseholdError as error:  # the page shows all the rest, and says so
            self.failing = str(error)
        return home.alerts if home is not None else []

    def _home(self, home_id: str) -> _Home:
        now, home = time.monotonic(), self._homes.get(home_id)
        if home is None or now - home.known_at >= READ_AGAIN_S:
            home = self._homes[home_id] = _Home(now)
        self._homes.move_to_end(home_id)
        while len(self._homes) > HOMES_KEPT:
            self._homes.popitem(last=False)
        return home

    async def _look(self, container: Documents) -> None:
        """At what has changed in homes that are known."""
        self._looked_at = inf  # the others go on with what is known
        try:
            found = await asyncio.to_thread(self._changes, container)
        finally:
            self._looked_at = time.monotonic()
        self._positions, changed = found
        self._alerted.update(changed)
        for home_id, documents in changed.items():
            if home_id in self._homes:
                self._homes[home_id].take(documents)
        self.failing = ""

    def _changes(self, container: Documents) -> tuple[dict[str, str], dict[str, list[Document]]]:
        """And where to go on."""
        ends: dict[str, str] = {}
        changed: dict[str, list[Document]] = {}
        ahead: list[tuple[str, str | None]] = list(self._positions.items())
        ahead = ahead or [(leaf, None) for leaf in container.leaves()]
        while ahead:
            range, continuation = ahead.pop()
            page = container.changes(range, continuation, PAGE)
            for change in page.changes:
                documents = changed.setdefault(str(change.partition_key), [])
                if change.partition_key in self._homes and change.document is not None:
                    documents.append(change.document)
            if page.changes:
                ahead.append((range, page.continuation))
            elif page.children:
                ahead += page.children.items()
            else:
                ends[range] = page.continuation
        return ends, changed


def _read(container: Documents, home_id: str) -> list[Document]:
    """The container lists by id only, so all of them are looked at."""
    newest: list[Document] = []
    after = ""
    while page := container.list(home_id, max_items=PAGE, after=after):
        newest, after = _newest([*newest, *page]), str(page[-1]["id"])
    return newest


def _newest(documents: Iterable[Document]) -> list[Document]:
    """By when they came, not by the sensor's clock: one that is wrong must not hide new ones."""
    return nlargest(SHOWN, documents, key=lambda each: (_came_ms(each), each["_lsn"]))


def _came_ms(document: Document) -> int:
    """When the hub had it, or else when it was written."""
    came = document.get("enqueued_ms")
    return came if isinstance(came, int) else int(document["_ts"] * 1000)


def _shown(document: Document) -> dict[str, Any]:
    ts, value = document.get("ts"), document.get("value")
    known = isinstance(ts, int) and abs(ts) <= TS_MAX_MS
    return {
        "id": str(document["id"]),
        "kind": str(document.get("kind") or document.get("type") or "alert"),
        "ts_ms": ts if known else _came_ms(document),
        "value": value if isinstance(value, int | float) else None,
    }
