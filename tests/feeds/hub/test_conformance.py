import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from support.clocks import SteppedClocks

from leasehold.core.event import EventData
from leasehold.feeds.hub import Hub
from leasehold.feeds.hub import file as hub_file
from leasehold.local.own_clock import ClockReading, Now
from leasehold.testing.check_columns import (
    COLUMN_CHECKS,
    COLUMN_RETENTION_CHECKS,
    COLUMN_ROLLBACK_CHECKS,
)
from leasehold.testing.check_feed import (
    CHECKS,
    GROWTH_CHECKS,
    RETENTION_CHECKS,
    Check,
    FeedUnderTest,
    check_feed,
    run_check,
)
from leasehold.testing.check_feed_faults import CLOCK_CHECKS, CLOSE_CHECKS, ROLLBACK_CHECKS

ALL = CHECKS + CLOSE_CHECKS + RETENTION_CHECKS + GROWTH_CHECKS + ROLLBACK_CHECKS + CLOCK_CHECKS
ALL += COLUMN_CHECKS + COLUMN_RETENTION_CHECKS + COLUMN_ROLLBACK_CHECKS


async def _hub_in(folder: Path) -> FeedUnderTest:
    path = folder / f"{uuid4().hex}.db"
    clocks = SteppedClocks()
    Hub.create(
        path,
        name="sensors",
        namespace="homes.local",
        partitions=3,
        retention_s=7 * 86_400,
        clocks=clocks,
    ).close()
    return _opened(path, clocks)


def _opened(path: Path, clocks: SteppedClocks) -> FeedUnderTest:
    hub = Hub.open(path, clocks=clocks)
    opened = [hub]

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        hub.send([EventData(body) for body in bodies], partition_id=partition)
        hub.trim()

    async def open_again() -> Hub:
        opened.append(Hub.open(path))
        return opened[-1]

    async def forget(partition: str, sequence: int) -> None:
        hub.trim_before(partition, sequence)

    async def add_partition() -> None:
        hub.raise_partitions(len(hub.properties().partition_ids) + 1)

    async def close() -> None:
        for each in opened:
            each.close()

    async def copy() -> Callable[[], Awaitable[FeedUnderTest]]:
        saved = path.with_suffix(".saved")
        with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(saved)) as copied:
            db.backup(copied)

        async def put_back() -> FeedUnderTest:
            await close()
            shutil.copyfile(saved, path)
            return _opened(path, clocks)

        return put_back

    return FeedUnderTest(
        feed=hub,
        send=send,
        open_again=open_again,
        forget=forget,
        add_partition=add_partition,
        copy=copy,
        step_clock=clocks.step,
        close=close,
    )


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.__name__)
def test_hub(rule: Check, tmp_path: Path) -> None:
    asyncio.run(run_check(rule, lambda: _hub_in(tmp_path)))


def test_check_feed_runs_every_rule(tmp_path: Path) -> None:
    made = []

    async def make() -> FeedUnderTest:
        made.append(await _hub_in(tmp_path))
        return made[-1]

    asyncio.run(check_feed(make))
    assert len(made) == len(ALL)


def test_a_hub_without_generations_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_file, "begin_generation", lambda last_offset: last_offset)
    with pytest.raises(AssertionError, match="was lost, and a read gave"):
        asyncio.run(run_check(ROLLBACK_CHECKS[0], lambda: _hub_in(tmp_path)))


def test_a_hub_that_goes_by_its_producers_clocks_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(db: object, reading: ClockReading) -> Now:
        return Now(reading.wall_us, reading.wall_us)

    monkeypatch.setattr(hub_file, "keep", believe)
    with pytest.raises(AssertionError):
        asyncio.run(run_check(CLOCK_CHECKS[0], lambda: _hub_in(tmp_path)))
