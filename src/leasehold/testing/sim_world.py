"""What surrounds simulated instances: a feed that grows and splits, and a store that watches.

The watching store checks, at the moment a write takes effect, what must hold whatever happens. It
sees everything; the instances see only what the production ports give them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Group, Lease, Member, Partition, Snapshot
from leasehold.errors import PositionGone, StoreUnavailable
from leasehold.ports import Batch, Clock, Renewed
from leasehold.stores.memory import MemoryStore
from leasehold.testing.faulty_store import Faults
from leasehold.testing.sim_time import SimClock

GROUP = Group(namespace="sim", feed="feed", name="group")
MAX_EVENTS = 20
"""In one batch."""
SLACK_S = 1.5
"""Requests and handlers take a moment; bounds in intervals allow for that much on top."""
LATE_S = Faults().stall_s + SLACK_S
"""A request may outlive its sender, or what its sender did next, by as much."""


class SimEvent(int):
    """Nothing but its sequence."""

    offset = ""

    @property
    def sequence(self) -> int:
        return int(self)


class SimFeed:
    """Events are their own sequence numbers; children of a split continue the parent's."""

    namespace, name, unit = "sim", "feed", "event"

    def __init__(self, partitions: int) -> None:
        self.requests: Counter[str] = Counter()
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
            events=[SimEvent(sequence) for sequence in range(begin, upto)],
            next=Checkpoint(next_sequence=max(upto, begin)),
            children={child: Checkpoint(next_sequence=self.first[child]) for child in over},
        )

    async def ends(self) -> Mapping[str, Checkpoint]:
        return {p: Checkpoint(next_sequence=self.end[p]) for p in self.leaves()}

    async def extents(self) -> Sequence[Extent]:
        return [Extent(partition=p, first=self.first[p], end=end) for p, end in self.end.items()]

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return {}

    def close(self) -> None:
        pass

    def _make(self, partition: str, first: int, ancestors: tuple[str, ...]) -> str:
        self.first[partition] = self.end[partition] = first
        self._ancestors[partition] = ancestors
        return partition


class StoreClock(SimClock):
    """The store's own clock, which somebody may set."""

    off_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.off_s


class WatchedStore(MemoryStore):
    def __init__(
        self,
        clock: Clock,
        feed: SimFeed,
        explain_robbery: Callable[..., bool],
        *,
        fenced: bool = True,
        by_hand: bool = False,
        again_max: float = inf,
    ) -> None:
        """``explain_robbery(lease, robber, renewed_at=…, since=…)``: whether a fault explains it;
        ``again_max``: how many events one owner may handle that another has handled already."""
        self.ticking = StoreClock()
        super().__init__(self.ticking)
        self._time = clock
        self._touched: dict[tuple[str, str], float] = {}
        """Lease or member → when it was last renewed, by a clock that nobody sets."""
        self.locked: set[str] = set()
        """Partitions whose record somebody keeps locked."""
        self.goodbyes: dict[str, float] = {}
        """Instance → when it said that it leaves."""
        self._left_at: dict[str, float] = {}
        """The same by incarnation, and by instance until it joins again; never put off."""
        self._lives: dict[str, set[str]] = defaultdict(set)
        """Instance → its incarnations. Claims go by name, so one of a twin is nobody's return."""
        self.violations: list[str] = []
        self.replaced_at = 0.0
        """When leases were last made or replaced."""
        self.moves_of: Counter[str] = Counter()
        """How often each partition got an owner."""
        self.unowned_since: dict[str, float] = {}
        self.handled: dict[str, dict[int, int]] = defaultdict(dict)
        """partition → event → the epoch that finished it first."""
        self.redelivered = 0
        self._feed, self._explain_robbery, self._fenced = feed, explain_robbery, fenced
        self._again_max, self._by_hand = again_max, by_hand
        """Only the user checkpoints, so that a planned move may deliver events again."""
        self._unclean: dict[str, int] = defaultdict(int)
        """partition → the newest epoch that began without an orderly hand-over."""
        self._orphaned_at: dict[str, list[int]] = defaultdict(list)
        """partition → the checkpoints at which such epochs began."""
        self.stumbles: Counter[tuple[str, int]] = Counter()
        """(partition, event) → how often its handler failed."""
        self._busy: dict[str, tuple[str, int, float]] = {}
        """partition → who hands its events to a handler, in which epoch, since when."""
        self._furthest: dict[str, int] = {}
        self._again: Counter[tuple[str, int]] = Counter()
        self._done: dict[tuple[str, int], int] = {}
        """(partition, epoch) → how far it was handled in that epoch."""
        self._begun: dict[tuple[str, int], tuple[int, float]] = {}
        """(partition, epoch) → the checkpoint that it began at, and when that was."""
        self._finished_at: dict[tuple[str, int, int], float] = {}
        """(partition, epoch, event) → when it was handled in that epoch."""

    async def heartbeat(self, group: Group, member: Member) -> bool:
        known, now = await super().heartbeat(group, member), self._time.monotonic()
        if known and not member.leaving:
            self._check_gone(member.incarnation, f"{member.instance} says that it is there")
        if known and member.leaving:
            self.goodbyes.setdefault(member.instance, now)
            self._say_goodbye(member)
        elif known:  # maybe one that was under way for long and arrives after the goodbye
            self.goodbyes.pop(member.instance, None)
        return known

    async def leave(self, group: Group, member: Member) -> None:
        await super().leave(group, member)
        if member.instance not in self._records(group).members:  # or the next one of that name is
            self.goodbyes.setdefault(member.instance, self._time.monotonic())
            self._say_goodbye(member)

    async def join(self, group: Group, member: Member) -> None:
        self.goodbyes.pop(member.instance, None)
        self._left_at.pop(member.instance, None)
        self._lives[member.instance].add(member.incarnation)
        await super().join(group, member)

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        before = {p: lease for p, lease in self._stored(leases).items() if lease is not None}
        free = [lease for lease in leases if lease.partition not in self.locked]
        touched = {p: self._touched["lease", p] for p in before}
        won = await super().acquire(free, owner, ttl_s)
        if won and self._lives[owner] <= self._left_at.keys():
            self._check_gone(owner, f"{owner} takes {[x.partition for x in won]}")
        if won and owner in self.goodbyes:  # a request that outlived its sender: until it expires
            self.goodbyes[owner] = self._time.monotonic() + ttl_s
        for lease in won:
            former = before[lease.partition]
            if former.owner is not None:
                self._unclean[lease.partition] = lease.epoch
                self._orphaned_at[lease.partition].append(former.checkpoint.next_sequence)
                _, since = self._begun.get((former.partition, former.epoch), (0, -inf))
                last = touched[lease.partition]
                if former.owner != owner and not self._explain_robbery(
                    former, owner, renewed_at=last, since=since
                ):
                    self.violations.append(
                        f"{owner} robbed the healthy owner {former.owner} of {lease.partition} "
                        f"(renewed {former.age_s:.1f} s ago)"
                    )
            begin_at = former.checkpoint.next_sequence
            self._begun[lease.partition, lease.epoch] = (begin_at, self._time.monotonic())
            self.moves_of[lease.partition] += 1
            self.unowned_since.pop(lease.partition, None)
        return won

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        self._refuse_locked(leases)
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

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        answer = await super().renew([x for x in leases if x.partition not in self.locked])
        busy = [lease.partition for lease in leases if self._is_locked(lease)]
        answer = replace(answer, unknown=dict.fromkeys(busy, StoreUnavailable("it is locked")))
        for lease in answer.kept:  # even one long under way, whose sender is dead by now
            self.unowned_since.pop(lease.partition, None)
        return answer

    async def release(self, leases: Sequence[Lease]) -> None:
        self._refuse_locked(leases)
        for lease in leases:
            stored = self._stored([lease])[lease.partition]
            if stored and (stored.owner, stored.epoch) == (lease.owner, lease.epoch):
                done = self._done.get((lease.partition, lease.epoch), 0)
                if done > stored.checkpoint.next_sequence and not self._by_hand:
                    self.violations.append(
                        f"{lease.owner} released {lease.partition} at "
                        f"{stored.checkpoint.next_sequence} although it had handled {done - 1}"
                    )
        await super().release(leases)

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        self._refuse_locked([parent])
        before = self._stored([parent])[parent.partition]
        done = await super().split(parent, children)
        if done:
            end = self._feed.end[parent.partition]
            if before is not None and before.checkpoint.next_sequence < end:
                self.violations.append(
                    f"{parent.owner} split {parent.partition} at {end} although its checkpoint is "
                    f"at {before.checkpoint.next_sequence}: what lies between is lost in a crash"
                )
            self.replaced_at = self._time.monotonic()
        return done

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        await super().create(group, starts)
        self.replaced_at = self._time.monotonic()

    @property
    def moves(self) -> int:
        return self.moves_of.total()

    def look(self, group: Group) -> Snapshot:
        """A snapshot that is not counted as a request, with true ages."""
        now, records, touched = self._time.monotonic(), self._records(group), self._touched
        return Snapshot(
            leases=tuple(
                replace(lease, age_s=now - touched["lease", partition])
                for partition, (lease, _) in sorted(records.leases.items())
            ),
            members=tuple(
                replace(member, age_s=now - touched["member", name])
                for name, (member, _) in sorted(records.members.items())
            ),
            replaced=frozenset(records.replaced),
        )

    def begin(self, instance: str, lease: Lease, awake: Mapping[str, float]) -> None:
        """An instance hands events to its handler. ``awake``: who could know better since when."""
        other = self._busy.get(lease.partition)
        if other and other[0] != instance and awake.get(other[0], inf) < other[2]:
            self.violations.append(
                f"{instance} and {other[0]} handle {lease.partition} at the same time "
                f"(epochs {lease.epoch} and {other[1]})"
            )
        self._busy[lease.partition] = (instance, lease.epoch, self._time.monotonic())

    def finish(self, instance: str, lease: Lease, events: Sequence[int], *, failed: bool) -> None:
        if self._busy.get(lease.partition, ())[:2] == (instance, lease.epoch):
            del self._busy[lease.partition]
        if failed:
            return
        handled, now = self.handled[lease.partition], self._time.monotonic()
        key = (lease.partition, lease.epoch)
        begin_at = max(self._done.get(key, 0), self._begun.get(key, (0, 0.0))[0])
        if min(events) < begin_at:
            self.violations.append(
                f"{instance} handled event {min(events)} of {lease.partition} although it had "
                f"handled, or its checkpoint had covered, all before {begin_at} (epoch {key[1]})"
            )
        self._done[key] = max(events) + 1
        for event in events:
            self._finished_at[(*key, event)] = now
            first = handled.setdefault(event, lease.epoch)
            if first != lease.epoch:
                self.redelivered += 1
                self._again[lease.partition, lease.epoch] += 1
                if self._again[lease.partition, lease.epoch] > self._again_max:
                    self.violations.append(
                        f"{instance} handled more than {self._again_max} events of "
                        f"{lease.partition} again in epoch {lease.epoch}"
                    )
                clean = self._unclean[lease.partition] <= first < lease.epoch
                if clean and not self._by_hand:
                    self.violations.append(
                        f"event {event} of {lease.partition} was delivered twice by a planned "
                        f"move (epochs {first} and {lease.epoch})"
                    )

    def unsaved(self, lease: Lease) -> tuple[int, float]:
        """How many events its owner has handled that no checkpoint covers, and since when the
        oldest of these is handled."""
        key, begin = (lease.partition, lease.epoch), lease.checkpoint.next_sequence
        since = self._finished_at.get((*key, begin), inf)
        return max(self._done.get(key, 0) - begin, 0), since

    def tries(self, partition: str, event: int) -> int:
        """How often its handler failed, or its owner was gone and may have had it in hand."""
        orphaned_at = self._orphaned_at[partition]
        deaths = sum(first <= event < first + MAX_EVENTS for first in orphaned_at)
        return self.stumbles[partition, event] + deaths

    def _say_goodbye(self, member: Member) -> None:
        for name in (member.instance, member.incarnation):
            self._left_at.setdefault(name, self._time.monotonic())

    def _check_gone(self, name: str, what: str) -> None:
        ago_s = self._time.monotonic() - self._left_at.get(name, inf)
        if ago_s > LATE_S:  # no request is under way for so long
            self.violations.append(f"{what}, {ago_s:.1f} s after it said that it leaves")

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
        now, known = self._time.monotonic(), self._records(GROUP).leases
        return {
            p: replace(known[p][0], age_s=now - self._touched["lease", p]) if p in known else None
            for p in (lease.partition for lease in leases)
        }

    def _refuse_locked(self, leases: Sequence[Lease]) -> None:
        if any(map(self._is_locked, leases)):
            raise StoreUnavailable("it is locked")

    def _is_locked(self, lease: Lease) -> bool:
        """A lock stops writers only; that a lease is somebody else's by now can be read."""
        return lease.partition in self.locked and self._held(lease) is not None

    def _enter(self, group: Group, member: Member) -> None:
        super()._enter(group, member)
        self._touched["member", member.instance] = self._time.monotonic()

    def _put(self, lease: Lease, *, touch: bool = True) -> Lease:
        if touch:
            self._touched["lease", lease.partition] = self._time.monotonic()
        return super()._put(lease, touch=touch)
