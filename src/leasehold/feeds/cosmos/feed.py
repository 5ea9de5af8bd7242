"""A Cosmos DB container's change feed, as processors and Spark read it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args

from leasehold.core.change import Change, Mode
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.change_chunks import CHANGE_COLUMNS, ChangeChunk, chunks
from leasehold.feeds.cosmos.reader import CosmosReader
from leasehold.local.cosmos import CosmosConnection, CosmosSettings
from leasehold.local.threads import OwnThreads
from leasehold.ports import Batch

MODES = get_args(Mode)
CHUNK_CHANGES = 1000


def open_cosmos(url: str, mode: Mode | None = None) -> CosmosFeed:
    """The change feed of the container that a ``cosmos:`` URL names; it may say ``?mode=all``."""
    settings = CosmosSettings.from_url(url, more=("mode",))
    return CosmosFeed(settings, mode or cast(Mode, settings.more.get("mode", "latest")))


class CosmosFeed:
    """A ``ColumnarFeed``. Its partitions are the container's physical ranges; LSNs are sequences.

    Requests are made in threads of its own: a closed feed is closed at once, without a loop, and
    Spark's executors read the same way.
    """

    unit = "change"
    columns = CHANGE_COLUMNS
    has_gaps = True

    def __init__(self, settings: CosmosSettings, mode: Mode) -> None:
        if mode not in MODES:
            raise BadInput(f"mode {mode!r}: a change feed is read as one of {', '.join(MODES)}")
        plain = CosmosSettings(
            host=settings.host,
            database=settings.database,
            container=settings.container,
            tls=settings.tls,
            more={} if mode == "latest" else {"mode": mode},
        )
        self.mode = mode
        self.namespace = settings.host
        self.name = f"{settings.database}.{settings.container}" + (".all" if mode == "all" else "")
        self.address = plain.address
        self._settings = plain
        self._connection = CosmosConnection(plain)
        self.requests = self._connection.requests
        self.request_units = self._connection.request_units
        self._reader = CosmosReader(self._connection, mode)
        self._threads = OwnThreads(f"cosmos-{settings.container}")

    @property
    def identity(self) -> str:
        return self._reader.about.identity

    async def partitions(self) -> Sequence[Partition]:
        return await self._threads.run(self._reader.partitions)

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._threads.run(self._reader.locate, partition, start)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        return await self._threads.run(self._reader.read, partition, position, max_events)

    async def extents(self) -> Sequence[Extent]:
        """Their distance in LSNs is an estimate of the number of changes: an upper bound, as some
        LSNs belong to older states, deletes, or other ranges."""
        return await self._threads.run(self._reader.extents)

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return await self._threads.run(self._reader.event_times, positions)

    def read_columns(self, ranges: Sequence[Range]) -> Iterator[ChangeChunk]:
        for each in ranges:
            leaves = self._reader.leaves_of(each.partition)
            if [leaf.id for leaf in leaves] == [each.partition]:
                yield from chunks(self._reader.read, each, may_lag=True)
            elif self._reader.was_merged(each.partition):
                raise BadInput(
                    f"{self.address}: range {each.partition} was merged with others into "
                    f"{', '.join(leaf.id for leaf in leaves)}, whose changes Spark cannot tell "
                    "apart; let the group start over: leasehold rewind"
                )
            else:
                yield from self._of_children(each, [leaf.id for leaf in leaves])

    def _of_children(self, wanted: Range, leaves: Sequence[str]) -> Iterator[ChangeChunk]:
        """A range that was split since it was planned: its children have what it had, under the
        same LSNs."""
        merged = heapq.merge(
            *(self._changes(wanted, leaf) for leaf in leaves), key=lambda change: change.lsn
        )
        step: list[Change] = []
        for change in merged:
            step.append(change._replace(partition=wanted.partition))
            if len(step) == CHUNK_CHANGES:
                yield ChangeChunk(step)
                step = []
        if step:
            yield ChangeChunk(step)

    def _changes(self, wanted: Range, leaf: str) -> Iterator[Change]:
        inside = Range(partition=leaf, first=wanted.first, end=wanted.end)
        for chunk in chunks(self._reader.read, inside, may_lag=True):
            yield from chunk.changes

    def close(self) -> None:
        self._reader.close()
        self._threads.close(then=self._connection.close)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process connects for itself, with the secret from its own environment."""
        return CosmosFeed, (self._settings, self.mode)

    def __repr__(self) -> str:
        return f"CosmosFeed({self.address})"
