"""What an instance costs its lease store while nothing moves: requests per balance interval."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from uuid import uuid4

from leasehold.bench.row import Row
from leasehold.clock import SystemClock
from leasehold.core.lifecycle import Reason
from leasehold.ports import LeaseStore
from leasehold.processor.host import Host, Settings
from leasehold.processor.pump import Hold
from leasehold.stores import open_store
from leasehold.testing.sim_world import SimFeed

OWNED = (1, 16, 64)
INTERVALS = 10
SETTINGS = Settings(lease_ttl_s=30.0, balance_interval_s=0.5)


def run(urls: Sequence[str]) -> Iterator[Row]:
    for url in urls:
        for partitions in OWNED:
            counts = asyncio.run(_steady(open_store(url), partitions))
            per_interval = {verb: count / INTERVALS for verb, count in sorted(counts.items())}
            detail = ", ".join(f"{verb} {n:g}" for verb, n in per_interval.items())
            yield Row(
                what=f"{url.partition(':')[0]}, {partitions} owned: {detail}",
                value=sum(per_interval.values()),
                unit="requests per interval",
            )


async def _steady(store: LeaseStore, partitions: int) -> Counter[str]:
    """Requests over some intervals, once the instance has all the partitions."""
    problems: list[BaseException] = []
    host = Host(
        feed=SimFeed(partitions),
        group=f"bench-{uuid4().hex[:8]}",
        store=store,
        instance="bench",
        incarnation=uuid4().hex,
        start_worker=_Idle,
        clock=SystemClock(),
        report=lambda what, error: problems.append(error),
        settings=SETTINGS,
    )
    running = asyncio.ensure_future(host.run())
    try:
        while len(host.workers) < partitions and not problems:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.2 * SETTINGS.balance_interval_s)
        before = store.requests.copy()
        await asyncio.sleep(INTERVALS * SETTINGS.balance_interval_s)
        counts = store.requests - before
        host.stop()
        await running
    finally:
        running.cancel()
        await store.close()
    if problems:
        raise problems[0]
    return counts


class _Idle:
    """Holds a lease and does nothing with it."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self._over = asyncio.Event()

    def let_go(self, offered_to: str | None, reason: Reason) -> None:
        self._over.set()

    def lose(self) -> None:
        self._over.set()

    async def run(self) -> Reason:
        await self._over.wait()
        return Reason.SHUTDOWN
