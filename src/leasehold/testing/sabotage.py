"""Ways to break the mechanism on purpose, to see that the simulation notices.

They work from outside, on what instances see and on what the store accepts; production code has no
switch for any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

from leasehold.core.lifecycle import Reason
from leasehold.core.model import Group, Snapshot
from leasehold.ports import LeaseStore
from leasehold.processor.pump import Pump
from leasehold.testing.sim_time import SimClock


class Sabotage(Enum):
    NONE = "none"
    NO_FENCING = "no-fencing"
    """The store accepts a stale owner's checkpoint."""
    LOCAL_CLOCK = "local-clock"
    """Ages are told by each instance's own clock."""
    STEALING = "stealing"
    """Owners do not shed; who lacks a partition takes it."""
    NO_HEARTBEATS = "no-heartbeats"
    """Only owners count as members."""


def altered(store: LeaseStore, sabotage: Sabotage, clock: SimClock) -> LeaseStore:
    """The store as an instance with that clock sees it."""
    if sabotage is Sabotage.LOCAL_CLOCK:
        return _Altered(store, lambda snapshot: _aged(snapshot, clock.wall_off_s))
    if sabotage is Sabotage.NO_HEARTBEATS:
        return _Altered(store, _owners_only)
    return store


class Stayer(Pump):
    """A pump that does not shed."""

    def let_go(self, offered_to: str | None, reason: Reason) -> None:
        if reason is not Reason.BALANCED:
            super().let_go(offered_to, reason)


class _Altered:
    """A store whose snapshots are tampered with."""

    def __init__(self, store: LeaseStore, alter: Callable[[Snapshot], Snapshot]) -> None:
        self._store, self._alter = store, alter

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def snapshot(self, group: Group) -> Snapshot:
        return self._alter(await self._store.snapshot(group))


def _aged(snapshot: Snapshot, off_s: float) -> Snapshot:
    return replace(
        snapshot,
        leases=tuple(replace(lease, age_s=lease.age_s + off_s) for lease in snapshot.leases),
        members=tuple(replace(member, age_s=member.age_s + off_s) for member in snapshot.members),
    )


def _owners_only(snapshot: Snapshot) -> Snapshot:
    owners = {lease.owner for lease in snapshot.leases}
    return replace(
        snapshot, members=tuple(each for each in snapshot.members if each.instance in owners)
    )
