"""Spark over a Kafka topic: read in the Python workers, through the same feed."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from pyspark.sql import SparkSession
from support.blocking import result_of
from support.kafka import Kafka
from support.spark_pipeline import counted, processor, reading

import leasehold as lh
from leasehold.spark import register

pytestmark = pytest.mark.takes_s(45)


def filled(server: Kafka, events: int, first: int = 0, topic: str | None = None) -> str:
    topic = topic or server.topic(partitions=4)
    sender = lh.open_sender(server.url(topic))
    numbers = range(first, first + events)
    sender.send_columns(
        [f"H{n % 10}" for n in numbers], [reading(n % 10, n // 20) for n in numbers]
    )
    sender.close()
    return topic


def expected(events: int) -> Counter[tuple[str, int]]:
    return Counter((f"H{n % 10}", n // 20) for n in range(events))


def mirrored(server: Kafka, topic: str) -> int:
    """How many events Kafka's own tools would say that the group has behind it."""
    wanted = ConsumerGroupTopicPartitions("activity", [TopicPartition(topic, p) for p in range(4)])
    found = server.admin.list_consumer_group_offsets([wanted])["activity"].result(60)
    return sum(max(0, each.offset) for each in found.topic_partitions)


def test_a_spark_processor_counts_every_event_of_a_topic_once(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic = filled(kafka, 400)
    for events in (400, 600):
        feed: Any = lh.open_feed(kafka.url(topic))
        processor(spark, feed, tmp_path, mirror_offsets=True).run(until_drained=True)
        feed.close()
        assert counted(tmp_path) == expected(events)
        assert mirrored(kafka, topic) == events
        filled(kafka, 200, first=400, topic=topic)


def test_gaps_of_transactions_are_passed_by_jobs(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic = kafka.topic(partitions=4)
    producer = Producer(
        {"bootstrap.servers": kafka.brokers, "log_level": 2, "transactional.id": topic}
    )
    producer.init_transactions(60)
    for commit in (True, False, True, False):
        producer.begin_transaction()
        for n in range(40):
            producer.produce(topic, reading(n % 10, n // 20), partition=n % 4)
        producer.flush(60)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    feed: Any = lh.open_feed(kafka.url(topic))
    # Each transaction ends with a mark, which the broker writes when it has said that it ended.
    while {each.end for each in result_of(feed.extents())} != {4 * (10 + 1)}:
        time.sleep(0.1)
    processor(spark, feed, tmp_path).run(until_drained=True)
    assert counted(tmp_path) == expected(40) + expected(40)
    ends = {each.partition: each.end for each in result_of(feed.extents())}
    feed.close()
    snapshot = leases(tmp_path, feed)
    assert snapshot == ends


def leases(folder: Path, feed: Any) -> dict[str, int]:
    import asyncio  # noqa: PLC0415

    async def look() -> dict[str, int]:
        store = lh.open_store(f"sqlite:///{folder}/leases.db")
        group = lh.Group(namespace=feed.namespace, feed=feed.name, name="activity")
        found = (await store.snapshot(group)).leases
        await store.close()
        return {each.partition: each.checkpoint.next_sequence for each in found}

    return asyncio.run(look())


def test_the_data_source_reads_a_topic_and_streams_what_comes(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic = filled(kafka, 100)
    register(spark)
    url = kafka.url(topic)
    frame = spark.read.format("leasehold").load(url)
    bodies = [json.loads(row.body)["home_id"] for row in frame.select("body").collect()]
    assert Counter(bodies) == Counter(f"H{n % 10}" for n in range(100))

    def stream() -> None:
        stream = spark.readStream.format("leasehold").load(url)
        query = (
            stream.select("sequence", "partition")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    stream()
    filled(kafka, 50, first=100, topic=topic)
    stream()
    found = [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert len(found) == len(set(found)) == 150
