"""What an instance costs its lease store while nothing moves: requests per balance interval."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

from benchmarks.row import Row
from leasehold.clock import SystemClock
from leasehold.core.lifecycle import Reason
from leasehold.ports import LeaseStore
from leasehold.processor.host import Host
from leasehold.processor.work import Hold
from leasehold.settings import Timing
from leasehold.stores import open_store
from leasehold.testing.sim_world import SimFeed

OWNED = (1, 16, 64)
INSTANCES = (1, 2, 4, 8)
SHARED = 16
"""Partitions that several instances share, to see what scaling out costs."""
INTERVALS = 10
SETTINGS = Timing(lease_ttl_s=30.0, balance_interval_s=0.5)


def run(urls: Sequence[str]) -> Iterator[Row]:
    for url in urls:
        kind = url.partition(":")[0]
        for partitions in OWNED:
            per_interval = asyncio.run(_steady(url, partitions, instances=1))
            detail = ", ".join(f"{verb} {n:g}" for verb, n in sorted(per_interval.items()))
            yield Row(
                what=f"{kind}, {partitions} owned: {detail}",
                value=sum(per_interval.values()),
                unit="requests per interval",
            )
        for instances in INSTANCES:
            yield Row(
                what=f"{kind}, {instances} instances share {SHARED} partitions, all together",
                value=sum(asyncio.run(_steady(url, SHARED, instances)).values()),
                unit="requests per interval",
            )


async def _steady(url: str, partitions: int, instances: int) -> dict[str, float]:
    """Requests per interval, by verb, once the partitions are dealt out."""
    problems: list[BaseException] = []
    group, feed = f"bench-{uuid4().hex[:8]}", SimFeed(partitions)
    shared = open_store(url) if url == "memory://" else None
    stores = [shared or open_store(url) for _ in range(instances)]
    hosts = [_host(feed, group, store, f"i{n}", problems) for n, store in enumerate(stores)]
    running = [asyncio.ensure_future(host.run()) for host in hosts]
    try:
        while sum(len(host.workers) for host in hosts) < partitions and not problems:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(6 * SETTINGS.balance_interval_s)
        counters = {id(store): store.requests for store in stores}.values()
        before = sum((counter.copy() for counter in counters), Counter[str]())
        await asyncio.sleep(INTERVALS * SETTINGS.balance_interval_s)
        counts = sum(counters, Counter[str]()) - before
        for host in hosts:
            host.stop()
        await asyncio.wait(running)
    finally:
        for task in running:
            task.cancel()
        for store in stores:
            await store.close()
    if problems:
        raise problems[0]
    return {verb: count / INTERVALS for verb, count in counts.items()}


def _host(
    feed: SimFeed, group: str, store: LeaseStore, instance: str, problems: list[BaseException]
) -> Host:
    return Host(
        feed=feed,
        group=group,
        store=store,
        instance=instance,
        incarnation=uuid4().hex,
        start_worker=lambda hold: Idle(hold, store),
        clock=SystemClock(),
        report=lambda what, error: problems.append(error),
        settings=SETTINGS,
    )


class Idle:
    """Holds a lease and does nothing with it, until it is to let it go."""

    def __init__(self, hold: Hold, store: LeaseStore) -> None:
        self.hold, self._store = hold, store
        self._over = asyncio.Event()
        self._release = False

    def let_go(self, offered_to: str | None, reason: Reason) -> None:
        self.hold.lease = replace(self.hold.lease, offered_to=offered_to)
        self._release = True
        self._over.set()

    def lose(self) -> None:
        self._over.set()

    def wake(self) -> None:
        pass

    async def run(self) -> Reason:
        await self._over.wait()
        if self._release:
            await self._store.release([self.hold.lease])
        return Reason.SHUTDOWN
