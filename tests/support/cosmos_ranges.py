"""A container's ranges as Cosmos DB has them, and the endpoint does not: each range counts its own
LSNs, the changes of a transaction share one, and who answers may be behind. In memory, in place of
the client that a reader asks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from leasehold.core.change import Mode
from leasehold.feeds.cosmos.client import (
    ChangesPage,
    ContainerAbout,
    PhysicalRange,
    RangeGone,
)
from leasehold.feeds.cosmos.feed import CosmosFeed
from leasehold.feeds.cosmos.tokens import Bounds
from leasehold.feeds.effective_keys import effective_key
from leasehold.local.cosmos import CosmosSettings

MIDDLE = "20" + "0" * 30
NOW = 1_700_000_000


class ScriptedRanges:
    def __init__(self) -> None:
        self.bounds = {"0": Bounds("", "FF")}
        self.parents: dict[str, tuple[str, ...]] = {"0": ()}
        self.items: dict[str, list[dict[str, Any]]] = {"0": []}
        self.lsns = {"0": 0}
        self.behind = 0
        """How many LSNs whoever answers does not know yet."""
        self.settling = False
        """Whether ranges are shown that answer no longer."""
        self.asked: list[str] = []

    def write(self, *documents: str, key: str = "k") -> int:
        """A transaction; the LSN of its changes."""
        range = self._range_of(key)
        self.lsns[range] += 1
        lsn = self.lsns[range]
        kept = [each for each in self.items[range] if each["id"] not in documents]
        new = [{"id": id, "k": key, "_lsn": lsn, "_ts": NOW + lsn} for id in documents]
        self.items[range] = kept + new
        return lsn

    def remove(self, id: str, key: str = "k") -> None:
        range = self._range_of(key)
        self.lsns[range] += 1
        self.items[range] = [each for each in self.items[range] if each["id"] != id]

    def split(self, range: str, *children: str) -> None:
        low, end = self.bounds.pop(range)
        parents, items, lsn = (each.pop(range) for each in (self.parents, self.items, self.lsns))
        for id, bounds in zip(children, (Bounds(low, MIDDLE), Bounds(MIDDLE, end)), strict=True):
            self.bounds[id], self.lsns[id] = bounds, lsn
            self.parents[id] = (*parents, range)
            self.items[id] = [item for item in items if _has(bounds, item["k"])]

    def about(self) -> ContainerAbout:
        return ContainerAbout("rid", "0123456789abcdef", ("/k",), 2)

    def ranges(self) -> list[PhysicalRange]:
        return [PhysicalRange(id, at, self.parents[id]) for id, at in self.bounds.items()]

    def changes(
        self,
        verb: str,
        range: str,
        *,
        after: int | None = None,
        since: datetime | None = None,
        latest: bool = False,
        within: Bounds | None = None,
        max_items: int = 1,
    ) -> ChangesPage:
        self.asked.append(verb)
        if self.settling or range not in self.bounds:
            raise RangeGone(range)
        newest = max(self.lsns[range] - self.behind, 0)
        found = [each for each in self.items[range] if (after or 0) < each["_lsn"] <= newest]
        if latest or not found:
            return ChangesPage([], newest, newest, 0)
        last = found[:max_items][-1]["_lsn"]
        page = [each for each in found if each["_lsn"] <= last]
        return ChangesPage(page, last, newest, 0)

    def _range_of(self, key: str) -> str:
        return next(id for id, bounds in self.bounds.items() if _has(bounds, key))


def _has(bounds: Bounds, key: str) -> bool:
    return bounds.low <= effective_key(key) < bounds.end


def scripted_feed(ranges: ScriptedRanges, mode: Mode = "latest") -> CosmosFeed:
    settings = CosmosSettings.from_url("cosmos://localhost:1/homes/scripted")
    feed = CosmosFeed(settings, mode)
    feed._reader._client = ranges  # type: ignore[assignment]
    return feed


def ids(changes: Sequence[Any]) -> list[str]:
    return [change.document["id"] for change in changes]
