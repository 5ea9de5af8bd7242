import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from support.cosmos import Served

from leasehold.feeds import open_feed
from leasehold.testing.check_columns import COLUMN_CHECKS
from leasehold.testing.check_feed import CHECKS, Check, FeedUnderTest, run_check
from leasehold.testing.check_feed_faults import CLOSE_CHECKS
from leasehold.testing.check_split import CHECKS as SPLIT_CHECKS
from leasehold.testing.check_split import Check as SplitCheck
from leasehold.testing.check_split import SplitFeedUnderTest
from leasehold.testing.check_split import run_check as run_split_check

MODES = ("latest", "all")
_numbers = count()


def as_document(body: bytes, key: str) -> dict[str, str]:
    return {"id": uuid4().hex, "key": key, "data": base64.b64encode(body).decode()}


def sent(change: Any) -> bytes:
    assert change.document["_lsn"] == change.lsn == change.sequence
    return base64.b64decode(change.document["data"])


def make(served: Served, ranges: int) -> tuple[Any, str]:
    """A container of its own, as the endpoint keeps it, and its URL."""
    name = f"c-{next(_numbers)}"
    body = {"id": name, "partitionKey": {"paths": ["/key"]}}
    throughput = {"x-ms-offer-throughput": str(6000 * ranges)}
    assert served.ask("POST", "dbs/homes/colls", body, throughput)[0] == 201
    address = served.url.removeprefix("http://").rstrip("/")
    return served.container("homes", name), f"cosmos://{address}/homes/{name}"


async def _feed_in(served: Served, mode: Any) -> FeedUnderTest:
    container, url = make(served, 3)
    feed = open_feed(url, mode)
    opened = [feed]
    keys: dict[str, str] = {}
    for number in count():
        keys.setdefault(container.range_of(f"k{number}"), f"k{number}")
        if len(keys) == 3:
            break

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        container.upsert_many([as_document(body, keys[partition]) for body in bodies])

    async def open_again() -> Any:
        opened.append(open_feed(url, mode))
        return opened[-1]

    async def close() -> None:
        for each in opened:
            each.close()

    return FeedUnderTest(
        feed=feed,
        send=send,
        open_again=open_again,
        sent=sent,
        secrets=[served.key],
        tells_whole_seconds=True,
        close=close,
    )


async def _split_feed_in(served: Served, mode: Any) -> SplitFeedUnderTest:
    container, url = make(served, 2)
    feed = open_feed(url, mode)
    opened = [feed]

    async def send(key: str, body: bytes) -> None:
        await asyncio.to_thread(container.insert, as_document(body, key))

    async def split(partition: str) -> None:
        container.split(partition)

    async def open_again() -> Any:
        opened.append(open_feed(url, mode))
        return opened[-1]

    async def close() -> None:
        for each in opened:
            each.close()

    return SplitFeedUnderTest(
        feed=feed,
        send=send,
        split=split,
        open_again=open_again,
        sent=sent,
        ends_at_once=True,
        time_step_s=1.1,
        close=close,
    )


@pytest.mark.parametrize(
    "rule", CHECKS + CLOSE_CHECKS + COLUMN_CHECKS, ids=lambda rule: rule.__name__
)
def test_cosmos(rule: Check, served: Served) -> None:
    asyncio.run(run_check(rule, partial(_feed_in, served, "latest")))


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_cosmos_with_all_versions(rule: Check, served: Served) -> None:
    asyncio.run(run_check(rule, partial(_feed_in, served, "all")))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", SPLIT_CHECKS, ids=lambda rule: rule.__name__)
def test_cosmos_splits(rule: SplitCheck, mode: str, served: Served) -> None:
    asyncio.run(run_split_check(rule, partial(_split_feed_in, served, mode)))
