"""Spark over an event hub: over AMQP, and over the Kafka endpoint where the namespace has one."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.eventhubs import KEY, Endpoint, kafka_endpoint, send_to_both
from support.kafka import Kafka
from support.spark_pipeline import counted, processor, reading

import leasehold as lh
from leasehold.feeds.eventhubs import EventHubsFeed
from leasehold.spark import register

pytestmark = [pytest.mark.servers, pytest.mark.takes_s(45)]
SECRET = "AZURE_EVENTHUBS_CONNECTION_STRING"


def fill(served: Endpoint, broker: Kafka, first: int, end: int) -> None:
    for partition in range(4):
        numbers = [n for n in range(first, end) if n % 4 == partition]
        bodies = [reading(n % 10, n // 20) for n in numbers]
        send_to_both(served.hub, broker, str(partition), bodies)


def expected(events: int) -> Counter[tuple[str, int]]:
    return Counter((f"H{n % 10}", n // 20) for n in range(events))


def test_spark_counts_every_event_once_by_either_transport_and_keeps_the_secret(
    served: Endpoint, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the executors had been started with it; their plans must not say it.
    environment = spark.sparkContext.environment
    monkeypatch.setitem(environment, SECRET, served.connection_string)
    with kafka_endpoint(served.connection_string) as broker:
        broker.topic(4, served.hub.name)
        over_kafka = f"{served.url}?kafka={broker.secure}"
        for end, url, kafka in ((200, served.url, False), (400, over_kafka, True)):
            fill(served, broker, end - 200, end)
            feed = lh.open_feed(url)
            assert isinstance(feed, EventHubsFeed)
            processor(spark, feed, tmp_path).run(until_drained=True)
            assert (feed._kafka.if_there() is not None) == kafka
            feed.close()
            assert counted(tmp_path) == expected(end)
        register(spark)
        frame = spark.read.format("leasehold").load(over_kafka)
        found = [json.loads(row.body)["home_id"] for row in frame.select("body").collect()]
        assert Counter(found) == Counter(f"H{n % 10}" for n in range(400))
        plan = frame._jdf.queryExecution().toString()
        assert "leasehold" in plan.lower()
        assert KEY not in plan
        assert "SharedAccessKey" not in plan
