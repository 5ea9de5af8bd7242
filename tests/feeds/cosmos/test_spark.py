"""Spark over a Cosmos DB container: read in the Python workers, through the same feed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from pyspark.sql import SparkSession
from support.cosmos import Served
from support.spark_pipeline import processor

import leasehold as lh
from leasehold.spark import register

pytestmark = pytest.mark.takes_s(30)


def test_spark_reads_a_container_and_handles_each_change_once_through_a_split(
    cosmos: Served, spark: SparkSession, tmp_path: Path
) -> None:
    url = cosmos.url_of("readings")
    with CosmosClient(cosmos.url, cosmos.key) as client:
        database = client.get_database_client("homes")
        database.create_container("readings", PartitionKey("/home_id"), offer_throughput=12_000)
    container = cosmos.container("homes", "readings")

    def write(first: int, end: int) -> None:
        container.upsert_many(
            {"id": str(n), "home_id": f"H{n % 10}", "value": float(n), "ts": n}
            for n in range(first, end)
        )

    seen: list[tuple[str, int, str, float]] = []

    def keep(frame: Any, batch: Any) -> None:
        rows = frame.select("range", "lsn", "home_id", "value").collect()
        seen.extend(tuple(row) for row in rows)

    write(0, 100)
    register(spark)
    frame = spark.read.format("leasehold").schema("lsn bigint, home_id string, value double")
    rows = frame.load(url).collect()
    assert Counter(row.home_id for row in rows) == {f"H{n}": 10 for n in range(10)}
    assert sorted(row.value for row in rows) == list(range(100))
    for end in (100, 150):
        write(len(seen), end)
        feed: Any = lh.open_feed(url)
        processor(spark, feed, tmp_path, on_batch=keep, at_source=None).run(until_drained=True)
        feed.close()
        assert sorted(value for *_, value in seen) == list(range(end))
        assert len({lsn for _, lsn, *_ in seen}) == end
        container.split("0") if end == 100 else None
    assert {range for range, *_ in seen} > {"0"}


def test_a_stream_of_a_container_goes_on_through_a_split_and_from_its_checkpoint(
    cosmos: Served, spark: SparkSession, tmp_path: Path
) -> None:
    with CosmosClient(cosmos.url, cosmos.key) as client:
        database = client.get_database_client("homes")
        database.create_container("streamed", PartitionKey("/home_id"), offer_throughput=12_000)
    container = cosmos.container("homes", "streamed")
    register(spark)

    def write(first: int, end: int) -> None:
        container.upsert_many(
            {"id": str(n), "home_id": f"H{n % 10}", "n": n} for n in range(first, end)
        )

    def batches(**options: Any) -> int:
        """How many were needed until all is read that was there at the start."""
        stream = spark.readStream.format("leasehold").options(**options)
        query = (
            stream.schema("range string, lsn bigint, n bigint")
            .load(cosmos.url_of("streamed"))
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return len([each for each in query.recentProgress if each.numInputRows])

    write(0, 100)
    assert batches(maxEventsPerTrigger=60) > 1
    write(100, 130)
    container.split("0")
    write(130, 150)
    batches()
    assert batches() == 0
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.n for row in rows) == list(range(150))
    assert len({row.lsn for row in rows}) == 150
    assert {row.range for row in rows} > {"0", "1"}
