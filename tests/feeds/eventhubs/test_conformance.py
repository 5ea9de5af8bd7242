"""Every rule for feeds, through the official SDK and our endpoint."""

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from support.clocks import SteppedClocks
from support.eventhubs import KEY, Endpoint

from leasehold import Hub, open_feed
from leasehold.core.event import EventData
from leasehold.feeds import open_sender
from leasehold.ports import Feed
from leasehold.testing.check_columns import COLUMN_CHECKS, COLUMN_RETENTION_CHECKS
from leasehold.testing.check_feed import (
    CHECKS,
    GROWTH_CHECKS,
    RETENTION_CHECKS,
    Check,
    FeedUnderTest,
    run_check,
)
from leasehold.testing.check_feed_faults import CLOSE_CHECKS, ROLLBACK_CHECKS
from leasehold.testing.check_sender import (
    SENDER_CHECKS,
    SenderCheck,
    SenderUnderTest,
)

ALL = CHECKS + CLOSE_CHECKS + RETENTION_CHECKS + GROWTH_CHECKS + ROLLBACK_CHECKS[:2]
ALL += COLUMN_CHECKS + COLUMN_RETENTION_CHECKS


def _made(path: Path, clocks: SteppedClocks) -> Endpoint:
    Hub.create(path, name="sensors", namespace="homes.local", partitions=3, clocks=clocks).close()
    return Endpoint(path, clocks=clocks)


async def _subject(
    served: Endpoint, clocks: SteppedClocks, patch: pytest.MonkeyPatch
) -> FeedUnderTest:
    patch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", served.connection_string)
    url = f"{served.url}?fresh_s=0"
    opened = [open_feed(url)]

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        served.hub.send([EventData(body) for body in bodies], partition_id=partition)

    async def open_again() -> Feed:
        opened.append(open_feed(url))
        return opened[-1]

    async def forget(partition: str, sequence: int) -> None:
        served.hub.trim_before(partition, sequence)

    async def add_partition() -> None:
        served.hub.raise_partitions(len(served.hub.partition_ids) + 1)

    async def copy() -> Callable[[], Awaitable[FeedUnderTest]]:
        saved = served.path.with_suffix(".saved")
        with closing(sqlite3.connect(served.path)) as db, closing(sqlite3.connect(saved)) as copied:
            db.backup(copied)

        async def put_back() -> FeedUnderTest:
            opened[0].close()
            served.stop()
            shutil.copyfile(saved, served.path)
            served.start()
            return await _subject(served, clocks, patch)

        return put_back

    async def close() -> None:
        for each in opened:
            each.close()

    return FeedUnderTest(
        feed=opened[0],
        send=send,
        open_again=open_again,
        forget=forget,
        add_partition=add_partition,
        copy=copy,
        step_clock=clocks.step,
        secrets=(KEY, "SharedAccessKey"),
        close=close,
    )


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.__name__)
def test_event_hubs(rule: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = SteppedClocks()
    served = _made(tmp_path / f"{uuid4().hex}.db", clocks)
    try:
        asyncio.run(run_check(rule, lambda: _subject(served, clocks, monkeypatch)))
    finally:
        served.stop()


@pytest.mark.parametrize("rule", SENDER_CHECKS, ids=lambda rule: rule.__name__)
def test_sending(rule: SenderCheck, served: Endpoint) -> None:
    url = f"{served.url}?fresh_s=0"

    async def make() -> SenderUnderTest:
        sender, feed = open_sender(url), open_feed(url)

        async def close() -> None:
            sender.close()
            feed.close()

        return SenderUnderTest(sender=sender, feed=feed, close=close)

    asyncio.run(run_check(rule, make))
