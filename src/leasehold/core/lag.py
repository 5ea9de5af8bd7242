"""How far a group is behind, whether it moves, and when it will have caught up.

All functions go from snapshots to values. Two observations of the same group, taken apart, tell
what is stuck and how fast it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leasehold.core.model import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a feed holds of one partition: the sequences ``first`` up to, not including, ``end``."""

    partition: str
    first: int
    end: int
    last_enqueued_at: float | None = None
    """Unix time of the newest event; None when there is none, or the feed does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    partition: str
    first: int
    end: int
    checkpoint: int | None
    """The next sequence as the lease has it. None: no lease was ever made."""
    next_sequence: int
    """Where reading can really go on: the checkpoint, moved into what the feed holds."""
    lag_events: int
    lag_s: float | None
    """Age of the oldest unprocessed event. None: there is one, and its age is not known."""
    owner: str | None = None
    owner_live: bool = False
    last_enqueued_at: float | None = None
    counted: bool = False
    """The feed counted ``lag_events``: its sequences have gaps, and their distance says nothing."""

    @property
    def expired(self) -> bool:
        """Retention has removed events that were not processed."""
        return self.lost_events > 0

    @property
    def lost_events(self) -> int:
        if self.checkpoint is None or self.counted:
            return 0
        return max(0, self.first - self.checkpoint)

    @property
    def beyond_end(self) -> bool:
        """The checkpoint is of another feed: this one was recreated, or cut short."""
        return self.checkpoint is not None and self.checkpoint > self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """One observation of a group."""

    at: float
    partitions: tuple[PartitionLag, ...]
    gone: tuple[str, ...] = ()
    """Partitions that have a lease but that the feed does not have."""

    @property
    def lag_events(self) -> int:
        return sum(p.lag_events for p in self.partitions)

    @property
    def lag_s(self) -> float | None:
        """The greatest lag of a partition. Unknown if any is: it might be the greatest."""
        return _greatest(p.lag_s for p in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    partition: str
    processed_per_s: float
    incoming_per_s: float
    catch_up_s: float | None
    """None: at this pace never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRates:
    partitions: tuple[Rate, ...]

    @property
    def processed_per_s(self) -> float:
        return sum(r.processed_per_s for r in self.partitions)

    @property
    def incoming_per_s(self) -> float:
        return sum(r.incoming_per_s for r in self.partitions)

    @property
    def catch_up_s(self) -> float | None:
        """The slowest partition decides: no other one can help it."""
        return _greatest(r.catch_up_s for r in self.partitions)


def observe(
    extents: Iterable[Extent],
    leases: Iterable[Lease],
    *,
    now: float,
    next_event_times: Mapping[str, float] | None = None,
    remaining: Mapping[str, int] | None = None,
) -> Lag:
    """The lag of every partition of a feed.

    ``next_event_times`` holds the enqueued time of the event at a partition's checkpoint, where the
    caller has looked it up. ``now`` should be by the clock that stamped the events. ``remaining``
    holds what the feed counted from there on, where sequences have gaps.
    """
    times, counts = next_event_times or {}, remaining or {}
    held = {lease.partition: lease for lease in leases}
    partitions = tuple(
        partition_lag(
            e, held.pop(e.partition, None), now, times.get(e.partition), counts.get(e.partition)
        )
        for e in extents
    )
    return Lag(at=now, partitions=partitions, gone=tuple(sorted(held)))


def partition_lag(
    extent: Extent,
    lease: Lease | None,
    now: float,
    next_event_time: float | None = None,
    remaining: int | None = None,
) -> PartitionLag:
    """Without a lease nothing was ever processed, so the whole backlog counts."""
    checkpoint = None if lease is None else lease.checkpoint.next_sequence
    wanted = extent.first if checkpoint is None else checkpoint
    next_sequence = min(max(wanted, extent.first), extent.end)
    lag_events = extent.end - next_sequence if remaining is None else remaining
    if lag_events == 1 and next_event_time is None:
        next_event_time = extent.last_enqueued_at
    return PartitionLag(
        partition=extent.partition,
        first=extent.first,
        end=extent.end,
        checkpoint=checkpoint,
        next_sequence=next_sequence,
        lag_events=lag_events,
        lag_s=_age_s(lag_events, now, next_event_time),
        owner=None if lease is None else lease.owner,
        owner_live=lease is not None and lease.live,
        last_enqueued_at=extent.last_enqueued_at,
        counted=remaining is not None,
    )


def stuck(earlier: Lag, later: Lag, *, longer_than_s: float) -> tuple[str, ...]:
    """Partitions that had work all the time between two observations and did not advance.

    Nothing is stuck yet if the observations are not further apart than ``longer_than_s``.
    """
    if later.at - earlier.at <= longer_than_s:
        return ()
    before = {p.partition: p for p in earlier.partitions}
    return tuple(
        now.partition
        for now in later.partitions
        if (then := before.get(now.partition))
        and then.lag_events
        and now.lag_events
        and then.checkpoint == now.checkpoint
    )


def rates(earlier: Lag, later: Lag, incoming: Mapping[str, int] | None = None) -> GroupRates | None:
    """Events per second between two observations; None if no time has passed between them.

    A partition that is new in the later one has no rate yet: zero. ``incoming`` holds what the feed
    counted as come in between, where sequences have gaps.
    """
    came = incoming or {}
    elapsed_s = later.at - earlier.at
    if elapsed_s <= 0:
        return None
    before = {p.partition: p for p in earlier.partitions}
    return GroupRates(
        partitions=tuple(
            _rate(before.get(now.partition, now), now, elapsed_s, came.get(now.partition, 0))
            for now in later.partitions
        )
    )


def _rate(then: PartitionLag, now: PartitionLag, elapsed_s: float, came: int) -> Rate:
    incoming = came if now.counted else max(0, now.end - then.end)
    processed = _processed(then, now, incoming)
    gain = processed - incoming
    catch_up_s = now.lag_events * elapsed_s / gain if gain > 0 else None
    return Rate(
        partition=now.partition,
        processed_per_s=processed / elapsed_s,
        incoming_per_s=incoming / elapsed_s,
        catch_up_s=catch_up_s if now.lag_events else 0.0,
    )


def _processed(then: PartitionLag, now: PartitionLag, incoming: int) -> int:
    """A rewind, a lease newly made, and events lost to retention are not progress."""
    if then.checkpoint is None or now.checkpoint is None:
        return 0
    moved = now.checkpoint - then.checkpoint
    if now.counted:
        return max(0, then.lag_events + incoming - now.lag_events) if moved > 0 else 0
    return max(0, min(moved, now.next_sequence - then.next_sequence))


def _age_s(lag_events: int, now: float, next_event_time: float | None) -> float | None:
    if not lag_events:
        return 0.0
    # Clocks differ a little; an event that seems to be from the future has just arrived.
    return None if next_event_time is None else max(0.0, now - next_event_time)


def _greatest(values: Iterable[float | None]) -> float | None:
    greatest = 0.0
    for value in values:
        if value is None:
            return None
        greatest = max(greatest, value)
    return greatest
