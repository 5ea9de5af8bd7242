import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from leasehold.feeds.container import Container
from leasehold.feeds.container_feed import ChangeFeed
from leasehold.testing import check_feed, check_split
from leasehold.testing.check_feed import FeedUnderTest
from leasehold.testing.check_split import SplitFeedUnderTest

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
    container = make_container(folder, ranges=3)
    opened = [container]
    keys = {}
    for number in count():
        keys.setdefault(container.range_of(f"k{number}"), f"k{number}")
        if len(keys) == 3:
            break

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        container.upsert_many([as_document(body, keys[partition]) for body in bodies])

    async def open_again() -> ChangeFeed:
        opened.append(Container.open(container.path))
        return opened[-1].feed(mode)

    async def forget(partition: str, sequence: int) -> None:
        container.trim(before_lsn=sequence)

    async def close() -> None:
        for each in opened:
            each.close()

    return FeedUnderTest(
        feed=container.feed(mode),
        send=send,
        open_again=open_again,
        forget=forget,
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
@pytest.mark.parametrize("rule", check_feed.CHECKS, ids=lambda rule: rule.__name__)
def test_container(rule: check_feed.Check, mode: str, tmp_path: Path) -> None:
    asyncio.run(check_feed.run_check(rule, partial(_feed_in, tmp_path, mode)))


@pytest.mark.parametrize("rule", check_feed.RETENTION_CHECKS, ids=lambda rule: rule.__name__)
def test_container_retention(rule: check_feed.Check, tmp_path: Path) -> None:
    asyncio.run(check_feed.run_check(rule, partial(_feed_in, tmp_path, "all")))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", check_split.CHECKS, ids=lambda rule: rule.__name__)
def test_container_splits(rule: check_split.Check, mode: str, tmp_path: Path) -> None:
    asyncio.run(check_split.run_check(rule, partial(_split_feed_in, tmp_path, mode)))


def test_check_split_runs_every_rule(tmp_path: Path) -> None:
    made = []

    async def make() -> SplitFeedUnderTest:
        made.append(await _split_feed_in(tmp_path, "latest"))
        return made[-1]

    asyncio.run(check_split.check_split(make))
    assert len(made) == len(check_split.CHECKS)
