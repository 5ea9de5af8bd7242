"""``check_sender`` on a hub and on a Kafka topic."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from support.kafka import Kafka

from leasehold.errors import BadInput
from leasehold.feeds import open_feed, open_sender
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub
from leasehold.testing.check_sender import (
    SENDER_CHECKS,
    SenderCheck,
    SenderUnderTest,
    check_sender,
)
from leasehold.testing.run_check import run_check


def opened(url: str) -> SenderUnderTest:
    sender, feed = open_sender(url), open_feed(url)

    async def close() -> None:
        sender.close()
        feed.close()

    return SenderUnderTest(sender=sender, feed=feed, close=close)


async def hub_in(folder: Path) -> SenderUnderTest:
    path = folder / f"{uuid4().hex}.db"
    Hub.create(path, name="sensors", namespace="homes.local", partitions=3).close()
    return opened(str(path))


async def topic_of(server: Kafka) -> SenderUnderTest:
    return opened(server.url(server.topic()))


@pytest.mark.parametrize("rule", SENDER_CHECKS, ids=lambda rule: rule.__name__)
def test_kafka(rule: SenderCheck, kafka: Kafka) -> None:
    asyncio.run(run_check(rule, lambda: topic_of(kafka)))


def test_hub(tmp_path: Path) -> None:
    made = []

    async def make() -> SenderUnderTest:
        made.append(await hub_in(tmp_path))
        return made[-1]

    asyncio.run(check_sender(make))
    assert len(made) == len(SENDER_CHECKS)


def test_what_takes_no_events_is_refused(tmp_path: Path) -> None:
    Container.create(tmp_path / "c.db", name="c", namespace="n", partition_key="/id").close()
    with pytest.raises(BadInput, match="container: write documents"):
        open_sender(tmp_path / "c.db")
    with pytest.raises(BadInput, match="nothing can be sent to carrier-pigeon://"):
        open_sender("carrier-pigeon://roof")
