"""Whether a group has processed everything that was in its feed at the start."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from math import inf
from typing import TypeVar

from leasehold.core.balance import read_by_others
from leasehold.core.model import Group, Snapshot
from leasehold.errors import FeedUnavailable, PositionGone
from leasehold.ports import Clock, Feed, LeaseStore
from leasehold.processor.work import answered, told
from leasehold.settings import Pace

T = TypeVar("T")


class Drain:
    """Positions in hand are looked at with each question, the store once in ``pause_s``: that is
    about as often as upkeep looks at it."""

    def __init__(
        self,
        feed: Feed,
        store: LeaseStore,
        group: Group,
        *,
        clock: Clock,
        pace: Pace,
        pause_s: float,
    ) -> None:
        self._feed, self._store, self._group = feed, store, group
        self._clock, self._pace, self._pause_s = clock, pace, pause_s
        self._limit_s = pace.read_timeout_s
        self._ends: Mapping[str, int] | None = None
        self._left_out: frozenset[str] = frozenset()
        """Partitions that get no lease, as others read them. Unless they get one after all."""
        self._firsts: dict[str, float] = {}
        self._stored: dict[str, float] = {}
        self._look_at = clock.monotonic()
        self.left = self.total = 0
        """In sequences: how much was left at the last question, and at most."""

    async def is_done(self, in_hand: dict[str, float]) -> bool:
        """``in_hand``: by partition, where this instance is."""
        if self._ends is None:
            self._ends = await self._find_ends()
        if self._clock.monotonic() >= self._look_at:
            self._stored = await self._find_stored(self._ends.keys() | self._left_out)
            begun = not self._left_out.isdisjoint(self._stored)
            if begun or await self._were_split(self._ends.keys() - self._stored.keys()):
                self._ends = await self._find_ends()
            self._look_at = self._clock.monotonic() + self._pause_s
        at = self._stored | in_hand
        from_here = self._firsts | at  # whose leases are not made yet is taken to begin there
        self.left = int(sum(max(0.0, end - from_here[p]) for p, end in self._ends.items()))
        self.total = max(self.total, self.left)
        return self.left == 0 and self._ends.keys() <= at.keys()

    async def _find_ends(self) -> dict[str, int]:
        """How far to go, for each partition that the group reads or will. One that was split before
        the group knew of it never gets a lease: its children have all of it."""
        known = await self._ask(self._feed.partitions())
        look = await self._look()
        self._left_out = read_by_others(look, known)
        leaves = {each.id for each in known} - self._left_out
        leased = {each.partition for each in look.leases}
        extents = await self._ask(self._feed.extents())
        self._firsts = {each.partition: float(each.first) for each in extents}
        return {each.partition: each.end for each in extents if each.partition in leaves | leased}

    async def _were_split(self, partitions: Collection[str]) -> bool:
        """Whether any of them was, between a look at the feed and the creation of leases."""
        if not partitions:
            return False
        known = await self._ask(self._feed.partitions())
        return any(each in partition.ancestors for partition in known for each in partitions)

    async def _find_stored(self, partitions: Collection[str]) -> dict[str, float]:
        """Where the group is, as far as those are positions of this feed: it may be recreated."""
        look = await self._look()
        positions = {x.partition: x.checkpoint for x in look.leases if x.partition in partitions}
        times = await self._ask(self._feed.event_times(positions))
        at = {
            partition: float(position.next_sequence)
            for partition, position in positions.items()
            if not isinstance(times.get(partition), PositionGone)
        }
        return at | dict.fromkeys(look.replaced, inf)

    async def _look(self) -> Snapshot:
        look = self._store.snapshot(self._group)
        return await answered(self._clock, self._pace.request_timeout_s, look)

    async def _ask(self, request: Awaitable[T]) -> T:
        """Longer each time that there was no answer: one request is about all partitions, and a
        feed that needs longer for it than for a read is slow, not silent."""
        try:
            return await told(self._clock, self._limit_s, request)
        except FeedUnavailable as error:
            if isinstance(error.__cause__, TimeoutError):
                self._limit_s *= 2
            raise
