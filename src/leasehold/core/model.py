"""The values that everything else is built from.

Times are ages by the store's own clock (``age_s``), never points in time, so that no instance's
clock can be compared with another's by accident. ``core.watch`` says which of them to believe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold.settings import TIMING


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Group:
    """The readers that share one feed's partitions: a consumer group, a deployment unit."""

    namespace: str
    feed: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.feed}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One ordered part of a feed. ``ancestors`` are the ranges it was split from, nearest first."""

    id: str
    ancestors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a group continues: the *next* position, and the feed's own token for it."""

    next_sequence: int
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The record of one partition in one group.

    ``version`` changes with every change of ownership and every renewal; it exists for
    compare-and-swap only. ``epoch`` rises whenever the lease changes hands; writes of the owner are
    conditioned on it, so its own renewals cannot get in their way.
    """

    group: Group
    partition: str
    checkpoint: Checkpoint
    owner: str | None = None
    epoch: int = 0
    version: str = ""
    advanced: bool = False
    """False while the checkpoint is still the start position."""
    attempts: int = 0
    """Failed or unfinished tries at what begins at the checkpoint, as ``core.retry`` counts them
    (``describe`` puts it in words)."""
    offered_to: str | None = None
    """While unowned: the member it was released to."""
    weight: float = 0.0
    """What it takes to work on it, in events per second; 0 while nobody knows."""
    ttl_s: float = TIMING.lease_ttl_s
    age_s: float = 0.0
    """Seconds since the last change of ownership or renewal."""

    @property
    def expired(self) -> bool:
        return self.age_s > self.ttl_s

    @property
    def live(self) -> bool:
        """Held by an owner that keeps renewing it."""
        return self.owner is not None and not self.expired


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One instance of a group, known by its heartbeat whether it owns anything or not.

    ``incarnation`` tells two lives of one name apart: the newer one has the name.
    """

    instance: str
    incarnation: str
    ttl_s: float = TIMING.lease_ttl_s
    leaving: bool = False
    age_s: float = 0.0
    version: str = ""
    """Changes with every heartbeat; the store gives it."""

    @property
    def expired(self) -> bool:
        return self.age_s > self.ttl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A lease as operators and other processors know it (requirement E7)."""

    namespace: str
    hub: str
    group: str
    owner: str
    partition: str
    last_modified: float
    """Unix time by the store's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All leases and members of one group at one moment of the store."""

    leases: tuple[Lease, ...] = ()
    members: tuple[Member, ...] = ()
    taken_at: float = 0.0
    """Unix time by the store's clock; for people to read, not for deciding expiry."""
    replaced: frozenset[str] = field(default_factory=frozenset)
    """Partitions whose lease was split into others; they never get a lease again."""
    doubted: frozenset[str] = field(default_factory=frozenset)
    """Instances that may be dead or alive, as far as the one who looks can tell."""

    def ownership(self) -> tuple[Ownership, ...]:
        return tuple(
            Ownership(
                namespace=lease.group.namespace,
                hub=lease.group.feed,
                group=lease.group.name,
                owner=lease.owner or "",
                partition=lease.partition,
                last_modified=self.taken_at - lease.age_s,
            )
            for lease in self.leases
        )


def partition_order(name: str) -> tuple[int, int, str]:
    """To sort partitions as people count them: 2 comes before 10, and numbers before names."""
    number = name.isascii() and name.isdigit()
    return (0, int(name), name) if number else (1, 0, name)
