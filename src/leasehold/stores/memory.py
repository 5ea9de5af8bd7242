"""A lease store in this process: for tests, simulation, and single-process use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from leasehold.clock import SystemClock
from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.core.progress import further
from leasehold.ports import Clock, Renewed

FORGET_AFTER_S = 3600.0


@dataclass(slots=True)
class _Records:
    """One group's records, each with the time of its last change."""

    leases: dict[str, tuple[Lease, float]] = field(default_factory=dict)
    members: dict[str, tuple[Member, float]] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)


class MemoryStore:
    def __init__(self, clock: Clock | None = None) -> None:
        self.requests: Counter[str] = Counter()
        self._clock = clock or SystemClock()
        self._groups: dict[Group, _Records] = {}
        self._heartbeats = count(1)

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        self.requests["create"] += 1
        records = self._records(group)
        for partition, start in starts.items():
            if partition not in records.leases and partition not in records.replaced:
                self._put(Lease(group=group, partition=partition, checkpoint=start, version="0"))

    async def snapshot(self, group: Group) -> Snapshot:
        self.requests["snapshot"] += 1
        return self._snapshot(group)

    async def join(self, group: Group, member: Member) -> None:
        self.requests["join"] += 1
        now, members = self._clock.monotonic(), self._records(group).members
        for name, (known, at) in tuple(members.items()):
            if now - at > known.ttl_s + FORGET_AFTER_S:
                del members[name]
        self._enter(group, member)

    async def heartbeat(self, group: Group, member: Member) -> bool:
        self.requests["heartbeat"] += 1
        members = self._records(group).members
        known = members.get(member.instance)
        if known is not None and known[0].incarnation != member.incarnation:
            return False
        self._enter(group, member)
        return True

    async def leave(self, group: Group, member: Member) -> None:
        self.requests["leave"] += 1
        members = self._records(group).members
        known = members.get(member.instance)
        if known is not None and known[0].incarnation == member.incarnation:
            del members[member.instance]

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        self.requests["acquire"] += 1
        return tuple(
            self._put(
                replace(stored, owner=owner, epoch=stored.epoch + 1, offered_to=None, ttl_s=ttl_s)
            )
            for stored in (self._unchanged(lease) for lease in leases)
            if stored is not None
        )

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        self.requests["renew"] += 1
        return Renewed(
            kept=tuple(
                self._put(replace(stored, weight=lease.weight, ttl_s=lease.ttl_s))
                for lease in leases
                if (stored := self._held(lease)) is not None
            )
        )

    async def release(self, leases: Sequence[Lease]) -> None:
        self.requests["release"] += 1
        for lease in leases:
            if (stored := self._held(lease)) is not None:
                self._put(replace(stored, owner=None, offered_to=lease.offered_to))

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        self.requests["checkpoint"] += 1
        kept = []
        for lease in leases:
            stored = self._held(lease)
            if stored is None:
                continue
            here, there = stored.checkpoint.next_sequence, lease.checkpoint.next_sequence
            if there >= here:
                stored = replace(
                    stored,
                    checkpoint=further(stored.checkpoint, lease.checkpoint),
                    advanced=stored.advanced or there > here,
                    attempts=lease.attempts,
                )
                self._put(stored, touch=False)
            kept.append(stored)
        return tuple(kept)

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        self.requests["rewind"] += 1
        return tuple(
            self._put(
                replace(
                    stored,
                    checkpoint=lease.checkpoint,
                    owner=None,
                    offered_to=None,
                    epoch=stored.epoch + 1,
                    attempts=0,
                )
            )
            for lease in leases
            if (stored := self._unchanged(lease)) is not None
        )

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        self.requests["split"] += 1
        records = self._records(parent.group)
        if parent.partition in records.replaced:
            return True
        if self._held(parent) is None:
            return False
        del records.leases[parent.partition]
        records.replaced.add(parent.partition)
        for child, start in children.items():
            untouched = child not in records.leases or records.leases[child][0].epoch == 0
            if untouched and child not in records.replaced:
                self._put(Lease(group=parent.group, partition=child, checkpoint=start, version="0"))
        return True

    async def groups(self) -> Sequence[Group]:
        self.requests["groups"] += 1
        return tuple(sorted(group for group, records in self._groups.items() if records.leases))

    async def close(self) -> None:
        pass

    def _snapshot(self, group: Group) -> Snapshot:
        now, records = self._clock.monotonic(), self._records(group)
        return Snapshot(
            leases=tuple(
                replace(lease, age_s=now - at) for _, (lease, at) in sorted(records.leases.items())
            ),
            members=tuple(
                replace(member, age_s=now - at)
                for _, (member, at) in sorted(records.members.items())
            ),
            taken_at=self._clock.wall(),
            replaced=frozenset(records.replaced),
        )

    def _enter(self, group: Group, member: Member) -> None:
        member = replace(member, version=str(next(self._heartbeats)))
        self._records(group).members[member.instance] = (member, self._clock.monotonic())

    def _records(self, group: Group) -> _Records:
        return self._groups.setdefault(group, _Records())

    def _unchanged(self, lease: Lease) -> Lease | None:
        stored = self._records(lease.group).leases.get(lease.partition)
        return stored[0] if stored is not None and stored[0].version == lease.version else None

    def _held(self, lease: Lease) -> Lease | None:
        stored = self._records(lease.group).leases.get(lease.partition)
        if (
            lease.owner is None
            or stored is None
            or (stored[0].owner, stored[0].epoch) != (lease.owner, lease.epoch)
        ):
            return None
        return stored[0]

    def _put(self, lease: Lease, *, touch: bool = True) -> Lease:
        leases = self._records(lease.group).leases
        at = self._clock.monotonic()
        if touch:
            lease = replace(lease, version=str(int(lease.version) + 1), age_s=0.0)
        else:
            at = leases[lease.partition][1]
        leases[lease.partition] = (lease, at)
        return lease
