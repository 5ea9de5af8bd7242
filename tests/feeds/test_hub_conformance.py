import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from leasehold.core.event import EventData
from leasehold.feeds.hub import Hub
from leasehold.testing.check_feed import (
    CHECKS,
    GROWTH_CHECKS,
    RETENTION_CHECKS,
    Check,
    FeedUnderTest,
    check_feed,
    run_check,
)


async def _hub_in(folder: Path) -> FeedUnderTest:
    path = folder / f"{uuid4().hex}.db"
    hub = Hub.create(path, name="sensors", namespace="homes.local", partitions=3)
    opened = [hub]

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        hub.send([EventData(body) for body in bodies], partition_id=partition)

    async def open_again() -> Hub:
        opened.append(Hub.open(path))
        return opened[-1]

    async def forget(partition: str, sequence: int) -> None:
        hub.trim_before(partition, sequence)

    async def add_partition() -> None:
        hub.raise_partitions(len(hub.partition_ids()) + 1)

    async def close() -> None:
        for each in opened:
            each.close()

    return FeedUnderTest(
        feed=hub,
        send=send,
        open_again=open_again,
        forget=forget,
        add_partition=add_partition,
        close=close,
    )


@pytest.mark.parametrize(
    "rule", CHECKS + RETENTION_CHECKS + GROWTH_CHECKS, ids=lambda rule: rule.__name__
)
def test_hub(rule: Check, tmp_path: Path) -> None:
    asyncio.run(run_check(rule, lambda: _hub_in(tmp_path)))


def test_check_feed_runs_every_rule(tmp_path: Path) -> None:
    made = []

    async def make() -> FeedUnderTest:
        made.append(await _hub_in(tmp_path))
        return made[-1]

    asyncio.run(check_feed(make))
    assert len(made) == len(CHECKS + RETENTION_CHECKS + GROWTH_CHECKS)
