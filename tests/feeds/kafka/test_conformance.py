"""``check_feed`` on real brokers: one node, and three."""

import asyncio
import time
from collections.abc import Sequence

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from support.blocking import result_of
from support.kafka import Kafka

from leasehold.errors import FeedUnavailable
from leasehold.feeds.kafka import KafkaFeed
from leasehold.testing.check_columns import COLUMN_CHECKS, COLUMN_RETENTION_CHECKS
from leasehold.testing.check_feed import (
    CHECKS,
    GROWTH_CHECKS,
    RETENTION_CHECKS,
    Check,
    FeedUnderTest,
    check_feed,
    run_check,
)
from leasehold.testing.check_feed_faults import CLOSE_CHECKS

pytestmark = pytest.mark.takes_s(50)

ALL = CHECKS + CLOSE_CHECKS + RETENTION_CHECKS + GROWTH_CHECKS
ALL += COLUMN_CHECKS + COLUMN_RETENTION_CHECKS


async def topic_of(server: Kafka) -> FeedUnderTest:
    topic = server.topic(partitions=3)
    producer = Producer({"bootstrap.servers": server.brokers, "linger.ms": 0, "log_level": 2})
    opened = [KafkaFeed.from_url(server.url(topic))]

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            producer.produce(topic, body, partition=int(partition))
        assert producer.flush(30) == 0

    async def open_again() -> KafkaFeed:
        opened.append(KafkaFeed.from_url(server.url(topic)))
        return opened[-1]

    async def forget(partition: str, sequence: int) -> None:
        wanted = TopicPartition(topic, int(partition), sequence)
        for future in server.admin.delete_records([wanted]).values():
            future.result(30)

    async def add_partition() -> None:
        server.admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
        server.await_partitions(topic, 4)

    async def close() -> None:
        for each in opened:
            each.close()

    return FeedUnderTest(
        feed=opened[0],
        send=send,
        open_again=open_again,
        forget=forget,
        add_partition=add_partition,
        close=close,
    )


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.__name__)
def test_kafka(rule: Check, kafka: Kafka) -> None:
    asyncio.run(run_check(rule, lambda: topic_of(kafka)))


def test_three_nodes(kafka_nodes: Kafka) -> None:
    """What a test cannot do to Kafka is left out: to put back an older copy, to set its clock."""
    asyncio.run(check_feed(lambda: topic_of(kafka_nodes), rollback=False, clock=False))


def test_a_broker_that_is_gone_is_asked_no_more_once_others_lead(kafka_nodes: Kafka) -> None:
    """Leaders and controller are looked up again; the client library would do so every 5 minutes,
    and keep a core busy meanwhile."""
    topic = kafka_nodes.topic(partitions=12)  # some of which each node leads
    producer = Producer({"bootstrap.servers": kafka_nodes.brokers, "log_level": 2})
    for partition in range(12):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(60) == 0
    feed = KafkaFeed.from_url(kafka_nodes.url(topic))

    def ends() -> Sequence[int]:
        try:
            return [end.next_sequence for end in result_of(feed.ends()).values()]
        except FeedUnavailable:
            return []

    assert ends() == [1] * 12
    asked = feed._client._admin.list_topics(timeout=60).controller_id
    with kafka_nodes.nodes[asked - 1].down():
        deadline = time.monotonic() + 60
        while ends() != [1] * 12:
            assert time.monotonic() < deadline
    feed.close()
