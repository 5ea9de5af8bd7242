import asyncio
import base64
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.clocks import SteppedClocks

from leasehold.feeds.container import Container
from leasehold.feeds.container.change_feed import ChangeFeed
from leasehold.testing.check_columns import (
    COLUMN_CHECKS,
    COLUMN_RETENTION_CHECKS,
    COLUMN_ROLLBACK_CHECKS,
)
from leasehold.testing.check_feed import CHECKS, RETENTION_CHECKS, Check, FeedUnderTest, run_check
from leasehold.testing.check_feed_faults import CLOCK_CHECKS, CLOSE_CHECKS, ROLLBACK_CHECKS
from leasehold.testing.check_split import CHECKS as SPLIT_CHECKS
from leasehold.testing.check_split import Check as SplitCheck
from leasehold.testing.check_split import SplitFeedUnderTest, check_split
from leasehold.testing.check_split import run_check as run_split_check

MODES = ("latest", "all")


def make_container(folder: Path, **settings: Any) -> Container:
    made = {"name": "alerts", "namespace": "homes.local", "partition_key": "/key"} | settings
    return Container.create(folder / f"{uuid4().hex}.db", **made)


def as_document(body: bytes, key: str) -> dict[str, str]:
    return {"id": uuid4().hex, "key": key, "data": base64.b64encode(body).decode()}


def sent(change: Any) -> bytes:
    assert change.document["_lsn"] == change.lsn == change.sequence
    return base64.b64decode(change.document["data"])


async def _feed_in(folder: Path, mode: Any) -> FeedUnderTest:
    clocks = SteppedClocks()
    container = make_container(folder, ranges=3, ttl_s=7 * 86_400, clocks=clocks)
    container.close()
    return _opened(container.path, mode, clocks)


def _opened(path: Path, mode: Any, clocks: SteppedClocks) -> FeedUnderTest:
    container = Container.open(path, clocks=clocks)
    opened = [container]
    keys: dict[str, str] = {}
    for number in count():
        keys.setdefault(container.range_of(f"k{number}"), f"k{number}")
        if len(keys) == 3:
            break

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        container.upsert_many([as_document(body, keys[partition]) for body in bodies])
        container.trim()

    async def open_again() -> ChangeFeed:
        opened.append(Container.open(container.path))
        return opened[-1].feed(mode)

    async def forget(partition: str, sequence: int) -> None:
        container.trim(before_lsn=sequence)

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
            return _opened(path, mode, clocks)

        return put_back

    return FeedUnderTest(
        feed=container.feed(mode),
        send=send,
        open_again=open_again,
        forget=forget,
        copy=copy,
        step_clock=clocks.step,
        sent=sent,
        close=close,
    )


async def _split_feed_in(folder: Path, mode: Any) -> SplitFeedUnderTest:
    container = make_container(folder, ranges=2)
    opened = [container]

    async def send(key: str, body: bytes) -> None:
        await asyncio.to_thread(container.insert, as_document(body, key))

    async def split(partition: str) -> None:
        container.split(partition)

    async def open_again() -> ChangeFeed:
        opened.append(Container.open(container.path))
        return opened[-1].feed(mode)

    async def close() -> None:
        for each in opened:
            each.close()

    return SplitFeedUnderTest(
        feed=container.feed(mode),
        send=send,
        split=split,
        open_again=open_again,
        sent=sent,
        close=close,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "rule",
    CHECKS + CLOSE_CHECKS + ROLLBACK_CHECKS + CLOCK_CHECKS + COLUMN_CHECKS + COLUMN_ROLLBACK_CHECKS,
    ids=lambda rule: rule.__name__,
)
def test_container(rule: Check, mode: str, tmp_path: Path) -> None:
    asyncio.run(run_check(rule, partial(_feed_in, tmp_path, mode)))


@pytest.mark.parametrize(
    "rule", RETENTION_CHECKS + COLUMN_RETENTION_CHECKS, ids=lambda rule: rule.__name__
)
def test_container_retention(rule: Check, tmp_path: Path) -> None:
    asyncio.run(run_check(rule, partial(_feed_in, tmp_path, "all")))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", SPLIT_CHECKS, ids=lambda rule: rule.__name__)
def test_container_splits(rule: SplitCheck, mode: str, tmp_path: Path) -> None:
    asyncio.run(run_split_check(rule, partial(_split_feed_in, tmp_path, mode)))


def test_check_split_runs_every_rule(tmp_path: Path) -> None:
    made = []

    async def make() -> SplitFeedUnderTest:
        made.append(await _split_feed_in(tmp_path, "latest"))
        return made[-1]

    asyncio.run(check_split(make))
    assert len(made) == len(SPLIT_CHECKS)
