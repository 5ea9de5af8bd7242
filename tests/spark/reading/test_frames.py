"""How many tasks a job is cut into, and what is left of one in its worker."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import leasehold as lh
from leasehold.core.ranges import Range
from leasehold.spark.reading.frames import CORES_KEPT_S, Cores, Source, plan_reading
from leasehold.spark.reading.task import Address


def test_executors_that_come_and_go_are_noticed_without_asking_for_every_job() -> None:
    asked: list[int] = []
    now = 0.0

    class Context:
        @property
        def defaultParallelism(self) -> int:  # noqa: N802
            asked.append(2 + 8 * len(asked))
            return asked[-1]

    spark: Any = SimpleNamespace(sparkContext=Context())
    cores = Cores(spark, lambda: now)
    assert [cores(), cores()] == [2, 2]
    now = CORES_KEPT_S
    assert [cores(), cores()] == [10, 10]
    assert asked == [2, 10]


def test_cores_are_not_asked_for_before_the_first_job() -> None:
    spark: Any = SimpleNamespace()
    Cores(spark)


def test_garbage_collections_after_each_task_pass_over_what_packages_have_loaded(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="test", partitions=1)
    hub.send([lh.EventData(b"x")], partition_id=0)
    reading = plan_reading(Address.of(hub))

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int]]:
        assert sum(each.num_rows for each in batches) == 1
        yield gc.get_freeze_count(), len(gc.get_objects())

    for _ in range(2):  # a worker that had none before says 0
        tasks = [(Range(partition="0", first=0, end=1),)]
        ((kept, looked_at),) = Source(spark, reading, tasks).collect(count)
    assert kept > 10 * looked_at
