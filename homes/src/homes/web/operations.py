"""What operators see: instances, who owns what, lag, rates, and moves as they happen.

Looked at from outside, once a second for all pages that are open, whether or not the groups run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from homes.local.places import ACTIVITY
from leasehold import (
    DeadLetters,
    Estimate,
    Estimator,
    Feed,
    LagMetrics,
    Lease,
    LeaseholdError,
    LeaseStore,
    LetterFilter,
    Registry,
    Snapshot,
    error_text,
)

log = logging.getLogger("leasehold")
LOOK_S = 1.0
MOVES_KEPT = 200
MOVES_SHOWN = 100
SAMPLES_KEPT = 300
LATE = 0.5
"""An owner that has let so much of its time to live pass without renewing is no longer there."""

How = Literal["claimed", "moved", "failed over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedGroup:
    """A group to look at: its feed, and the store that has its leases."""

    feed: Feed
    group: str
    store: LeaseStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseMove:
    at: float
    group: str
    partition: str
    owner_before: str | None
    owner: str | None
    how: How


@dataclass(slots=True)
class _Group:
    watched: WatchedGroup
    estimator: Estimator
    metrics: LagMetrics
    estimate: Estimate | None = None
    snapshot: Snapshot | None = None
    owners: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """By partition: who had it when somebody last did, and whether that one seemed gone."""
    samples: deque[tuple[float, float, float, int]] = field(
        default_factory=lambda: deque(maxlen=SAMPLES_KEPT)
    )
    """Time, events in and done per second, lag."""
    failing: str = ""


class Operations:
    def __init__(
        self,
        groups: Sequence[WatchedGroup],
        *,
        dead_letters: DeadLetters | None = None,
        registry: Registry | None = None,
        wall: Callable[[], float] = time.time,
        cycles: Callable[[], Mapping[str, Any]] = dict,
        charges: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """``cycles`` tells the latest cycle of each instance that works in cycles, ``charges`` the
        request units of each process that is charged some."""
        self.registry = registry or Registry()
        """What ``/metrics`` gives out."""
        self._groups = []
        for each in groups:
            estimator = Estimator(each.feed, group=each.group, store=each.store, rate_over_s=10)
            metrics = LagMetrics(estimator.group, self.registry)
            self._groups.append(_Group(each, estimator, metrics))
        self._dead_letters, self._wall = dead_letters, wall
        self._read_cycles, self._cycles = cycles, dict[str, Any]()
        self._read_charges, self._charges = charges, dict[str, Any]()
        self._dead: dict[str, int] = {}
        self._failing = ""
        self.moves: deque[LeaseMove] = deque(maxlen=MOVES_KEPT)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        for group in self._groups:
            what = f"group {group.watched.group}"
            group.failing = await self._tried(self._look_at(group), what, group.failing)
        self._failing = await self._tried(self._count_dead(), "dead letters", self._failing)
        self._cycles = dict(await asyncio.to_thread(self._read_cycles))
        self._charges = dict(await asyncio.to_thread(self._read_charges))

    async def _tried(self, looking: Awaitable[None], what: str, failing: str) -> str:
        """Why it failed, if it did. Whatever it is: a watch that ends unseen would leave the page
        with old numbers."""
        try:
            await looking
        except LeaseholdError as error:
            found, odd = str(error), False
        except Exception as error:
            found, odd = error_text(error), True
        else:
            return ""
        text = f"{what} cannot be looked at now: {found}"
        if text != failing:
            log.warning("%s", text, exc_info=odd)
        return text

    async def _count_dead(self) -> None:
        if self._dead_letters is not None:
            counts = await self._dead_letters.count(LetterFilter(redriven=False))
            self._dead = {group.name: count for group, count in counts.items()}

    async def _look_at(self, group: _Group) -> None:
        snapshot = await group.watched.store.snapshot(group.estimator.group)
        estimate = await group.estimator.observe()
        first = group.snapshot is None
        for lease in sorted(snapshot.leases, key=lambda lease: _order(lease.partition)):
            move = self._moved(group, lease)
            if move is not None and not first:
                self.moves.appendleft(move)
        group.snapshot, group.estimate = snapshot, estimate
        group.metrics.show(estimate)
        group.samples.append(
            (
                estimate.at,
                estimate.incoming_per_s or 0.0,
                estimate.processed_per_s or 0.0,
                estimate.lag_events,
            )
        )

    def _moved(self, group: _Group, lease: Lease) -> LeaseMove | None:
        before, gone = group.owners.get(lease.partition, (None, False))
        if lease.owner is None:
            return None  # on its way; who comes next is what matters
        group.owners[lease.partition] = (lease.owner, lease.age_s > LATE * lease.ttl_s)
        if lease.owner == before:
            return None
        how: How = "claimed" if before is None else "failed over" if gone else "moved"
        return LeaseMove(
            at=self._wall(),
            group=group.watched.group,
            partition=lease.partition,
            owner_before=before,
            owner=lease.owner,
            how=how,
        )

    def estimate(self, name: str) -> Estimate | None:
        """Of that group, when it was last looked at."""
        found = (each.estimate for each in self._groups if each.watched.group == name)
        return next(found, None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "groups": [_group_dict(group, self._cycles) for group in self._groups],
            "moves": [
                {
                    "at_ms": int(move.at * 1000),
                    "group": move.group,
                    "partition": move.partition,
                    "from": move.owner_before,
                    "to": move.owner,
                    "how": move.how,
                }
                for move in list(self.moves)[:MOVES_SHOWN]
            ],
            "dead_letters": dict(self._dead),
            "request_units_per_s": {name: each["per_s"] for name, each in self._charges.items()},
            "failing": self._failing,
        }


def _group_dict(group: _Group, cycles: Mapping[str, Any]) -> dict[str, Any]:
    estimate, snapshot = group.estimate, group.snapshot
    found: dict[str, Any] = {
        "name": group.watched.group,
        "feed": group.watched.feed.name,
        "failing": group.failing,
        "instances": [],
        "partitions": [],
        "lag_events": None,
        "lag_s": None,
        "incoming_per_s": None,
        "processed_per_s": None,
        "samples": [
            {"at_ms": int(at * 1000), "in": round(come, 1), "done": round(done, 1), "lag": lag}
            for at, come, done, lag in list(group.samples)[-120:]
        ],
    }
    if estimate is None or snapshot is None:
        return found
    owned: dict[str, list[str]] = {}
    for each in estimate.partitions:
        if each.owner is not None:
            owned.setdefault(each.owner, []).append(each.partition)
    ages = {member.instance: member.age_s for member in snapshot.members}
    names = sorted(set(estimate.members) | set(owned))
    return found | {
        "instances": [
            {
                "name": name,
                "live": name in estimate.members,
                "seen_s": _rounded(ages.get(name)),
                "partitions": sorted(owned.get(name, []), key=_order),
                "cycle": cycles.get(name) if group.watched.group == ACTIVITY else None,
            }
            for name in names
        ],
        "partitions": [
            {
                "id": each.partition,
                "owner": each.owner,
                "live": each.owner_live,
                "lag_events": each.lag_events,
                "lag_s": _rounded(each.lag_s),
                "processed_per_s": _rounded(each.processed_per_s),
                "stuck": each.stuck,
                "attempts": each.attempts,
            }
            for each in sorted(estimate.partitions, key=lambda each: _order(each.partition))
        ],
        "lag_events": estimate.lag_events,
        "lag_s": _rounded(estimate.lag_s),
        "incoming_per_s": _rounded(estimate.incoming_per_s),
        "processed_per_s": _rounded(estimate.processed_per_s),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _order(partition: str) -> tuple[int, int, str]:
    """Numbers as numbers, then whatever else there is."""
    number = partition.isascii() and partition.isdigit()
    return (0, int(partition), "") if number else (1, 0, partition)
