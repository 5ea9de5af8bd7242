"""How far a group is behind, seen from outside, without disturbing it (requirement C7).

One look tells lag and owners. Rates, stuck partitions and the age of checkpoints need a second look
at some distance, so keep the estimator and ask it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from leasehold.clock import SystemClock
from leasehold.core.lag import Extent, GroupRates, Lag, PartitionLag, Rate, observe, rates, stuck
from leasehold.core.model import Checkpoint, Group, Lease, Snapshot
from leasehold.errors import BadInput, Gone, PositionGone
from leasehold.ports import Clock, CountsRemaining, Feed, LeaseStore
from leasehold.settings import LAG, LagSettings

SEEN_BY_EXTENT = ("retention", "beyond end")
"""What is wrong with a checkpoint here, both ends of the partition tell at the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEstimate:
    partition: str
    lag_events: int
    lag_s: float | None
    """Age of the oldest unprocessed event. None: there is one, and its age is not known."""
    owner: str | None
    owner_live: bool
    checkpoint: int | None
    """The next sequence as the lease has it. None: no lease was ever made."""
    advanced: bool
    """False while the checkpoint is still the start position."""
    attempts: int
    """Failed tries at the batch that begins at the checkpoint."""
    first: int
    end: int
    last_enqueued_at: float | None
    astray: Gone | None
    """Why the checkpoint points at nothing. With ``"beyond end"``, ``"other feed"`` and ``"rolled
    back"`` the feed was recreated or has lost events, and what counts is the backlog from where its
    readers go on: from where it lost them, or all of it if nobody knows."""
    lost_events: int | None
    """Removed by retention before they were processed. None: some, and nobody knows how many,
    because the feed's sequences have gaps."""
    lease_age_s: float | None
    """Since the owner last renewed, or the lease was given up."""
    checkpoint_age_s: float | None
    """At least: since this estimator first saw the checkpoint where it is."""
    checkpoint_age_max_s: float | None
    """At most. None: it was there from the first look on, so nobody knows."""
    processed_per_s: float | None
    incoming_per_s: float | None
    catch_up_s: float | None
    """None: not known yet, or at this pace never."""
    stuck: bool
    """There was work for longer than ``stuck_after_s``, and the checkpoint did not move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How far a group is behind at one moment, who owns what, and what stands still."""

    group: Group
    at: float
    """Unix time by this process's clock."""
    partitions: tuple[PartitionEstimate, ...]
    members: tuple[str, ...]
    """The instances that are alive, with or without a partition."""
    gone: tuple[str, ...]
    """Partitions that have a lease but that the feed does not have."""
    lag_events: int
    lag_s: float | None
    """The greatest of any partition; None if one is not known."""
    processed_per_s: float | None
    incoming_per_s: float | None
    catch_up_s: float | None
    """Of the slowest partition. None: not known yet, or at this pace never."""

    @property
    def stuck(self) -> tuple[str, ...]:
        return tuple(p.partition for p in self.partitions if p.stuck)

    @property
    def started(self) -> bool:
        """Whether an instance of this group ever ran: then there are leases."""
        return any(p.checkpoint is not None for p in self.partitions) or bool(self.gone)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"stuck": list(self.stuck), "started": self.started}


class Estimator:
    """Looks at a group from outside, as often as you ask; nothing is disturbed by looking."""

    def __init__(
        self,
        feed: Feed,
        *,
        group: str,
        store: LeaseStore,
        stuck_after_s: float = LAG.stuck_after_s,
        rate_over_s: float = LAG.rate_over_s,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            group: the name of the group
            store: where the group keeps its leases
            clock: another clock, for simulations; none: the real one
        """
        if not group.strip():
            raise BadInput("group must be a name, for example alerts")
        LagSettings(stuck_after_s=stuck_after_s, rate_over_s=rate_over_s).check()
        self.group = Group(namespace=feed.namespace, feed=feed.name, name=group)
        self._feed, self._store, self._clock = feed, store, clock or SystemClock()
        self._counter = feed if isinstance(feed, CountsRemaining) else None
        self._stuck_after_s, self._rate_over_s = stuck_after_s, rate_over_s
        self._seen: deque[Lag] = deque()
        self._ages = CheckpointAges()
        self._turn = threading.Lock()
        self._runner: asyncio.Runner | None = None

    def lag(self) -> Estimate:
        """``observe`` for programs without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with self._turn:
                # Always the same loop: a store's connections may belong to the one they began in.
                self._runner = self._runner or asyncio.Runner()
                return self._runner.run(self.observe())
        raise BadInput("lag() cannot wait inside an event loop: write await estimator.observe()")

    async def observe(self) -> Estimate:
        """Look once: one request to the store, and three to six small ones to the feed."""
        # The leases first: a checkpoint must not seem to be beyond an end that was read earlier.
        snapshot = await self._store.snapshot(self.group)
        extents = await self._extents(snapshot)
        leases = {lease.partition: lease for lease in snapshot.leases}
        gapless = extents if self._counter is None else {}
        astray = {p: why for p, e in gapless.items() if (why := _astray(leases.get(p), e))}
        positions, times = await self._times(extents, leases, astray)
        counted = [_counted(lease, positions, astray) for lease in snapshot.leases]
        remaining = await self._remaining(positions)
        wall = self._clock.wall()
        lag = observe(
            extents.values(), counted, now=wall, next_event_times=times, remaining=remaining
        )
        # What lies between two looks is told by a clock that nobody sets.
        lag = replace(lag, at=self._clock.monotonic())
        self._ages.look(snapshot.leases, lag.at)
        speed, still = await self._compare(lag)
        pace = {} if speed is None else {rate.partition: rate for rate in speed.partitions}
        return Estimate(
            group=self.group,
            at=wall,
            partitions=tuple(
                _estimate(
                    p,
                    leases.get(p.partition),
                    astray.get(p.partition),
                    self._ages.of(p.partition),
                    pace.get(p.partition),
                    still=p.partition in still,
                )
                for p in lag.partitions
            ),
            members=tuple(m.instance for m in snapshot.members if not m.expired),
            gone=lag.gone,
            lag_events=lag.lag_events,
            lag_s=lag.lag_s,
            processed_per_s=None if speed is None else speed.processed_per_s,
            incoming_per_s=None if speed is None else speed.incoming_per_s,
            catch_up_s=None if speed is None else speed.catch_up_s,
        )

    def close(self) -> None:
        """Ends what ``lag`` began. The feed and the store stay open: they are the caller's."""
        with self._turn:
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _extents(self, snapshot: Snapshot) -> dict[str, Extent]:
        """A split partition counts as long as the group has not read it to its end; until then,
        what came of it counts from that end on."""
        known = await self._feed.partitions()
        held = {lease.partition for lease in snapshot.leases}
        split = {ancestor for partition in known for ancestor in partition.ancestors}
        kept = {e.partition: e for e in await self._feed.extents()}
        extents = {p: e for p, e in kept.items() if p in held or p not in split}
        for partition in known:
            begin = next(
                (kept[a].end for a in partition.ancestors if a in held & kept.keys()), None
            )
            if begin is not None and partition.id in extents and partition.id not in held:
                extents[partition.id] = replace(extents[partition.id], first=begin)
        return extents

    async def _remaining(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, int] | None:
        return None if self._counter is None else await self._counter.remaining(positions)

    async def _times(
        self, extents: Mapping[str, Extent], leases: Mapping[str, Lease], astray: dict[str, Gone]
    ) -> tuple[Mapping[str, Checkpoint], Mapping[str, float]]:
        """Where the group goes on, and when the next events were enqueued. Adds to ``astray`` what
        only the feed can tell."""
        positions = {
            p: leases[p].checkpoint if p in leases else Checkpoint(next_sequence=e.first)
            for p, e in extents.items()
        }
        found = dict(await self._feed.event_times(positions))
        told = {
            p: what
            for p, what in found.items()
            if isinstance(what, PositionGone)
            and p in leases
            and (self._counter is not None or p in astray or what.reason not in SEEN_BY_EXTENT)
        }
        astray |= {p: gone.reason for p, gone in told.items() if p not in astray}
        again = {
            p: told[p].resume if p in told else Checkpoint(next_sequence=extents[p].first)
            for p in astray
        }
        if again:
            found |= await self._feed.event_times(again)
        times = {p: what for p, what in found.items() if isinstance(what, float)}
        return positions | again, times

    async def _compare(self, lag: Lag) -> tuple[GroupRates | None, frozenset[str]]:
        """With what was seen before: how fast it goes, and which partitions stand still."""
        recent = [seen for seen in self._seen if lag.at - seen.at <= self._rate_over_s]
        old = [seen for seen in self._seen if lag.at - seen.at > self._stuck_after_s]
        base = recent[0] if recent else self._seen[-1] if self._seen else None
        still = stuck(old[-1], lag, longer_than_s=self._stuck_after_s) if old else ()
        self._seen.append(lag)
        keep_s = max(self._stuck_after_s, self._rate_over_s)
        while lag.at - self._seen[1 if len(self._seen) > 1 else 0].at > keep_s:
            self._seen.popleft()
        return await self._rates(base, lag), frozenset(still)

    async def _rates(self, base: Lag | None, lag: Lag) -> GroupRates | None:
        if base is None:
            return None
        here = {p.partition for p in lag.partitions}
        ends = {
            p.partition: Checkpoint(next_sequence=p.end)
            for p in base.partitions
            if p.partition in here
        }
        return rates(base, lag, await self._remaining(ends))


class CheckpointAges:
    """Stores do not keep when a checkpoint was written; what was seen at two looks bounds it."""

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._since: dict[str, tuple[Checkpoint, float, float | None]] = {}

    def look(self, leases: tuple[Lease, ...], now: float) -> None:
        since = {}
        for lease in leases:
            known = self._since.get(lease.partition)
            if known is None or known[0] != lease.checkpoint:
                known = (lease.checkpoint, now, self._looked_at)
            since[lease.partition] = known
        self._since, self._looked_at = since, now

    def of(self, partition: str) -> tuple[float | None, float | None]:
        if partition not in self._since or self._looked_at is None:
            return None, None
        _, seen_at, not_before = self._since[partition]
        most_s = None if not_before is None else self._looked_at - not_before
        return self._looked_at - seen_at, most_s


def _astray(lease: Lease | None, extent: Extent) -> Gone | None:
    if lease is None:
        return None
    if lease.checkpoint.next_sequence < extent.first:
        return "retention"
    return "beyond end" if lease.checkpoint.next_sequence > extent.end else None


def _counted(
    lease: Lease, positions: Mapping[str, Checkpoint], astray: Mapping[str, Gone]
) -> Lease:
    """A position of another feed says nothing about this one: what counts is where its readers go
    on. What retention removed was lost, and is told as that."""
    if astray.get(lease.partition, "retention") == "retention":
        return lease
    return replace(lease, checkpoint=positions[lease.partition])


def _estimate(
    lag: PartitionLag,
    lease: Lease | None,
    astray: Gone | None,
    checkpoint_age: tuple[float | None, float | None],
    rate: Rate | None,
    *,
    still: bool,
) -> PartitionEstimate:
    return PartitionEstimate(
        partition=lag.partition,
        lag_events=lag.lag_events,
        lag_s=lag.lag_s,
        owner=lag.owner,
        owner_live=lag.owner_live,
        checkpoint=None if lease is None else lease.checkpoint.next_sequence,
        advanced=lease is not None and lease.advanced,
        attempts=0 if lease is None else lease.attempts,
        first=lag.first,
        end=lag.end,
        last_enqueued_at=lag.last_enqueued_at,
        astray=astray,
        lost_events=None if lag.counted and astray == "retention" else lag.lost_events,
        lease_age_s=None if lease is None else lease.age_s,
        checkpoint_age_s=checkpoint_age[0],
        checkpoint_age_max_s=checkpoint_age[1],
        processed_per_s=None if rate is None else rate.processed_per_s,
        incoming_per_s=None if rate is None else rate.incoming_per_s,
        catch_up_s=None if rate is None else rate.catch_up_s,
        stuck=still,
    )
