"""The seams to the outside world. Adapters implement these; everything above speaks only these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Group, Lease, Member, Partition, Snapshot
from leasehold.errors import PositionGone


class Clock(Protocol):
    """Time for everything outside ``core``: real in production, virtual in simulation."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


@runtime_checkable
class LeaseStore(Protocol):
    """Where a group keeps its leases and members.

    Verbs take leases that carry the wanted state and return those for which it now holds; a lease
    missing from the answer was lost to somebody else. Every verb may raise ``StoreUnavailable``,
    after which the write may or may not have happened; every verb may be repeated.
    """

    @property
    def requests(self) -> Counter[str]:
        """Requests sent to the outside system so far, by verb."""

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        """Make a lease at its start position for each partition that never had one."""

    async def snapshot(self, group: Group) -> Snapshot:
        """All leases and members, with their ages by the store's clock."""

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
        checkpoint that the former owner can no longer change.
        """

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Set age 0 (and weight, ttl_s) where owner and epoch still hold."""

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give up each lease still held under that owner and epoch, to its ``offered_to``."""

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Write checkpoint and attempts where owner and epoch still hold; never goes back.

        A checkpoint below the stored one changes nothing, and the lease is returned as stored.
        """

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Operator's verb: where ``version`` still holds, set the checkpoint (back, too), fence off
        any owner (epoch + 1, unowned) and clear attempts."""

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        """Replace a held lease by its children's. True: they are in place, now or from before."""

    async def groups(self) -> Sequence[Group]:
        """Every group that has leases here."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one read of a partition gave."""

    events: Sequence[Any] = ()
    next: Checkpoint
    """Where to continue after these events."""
    children: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Not empty: the partition ends here and goes on in these."""


class Feed(Protocol):
    """An ordered, partitioned, re-readable stream."""

    namespace: str
    name: str

    async def partitions(self) -> Sequence[Partition]:
        """The partitions as they are now. Never cached: partitions appear while running."""

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        """The position that a start setting (earliest, latest, a time …) means right now."""

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        """Up to ``max_events`` events from the position on; empty when there is nothing yet."""

    async def extents(self) -> Sequence[Extent]:
        """What is kept of every partition, and of split ones whose events can still be read.

        One look at all of them, made for being asked every few seconds.
        """

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        """By partition: the Unix time at which the event at that position was enqueued.

        ``PositionGone`` stands for it where the position is none of this feed. Left out: where no
        event has come yet, and whatever this feed cannot tell cheaply, which may be everything.
        """
