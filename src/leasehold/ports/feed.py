"""Where events come from, and what a feed may be able to do besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Lease, Partition
from leasehold.errors import PositionGone


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one read of a partition gave."""

    events: Sequence[Any] = ()
    next: Checkpoint
    """Where to continue after these events; without any: the end, past whatever is no event here
    (any more). A reader that has read everything stands where ``extents`` says that it ends."""
    children: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Not empty: the partition ends here and goes on in these."""
    size_bytes: int = 0
    """About what the events take up in memory. Left at 0 they count as nothing, and ``max_bytes``
    does not bound how much of them is read ahead."""


class Feed(Protocol):
    """An ordered, partitioned, re-readable stream."""

    namespace: str
    name: str
    unit: str
    """What its users call one thing in it: ``"event"``, ``"change"``."""
    requests: Counter[str]
    """Requests sent to the outside system so far, by verb."""

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

    def close(self) -> None:
        """Free what it holds. Every call after that raises ``BadInput``."""


@runtime_checkable
class CountsRemaining(Protocol):
    """What a feed does besides if its partitions share one sequence, as a container's ranges share
    their LSNs: there the distance between two sequences is no number of events."""

    async def remaining(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, int]:
        """By partition: how many events there are from that position on."""


@runtime_checkable
class TellsEnds(Protocol):
    """What a feed does besides if one cheap look shows where all its partitions end. An instance's
    pumps that have nothing to read then share that look; without it, each reads in turn."""

    async def ends(self) -> Mapping[str, Checkpoint]:
        """By partition: the ``next`` of a read that finds nothing there right now. Left out: those
        that were split, whose readers have to find out."""


@runtime_checkable
class FencesReaders(Protocol):
    """What a feed does besides if its broker itself cuts off a reader whose lease has passed on, as
    Event Hubs does by owner level. Whoever holds a lease then reads by this."""

    async def read_as_owner(self, lease: Lease, position: Checkpoint, max_events: int) -> Batch:
        """As ``read``, of the lease's partition and under its epoch. Raises ``LeaseLost`` once
        another reader of the group has come with a later one."""

    async def let_go(self, lease: Lease) -> None:
        """Nothing more is read under the lease: whoever has it next need not wait."""


@runtime_checkable
class MirrorsCheckpoints(Protocol):
    """What a feed does besides if the outside system shows how far groups have got, as Kafka does
    for its consumer groups. That is for people and their tools: nobody reads it back."""

    async def mirror(self, group: str, positions: Mapping[str, Checkpoint]) -> Mapping[str, str]:
        """Show these positions as those of the group. Gives, by partition, why one is refused."""
