"""What surrounds simulated instances: a feed that grows and splits, and a store that watches.

The watching store checks, at the moment a write takes effect, what must hold whatever happens. It
sees everything; the instances see only what the production ports give them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Group, Lease, Partition, Snapshot
from leasehold.errors import PositionGone
from leasehold.ports import Batch, Clock
from leasehold.stores.memory import MemoryStore


class SimFeed:
    """Events are their own sequence numbers; children of a split continue the parent's."""

    namespace, name = "sim", "feed"

    def __init__(self, partitions: int) -> None:
        self.first: dict[str, int] = {}
        self.end: dict[str, int] = {}
        self.children: dict[str, tuple[str, ...]] = {}
        self._ancestors: dict[str, tuple[str, ...]] = {}
        for _ in range(partitions):
            self.add()

    def add(self) -> str:
        number = sum(1 for ancestors in self._ancestors.values() if not ancestors)
        return self._make(f"{number:02d}", 0, ())

    def split(self, partition: str) -> None:
        ancestors = (partition, *self._ancestors[partition])
        self.children[partition] = tuple(
            self._make(f"{partition}.{n}", self.end[partition], ancestors) for n in (0, 1)
        )

    def append(self, partition: str, count: int) -> None:
        self.end[partition] += count

    def leaves(self) -> list[str]:
        return [partition for partition in self.end if partition not in self.children]

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(id=p, ancestors=self._ancestors[p]) for p in self.leaves()]

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return Checkpoint(next_sequence=self.first[partition])

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        begin = position.next_sequence
        upto = min(self.end[partition], begin + max_events)
        over = {} if begin < self.end[partition] else self.children.get(partition, ())
        return Batch(
            events=range(begin, upto),
            next=Checkpoint(next_sequence=max(upto, begin)),
            children={child: Checkpoint(next_sequence=self.first[child]) for child in over},
        )

    async def extents(self) -> Sequence[Extent]:
        return [Extent(partition=p, first=self.first[p], end=end) for p, end in self.end.items()]

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return {}

    def _make(self, partition: str, first: int, ancestors: tuple[str, ...]) -> str:
        self.first[partition] = self.end[partition] = first
        self._ancestors[partition] = ancestors
        return partition


class WatchedStore(MemoryStore):
    def __init__(
        self, clock: Clock, feed: SimFeed, may_rob: Callable[[str], bool], *, fenced: bool = True
    ) -> None:
        super().__init__(clock)
        self.violations: list[str] = []
        self.replaced_at = 0.0
        """When leases were last made or replaced."""
        self.moves = 0
        self.unowned_since: dict[str, float] = {}
        self.handled: dict[str, dict[int, int]] = defaultdict(dict)
        """partition → event → the epoch that finished it first."""
        self.redelivered = 0
        self._feed, self._may_rob, self._fenced = feed, may_rob, fenced
        self._unclean: dict[str, int] = defaultdict(int)
        """partition → the newest epoch that began without an orderly hand-over."""
        self._busy: dict[str, tuple[str, int, float]] = {}
        """partition → who hands its events to a handler, in which epoch, since when."""
        self._furthest: dict[str, int] = {}
        self._done: dict[tuple[str, int], int] = {}
        """(partition, epoch) → how far it was handled in that epoch."""

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        before = {p: lease for p, lease in self._stored(leases).items() if lease is not None}
        won = await super().acquire(leases, owner, ttl_s)
        for lease in won:
            former = before[lease.partition]
            if former.owner is not None:
                self._unclean[lease.partition] = lease.epoch
                if former.live and former.owner != owner and not self._may_rob(former.owner):
                    self.violations.append(
                        f"{owner} robbed the live owner {former.owner} of {lease.partition} "
                        f"(renewed {former.age_s:.1f} s ago)"
                    )
            self.moves += 1
            self.unowned_since.pop(lease.partition, None)
        return won

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        stored = self._stored(leases)
        for lease in leases:
            now = stored[lease.partition]
            current = now and (now.owner, now.epoch) == (lease.owner, lease.epoch)
            if now is not None and not current and not self._fenced:
                self._put(replace(now, checkpoint=lease.checkpoint), touch=False)
                self.violations.append(
                    f"{lease.owner} wrote a checkpoint of {lease.partition} in epoch "
                    f"{lease.epoch} although {now.owner} has it in epoch {now.epoch}"
                )
        kept = await super().checkpoint(leases)
        for lease in kept:
            self._check_progress(lease)
        return kept

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        kept = await super().renew(leases)
        for lease in kept:  # even one that was long under way and whose sender is dead by now
            self.unowned_since.pop(lease.partition, None)
        return kept

    async def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            stored = self._stored([lease])[lease.partition]
            if stored and (stored.owner, stored.epoch) == (lease.owner, lease.epoch):
                done = self._done.get((lease.partition, lease.epoch), 0)
                if done > stored.checkpoint.next_sequence:
                    self.violations.append(
                        f"{lease.owner} released {lease.partition} at "
                        f"{stored.checkpoint.next_sequence} although it had handled {done - 1}"
                    )
        await super().release(leases)

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        done = await super().split(parent, children)
        if done:
            self.replaced_at = self._clock.monotonic()
        return done

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        await super().create(group, starts)
        self.replaced_at = self._clock.monotonic()

    def look(self, group: Group) -> Snapshot:
        """A snapshot that is not counted as a request."""
        return self._snapshot(group)

    def begin(self, instance: str, lease: Lease, awake: Mapping[str, float]) -> None:
        """An instance hands events to its handler. ``awake``: who could know better since when."""
        other = self._busy.get(lease.partition)
        if other and other[0] != instance and awake.get(other[0], inf) < other[2]:
            self.violations.append(
                f"{instance} and {other[0]} handle {lease.partition} at the same time "
                f"(epochs {lease.epoch} and {other[1]})"
            )
        self._busy[lease.partition] = (instance, lease.epoch, self._clock.monotonic())

    def finish(self, instance: str, lease: Lease, events: Sequence[int], *, failed: bool) -> None:
        if self._busy.get(lease.partition, ())[:2] == (instance, lease.epoch):
            del self._busy[lease.partition]
        if failed:
            return
        handled = self.handled[lease.partition]
        self._done[lease.partition, lease.epoch] = max(events) + 1
        for event in events:
            first = handled.setdefault(event, lease.epoch)
            if first != lease.epoch:
                self.redelivered += 1
                if first < lease.epoch and self._unclean[lease.partition] <= first:
                    self.violations.append(
                        f"event {event} of {lease.partition} was delivered twice by a planned "
                        f"move (epochs {first} and {lease.epoch})"
                    )

    def _frontier(self, partition: str, begin: int) -> int:
        """The first event from there on that nobody has finished."""
        handled = self.handled[partition]
        while begin in handled:
            begin += 1
        return begin

    def _check_progress(self, lease: Lease) -> None:
        position, partition = lease.checkpoint.next_sequence, lease.partition
        begin = self._furthest.get(partition, self._feed.first[partition])
        if position < begin:
            self.violations.append(
                f"the checkpoint of {partition} went back from {begin} to {position}"
            )
        if (gap := self._frontier(partition, begin)) < position:
            self.violations.append(f"the checkpoint of {partition} passed event {gap}, not handled")
        self._furthest[partition] = position

    def _stored(self, leases: Sequence[Lease]) -> dict[str, Lease | None]:
        """Those leases as they are now, with their ages."""
        now, found = self._clock.monotonic(), {}
        for lease in leases:
            record = self._records(lease.group).leases.get(lease.partition)
            found[lease.partition] = record and replace(record[0], age_s=now - record[1])
        return found
