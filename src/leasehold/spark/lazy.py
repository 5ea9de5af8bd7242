"""A feed as the driver sees it: ranges instead of events, so that no event passes through it.

To a pump, a range is a sequence of events like any other: it has a length and can be cut. A single
event is read only when somebody asks for it, which is when it goes to the dead letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.ranges import Range, pick
from leasehold.core.start import AtSequence
from leasehold.errors import PositionGone
from leasehold.feeds.hub import Hub
from leasehold.ports import Batch, Feed

ReadOne = Callable[[str, int], Any]


class LazyEvents(Sequence[Any]):
    """Events of one partition without gaps in their sequence, none of them read."""

    __slots__ = ("_one", "range")

    def __init__(self, wanted: Range, one: ReadOne) -> None:
        self.range, self._one = wanted, one

    def __len__(self) -> int:
        return len(self.range)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> LazyEvents: ...

    def __getitem__(self, index: int | slice) -> Any:
        first = self.range.first
        if isinstance(index, slice):
            places = range(len(self))[index]
            if places.step != 1:
                raise ValueError("events can only be cut in order")
            cut = Range(
                partition=self.range.partition, first=first + places.start, end=first + places.stop
            )
            return LazyEvents(cut, self._one)
        return self._one(self.range.partition, first + range(len(self))[index])


class KnownChanges(Sequence[Any]):
    """Changes of one range of a container. LSNs have gaps, so that only reading tells where a
    number of them ends."""

    __slots__ = ("_changes", "range")

    def __init__(self, changes: Sequence[Any], wanted: Range) -> None:
        self._changes, self.range = changes, wanted

    def __len__(self) -> int:
        return len(self._changes)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> KnownChanges: ...

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self._changes[index]
        places = range(len(self))[index]
        first, end = self._at(places.start), self._at(places.stop)
        cut = Range(partition=self.range.partition, first=min(first, end), end=end)
        return KnownChanges(self._changes[index], cut)

    def _at(self, place: int) -> int:
        if place == 0:
            return self.range.first
        return self.range.end if place >= len(self) else int(self._changes[place].sequence)


class LazyHub:
    """A ``Feed`` over a hub. All its partitions are looked at in one request, and what one cycle
    may take is shared fairly over those with something to read."""

    def __init__(self, hub: Hub) -> None:
        self.namespace, self.name = hub.namespace, hub.name
        self.requests = hub.requests
        self._hub = hub
        self._look: asyncio.Task[Sequence[Extent]] | None = None
        self._ends: dict[str, int] = {}
        """As last seen."""
        self._positions: dict[str, int] = {}
        self._turn = 0

    async def partitions(self) -> Sequence[Partition]:
        return await self._hub.partitions()

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._hub.locate(partition, start)

    async def extents(self) -> Sequence[Extent]:
        return await self._hub.extents()

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return await self._hub.event_times(positions)

    def forget(self, partition: str) -> None:
        """Work on it begins anew, or has ended: it takes no share until it is read."""
        self._positions.pop(partition, None)

    def behind(self, positions: Mapping[str, int]) -> int:
        """How many events there are from these positions on, as last seen."""
        return sum(max(0, self._ends.get(p, at) - at) for p, at in positions.items())

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        first = position.next_sequence
        if partition not in self._positions:
            self._positions[partition] = first  # all that begin now take their share at once
            await self._require_known(partition, position)
        self._positions[partition] = first
        extents = {each.partition: each for each in await self._shared_look()}
        self._ends = {p: each.end for p, each in extents.items()}
        here = extents.get(partition)
        if here is None or not here.first <= first < here.end:
            # At the end, or nowhere: the hub says which, and whether it is still the same hub.
            found = await self._hub.read(partition, position, 1)
            if not len(found.events):
                return Batch(next=found.next)
            return await self._batch(Range(partition=partition, first=first, end=first + 1))
        self._turn += 1
        backlogs = [
            Range(partition=p, first=at, end=max(at, self._ends[p]))
            for p, at in self._positions.items()
            if p in self._ends
        ]
        shares = {each.partition: each for each in pick(backlogs, max_events, turn=self._turn)}
        one = Range(partition=partition, first=first, end=first + 1)
        return await self._batch(shares.get(partition, one))

    async def _require_known(self, partition: str, position: Checkpoint) -> None:
        """A first position may be of a hub that was here before this one."""
        found = (await self._hub.event_times({partition: position})).get(partition)
        if isinstance(found, PositionGone):
            raise found

    async def _batch(self, wanted: Range) -> Batch:
        after = await self._hub.locate(wanted.partition, AtSequence(wanted.end))
        return Batch(events=LazyEvents(wanted, self._read_one), next=after)

    async def _shared_look(self) -> Sequence[Extent]:
        """Pumps that ask in the same moment are told by the same look."""
        if self._look is None:
            self._look = asyncio.ensure_future(self._hub.extents())
            self._look.add_done_callback(self._looked)
        return await asyncio.shield(self._look)

    def _looked(self, _: object) -> None:
        self._look = None

    def _read_one(self, partition: str, sequence: int) -> Any:
        return self._hub.read_batch(partition, Checkpoint(next_sequence=sequence), 1).events[0]


class LazyChanges:
    """A ``Feed`` over a change feed. Its changes are read here to count them, and again where they
    are handled."""

    def __init__(self, feed: Any) -> None:
        self.namespace, self.name = feed.namespace, feed.name
        self.requests = feed.requests
        self._feed: Feed = feed
        self.partitions, self.locate = feed.partitions, feed.locate
        self.extents, self.event_times = feed.extents, feed.event_times
        self.remaining = feed.remaining

    def forget(self, partition: str) -> None:
        pass

    def behind(self, positions: Mapping[str, int]) -> int:
        return 0  # LSNs are no count, and counting costs a request

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        found = await self._feed.read(partition, position, max_events)
        if not len(found.events):
            return found
        end = found.next.next_sequence
        wanted = Range(partition=partition, first=position.next_sequence, end=end)
        return Batch(
            events=KnownChanges(found.events, wanted), next=found.next, children=found.children
        )
