"""The seams to the outside world. Adapters implement these; everything above speaks only these."""

from __future__ import annotations

import json
from base64 import b32encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

from leasehold.core.event import Event, Properties
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
    """Where to continue after these events; without any: the end, past whatever is no event here
    (any more). Whoever has read everything stands where ``extents`` says that it ends."""
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


@runtime_checkable
class CountsRemaining(Protocol):
    """What a feed does besides if its partitions share one sequence, as a container's ranges share
    their LSNs: there the distance between two sequences is no number of events."""

    async def remaining(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, int]:
        """By partition: how many events there are from that position on."""


ERROR_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event or a document that a group could not handle, with all that it takes to try again.

    The fields from ``number`` on are the store's; what they hold when a letter is put is ignored.
    """

    group: Group
    partition: str
    sequence: int
    token: str = ""
    """The feed's own name for the position (an event's offset). It tells apart what shares a
    sequence: documents of one transaction, or the events of a hub and of its successor."""
    body: bytes
    properties: Properties = field(default_factory=dict)
    partition_key: str | None = None
    enqueued_at: datetime
    error: str
    """See ``error_text``."""
    attempts: int
    number: int = 0
    """Its place in the order of arrival; never used again for another."""
    dead_at: datetime | None = None
    """By the store's clock."""
    redriven_at: datetime | None = None
    redrives: int = 0

    @property
    def id(self) -> str:
        """The same whenever an event dies in a group, so that it may be put again after a crash."""
        group = self.group
        names = [group.namespace, group.feed, group.name, self.partition, self.sequence, self.token]
        digest = sha256(json.dumps(names).encode()).digest()
        return b32encode(digest[:10]).decode().lower()

    @property
    def origin(self) -> str:
        return f"{self.group}/{self.partition}/{self.sequence}"

    @property
    def event(self) -> Event:
        """As the handler was given it."""
        return Event(
            body=self.body,
            sequence=self.sequence,
            offset=self.token,
            enqueued_at=self.enqueued_at,
            partition=self.partition,
            partition_key=self.partition_key,
            properties=self.properties,
        )


def error_text(error: BaseException | str) -> str:
    """Type and message of any error, cut to ``ERROR_CHARS_MAX`` and fit for every store."""
    text = error if isinstance(error, str) else _typed(error)
    if len(text) > ERROR_CHARS_MAX:
        text = text[: ERROR_CHARS_MAX - 2] + " …"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _typed(error: BaseException) -> str:
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # the letter matters more than its label
        message = "(its message cannot be shown)"
    return f"{name}: {message}" if message else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which dead letters: those for which all that is given holds. Nothing given: all of them."""

    namespace: str | None = None
    feed: str | None = None
    group: str | None = None
    partition: str | None = None
    ids: Sequence[str] | None = None
    redriven: bool | None = None
    older_than_s: float | None = None
    """Dead for more seconds than this, by the store's clock."""
    up_to: int | None = None
    """No letter with a higher ``number``: none that came after a look."""


@runtime_checkable
class DeadLetters(Protocol):
    """Where a group puts what it could not handle, so that it can go on and nothing is lost.

    Every verb may raise ``StoreUnavailable``, after which the write may or may not have happened;
    every verb may be repeated.
    """

    @property
    def requests(self) -> Counter[str]:
        """Requests sent to the outside system so far, by verb."""

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """Keep them, all or none; once this returned, they survive a crash.

        A letter put again takes the place of its former self, and has not been redriven any more:
        it was put again because it failed again.
        """

    async def list(
        self,
        which: Which,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        """In order of arrival. ``after`` is the ``number`` of the last letter before this page."""

    async def get(self, id: str) -> DeadLetter | None: ...

    async def count(self, which: Which) -> Mapping[Group, int]:
        """How many there are, for each group that has any."""

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        """Say that they were delivered again; how many of them there are."""

    async def purge(self, which: Which) -> int:
        """Remove them for good; how many there were."""

    async def close(self) -> None: ...
