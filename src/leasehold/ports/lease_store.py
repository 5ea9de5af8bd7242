"""Where a group keeps its leases and members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What became of each lease that was to be renewed."""

    kept: tuple[Lease, ...] = ()
    unknown: Mapping[str, Exception] = field(default_factory=dict)
    """By partition, why there was no answer: a failed request, a record that somebody keeps locked.
    Whatever is neither kept nor unknown was lost to somebody else."""


@runtime_checkable
class LeaseStore(Protocol):
    """Where a group keeps its leases and members.

    Verbs take leases that carry the wanted state and return those for which it now holds; a lease
    missing from the answer was lost to somebody else. Every verb may raise ``StoreUnavailable``,
    after which the write may or may not have happened; every verb may be repeated. One bad record
    costs itself only: ``renew`` and ``acquire`` raise only if they got nowhere at all.
    """

    @property
    def requests(self) -> Counter[str]:
        """Requests sent to the outside system so far, by verb."""

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        """Make a lease at its start position for each partition that never had one."""

    async def snapshot(self, group: Group) -> Snapshot:
        """All leases and members, with their ages by the store's clock, below 0 where a stamp lies
        ahead of it. Waits for nobody's lock."""

    async def join(self, group: Group, member: Member) -> None:
        """Enter or replace the member of that name: the newest incarnation has the name."""

    async def heartbeat(self, group: Group, member: Member) -> bool:
        """Renew the member. False: another incarnation has the name now."""

    async def leave(self, group: Group, member: Member) -> None:
        """Remove the member, if this incarnation still has the name."""

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        """Take each lease whose ``version`` is still the one given: owner, epoch + 1, age 0.

        Whether it may be taken (released, expired, overruled) is the caller's decision; an owner
        that renewed meanwhile has changed the version and keeps it. The answer carries the
        checkpoint that the former owner can no longer change. A record that cannot be reached or is
        locked is left out and not waited for.
        """

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        """Set age 0 (and weight, ttl_s) where owner and epoch still hold."""

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give up each lease still held under that owner and epoch, to its ``offered_to``."""

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Write checkpoint and attempts where owner and epoch still hold; never goes back.

        A checkpoint below the stored one changes nothing, and the lease is returned as stored. At
        the same sequence, the token that was given last counts: events may share a sequence.
        """

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Operator's verb: where ``version`` still holds, set the checkpoint (back, too), fence off
        any owner (epoch + 1, unowned) and clear attempts."""

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        """Replace a held lease by its children's. True: they are in place, now or from before."""

    async def groups(self) -> Sequence[Group]:
        """Every group that has leases here."""

    async def close(self) -> None: ...
