"""A feed as the driver sees it: ranges instead of events, so that no event passes through it.

To a pump, a range is a sequence of events like any other: it has a length and can be cut. A single
event is read only when somebody asks for it, which is when it goes to the dead letters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, overload

from leasehold.core.event import Event
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint
from leasehold.core.pacing import share
from leasehold.core.ranges import Range
from leasehold.core.start import AtSequence
from leasehold.errors import PositionGone
from leasehold.ports import Batch, ColumnarFeed, CountsRemaining, MirrorsCheckpoints, TellsEnds
from leasehold.spark.event_sizes import UNKNOWN_BYTES, EventSizes

ReadAt = Callable[[str, int], Sequence[Any]]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENT_BYTES = 64
"""Of an event beside its body."""
SAMPLE_EVENTS, SAMPLE_EVERY = 32, 64
"""How many events tell the size of one, and after how many of a partition's reads without a look
they are looked at. Not often: after a read, Kafka's client fetches the partition for a while."""
END_EVENTS = 8
"""How many tell it at the end of a range, which is looked at where much depends on it."""
GROWTH, QUICK_GROWTH = 4, 64
"""Events may have become so many times as large since the last look: if a range would then have
more bytes than allowed, its end is looked at first. With the second it is so for every range of a
backlog, and a look may cost a feed much, so it is not done again for a while if it told nothing."""
LOOK_EVERY = 8
"""Ranges of a partition, from one such look that told nothing to the next."""
LOOKS_MAX = 4
"""How often that is done for one range: at its end, then in the middle, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be taken at one moment."""

    events: int
    """Of all partitions together."""
    events_each: int
    bytes: int
    held: Collection[str]
    """The partitions that share it."""


def range_feed(feed: ColumnarFeed, limits: Callable[[], Limits]) -> RangeFeed | CountedFeed:
    kind = CountedFeed if isinstance(feed, CountsRemaining) else RangeFeed
    return kind(feed, limits)


def _size(event: Any) -> int:
    """About what one event takes up. Not by the batch: it may be a part of what is in memory."""
    return EVENT_BYTES + len(getattr(event, "body", None) or b"")


class LazyEvents(Sequence[Any]):
    """Events of one partition, none of them read. Each sequence counts as one; where the feed has
    gaps, there are fewer, and more where several share one. Whoever goes through them is given
    all; by its place, the last one of a sequence, whose position is behind all of it."""

    __slots__ = ("_read", "range")

    def __init__(self, wanted: Range, read: ReadAt) -> None:
        self.range, self._read = wanted, read

    def __len__(self) -> int:
        return len(self.range)

    def sequence_at(self, place: int) -> int:
        """Without a read."""
        return self.range.first + place

    def __iter__(self) -> Iterator[Any]:
        for sequence in range(self.range.first, self.range.end):
            yield from self._read(self.range.partition, sequence)

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
            return LazyEvents(cut, self._read)
        return self._read(self.range.partition, first + range(len(self))[index])[-1]


class KnownEvents(Sequence[Any]):
    """Events of one partition that were read, since only that tells where a number of them ends."""

    __slots__ = ("_events", "range")

    def __init__(self, events: Sequence[Any], wanted: Range) -> None:
        self._events, self.range = events, wanted

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> KnownEvents: ...

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self._events[index]
        places = range(len(self))[index]
        first, end = self._at(places.start), self._at(places.stop)
        cut = Range(partition=self.range.partition, first=min(first, end), end=end)
        return KnownEvents(self._events[index], cut)

    def _at(self, place: int) -> int:
        if place == 0:
            return self.range.first
        return self.range.end if place >= len(self) else int(self._events[place].sequence)


class RangeFeed:
    """A ``Feed`` over one whose sequences count its events. All its partitions are looked at in one
    request, and what one cycle may take is shared fairly over those with something to read."""

    def __init__(self, feed: ColumnarFeed, limits: Callable[[], Limits] | None = None) -> None:
        """``limits`` is asked at each read; none: ``max_events`` alone is the limit."""
        self.namespace, self.name, self.unit = feed.namespace, feed.name, feed.unit
        self.requests = feed.requests
        self._feed = feed
        self.partitions, self.locate, self.close = feed.partitions, feed.locate, feed.close
        self.extents, self.event_times = feed.extents, feed.event_times
        if isinstance(feed, TellsEnds):
            self.ends = feed.ends
        if isinstance(feed, MirrorsCheckpoints):
            self.mirror = feed.mirror
        self._look: asyncio.Task[Sequence[Extent]] | None = None
        self._ends: dict[str, int] = {}
        """As last seen."""
        self._positions: dict[str, int] = {}
        self._turn = 0
        self._limits = limits
        self._sizes = EventSizes()
        self._reads: Counter[str] = Counter()
        """Since the last look at sizes."""
        self._unlooked: Counter[str] = Counter()
        """Since a look at the end of a range told nothing, from 1 on."""

    def forget(self, partition: str) -> None:
        """Work on it starts over, or has ended: it takes no share until it is read."""
        self._positions.pop(partition, None)
        self._sizes.forget(partition)

    def behind(self, positions: Mapping[str, int]) -> int:
        """How many events there are from these positions on, as last seen."""
        return sum(max(0, self._ends.get(p, at) - at) for p, at in positions.items())

    def bytes_in(self, ranges: Sequence[Range]) -> int:
        """About how many bytes of events these are, rather too many than too few."""
        return int(sum(map(self._sizes.bytes_in, ranges)))

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        first = position.next_sequence
        if partition not in self._positions:
            self._positions[partition] = first  # all that begin now take their share at once
            await self._require_known(partition, position)
            first = await self._begin(partition, position)
        self._positions[partition] = first
        extents = {each.partition: each for each in await self._shared_look()}
        self._ends = {p: each.end for p, each in extents.items()}
        here = extents.get(partition)
        if here is None or not here.first <= first < here.end:
            # At the end, or nowhere: the feed says which, and whether it is still the same feed.
            found = await self._feed.read(partition, position, 1)
            if not len(found.events):
                return Batch(next=found.next, children=found.children)
            end = int(found.events[-1].sequence) + 1
            return await self._batch(Range(partition=partition, first=first, end=end))
        if self._limits is None:
            wanted, _ = self._share(partition, None, max_events)
            return await self._batch(wanted)
        await self._look_at_sizes(partition, position)
        self._positions[partition] = first  # in case it was forgotten meanwhile
        wanted, max_bytes = self._share(partition, self._limits(), max_events)
        return await self._batch(await self._cut(wanted, max_bytes))

    def _share(self, partition: str, limits: Limits | None, max_events: int) -> tuple[Range, float]:
        """By the size of the next events; and how many bytes it may have, whatever comes then."""
        self._turn += 1
        if limits is None:
            limits = Limits(
                events=max_events, events_each=max_events, bytes=1 << 62, held=self._positions
            )
        backlogs = [
            Range(partition=p, first=at, end=max(at, self._ends[p]))
            for p, at in self._positions.items()
            if p in self._ends and (p == partition or p in limits.held)
        ]
        found = {each.partition: self._sizes.at(each.partition, each.first) for each in backlogs}
        known = {name: size for name, size in found.items() if size is not None}
        most = max(known.values(), default=UNKNOWN_BYTES)
        bytes_of = {name: known.get(name, most) for name in found}
        shares = share(
            backlogs,
            events=limits.events,
            events_each=min(limits.events_each, max_events),
            bytes_of=bytes_of,
            max_bytes=limits.bytes,
            turn=self._turn,
        )
        first = self._positions[partition]
        wanted = shares.get(partition, Range(partition=partition, first=first, end=first + 1))
        taken = sum(len(each) * bytes_of[name] for name, each in shares.items())
        spare = max(0.0, limits.bytes - taken) / max(1, len(shares))
        return wanted, len(wanted) * bytes_of.get(partition, most) + spare

    async def _cut(self, wanted: Range, max_bytes: float) -> Range:
        """Behind the next events there may be larger ones. Where they begin is found by halves, so
        that what lies before them is not taken in small pieces."""
        tried = wanted
        if not self._has_to_look(wanted, max_bytes):
            return replace(wanted, end=self._sizes.fitting(wanted, max_bytes))
        before = self._sizes.bytes_in(wanted)
        for _ in range(LOOKS_MAX):
            if not self._sizes.is_certain(tried, max_bytes, QUICK_GROWTH):
                begin = max(tried.first, tried.end - END_EVENTS)
                at = Checkpoint(next_sequence=begin)
                await self._look_at(tried.partition, at, END_EVENTS, tried.end - 1)
            if len(tried) < 2 or self._sizes.bytes_in(tried) <= max_bytes:
                break
            tried = replace(tried, end=tried.first + len(tried) // 2)
        if self._sizes.bytes_in(wanted) <= 2 * before:
            self._unlooked[wanted.partition] = 1
        return replace(wanted, end=self._sizes.fitting(wanted, max_bytes))

    def _has_to_look(self, wanted: Range, max_bytes: float) -> bool:
        unlooked = self._unlooked[wanted.partition]
        growth = GROWTH if 0 < unlooked < LOOK_EVERY else QUICK_GROWTH
        fits = self._sizes.bytes_in(wanted) <= max_bytes
        if fits and self._sizes.is_certain(wanted, max_bytes, growth):
            self._unlooked[wanted.partition] += unlooked > 0
            return False
        self._unlooked[wanted.partition] = 0
        return True

    async def _look_at_sizes(self, partition: str, position: Checkpoint) -> None:
        """How many bytes there are in a range nobody tells."""
        self._reads[partition] += 1
        first = position.next_sequence
        if self._sizes.at(partition, first) is None or self._reads[partition] >= SAMPLE_EVERY:
            await self._look_at(partition, position, SAMPLE_EVENTS, first)

    async def _look_at(
        self, partition: str, position: Checkpoint, max_events: int, place: int
    ) -> None:
        self._reads[partition] = 0
        found = Batch(next=position)
        with suppress(Exception):  # whoever reads the range will be told
            found = await self._feed.read(partition, position, max_events)
        if len(found.events):
            size = sum(map(_size, found.events)) / len(found.events)
            self._sizes.note(partition, place, size)

    async def _require_known(self, partition: str, position: Checkpoint) -> None:
        """A first position may be of a feed that was here before this one."""
        found = (await self._feed.event_times({partition: position})).get(partition)
        if isinstance(found, PositionGone):
            raise found

    async def _begin(self, partition: str, position: Checkpoint) -> int:
        """Whoever was here before may have stopped among events that share a sequence. A range has
        all of them or none, so they are done again."""
        first = position.next_sequence
        if self._feed.has_gaps and position.token:
            found = await self._feed.read(partition, position, 1)
            return min([first, *(int(event.sequence) for event in found.events)])
        return first

    async def _batch(self, wanted: Range) -> Batch:
        after = await self._feed.locate(wanted.partition, AtSequence(wanted.end))
        # Behind a gap, so that the next range begins where this one ends.
        wanted = replace(wanted, end=after.next_sequence)
        return Batch(events=LazyEvents(wanted, self._read_at), next=after)

    async def _shared_look(self) -> Sequence[Extent]:
        """Pumps that ask in the same moment are told by the same look. One that somebody gave up
        waiting for may never answer: whoever comes later looks again."""
        if self._look is None:
            self._look = asyncio.ensure_future(self._feed.extents())
            self._look.add_done_callback(self._looked)
        look = self._look
        try:
            return await asyncio.shield(look)
        except asyncio.CancelledError:
            self._looked(look)
            raise

    def _looked(self, look: asyncio.Task[Sequence[Extent]]) -> None:
        if self._look is look:
            self._look = None

    def _read_at(self, partition: str, sequence: int) -> Sequence[Any]:
        wanted = Range(partition=partition, first=sequence, end=sequence + 1)
        chunks = self._feed.read_columns([wanted])
        found = [event for chunk in chunks for event in chunk.events(range(len(chunk)))]
        # In a gap. Whatever failed there, an event of nothing tells where.
        return found or [Event(b"", sequence, "", EPOCH, partition)]


class CountedFeed:
    """A ``Feed`` over one whose sequences do not count its events, as a change feed's. They are
    read here to count them, and again where they are handled."""

    def __init__(self, feed: ColumnarFeed, limits: Callable[[], Limits] | None = None) -> None:
        self.namespace, self.name, self.unit = feed.namespace, feed.name, feed.unit
        self.requests = feed.requests
        self._feed = feed
        self.partitions, self.locate, self.close = feed.partitions, feed.locate, feed.close
        self.extents, self.event_times = feed.extents, feed.event_times
        if isinstance(feed, CountsRemaining):
            self.remaining = feed.remaining
        if isinstance(feed, TellsEnds):
            self.ends = feed.ends
        self._limits = limits
        self._bytes: dict[str, int] = {}
        """By partition, of the last read."""
        self._bytes_each: float | None = None

    def forget(self, partition: str) -> None:
        pass

    def behind(self, positions: Mapping[str, int]) -> int:
        return 0  # counting costs a request

    def bytes_in(self, ranges: Sequence[Range]) -> int:
        """About how many bytes of events these are, by the last read of each partition."""
        return int(sum(self._bytes.get(each.partition, 0) for each in ranges))

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        if self._limits is not None:
            max_events = min(max_events, self._allowed(self._limits()))
        found = await self._feed.read(partition, position, max_events)
        if not len(found.events):
            return found
        self._bytes[partition] = found.size_bytes
        self._bytes_each = found.size_bytes / len(found.events)
        end = found.next.next_sequence
        wanted = Range(partition=partition, first=position.next_sequence, end=end)
        return Batch(
            events=KnownEvents(found.events, wanted), next=found.next, children=found.children
        )

    def _allowed(self, limits: Limits) -> int:
        """Equal shares: how much there is of each is not known."""
        share = limits.events // max(1, len(limits.held))
        if self._bytes_each is None:
            share = min(share, SAMPLE_EVENTS)
        elif self._bytes_each:
            share = min(share, int(limits.bytes / self._bytes_each / max(1, len(limits.held))))
        return max(1, min(share, limits.events_each))
