"""Many small cycles on a backlog: jobs that overlap, an instance that joins, what is told of it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.spark_pipeline import counted, make_hub, processor, sent

import leasehold as lh
from leasehold.spark import DeltaSink, Progress, SparkBatch
from leasehold.spark import processor as processor_module
from leasehold.spark.reading.frames import Source
from leasehold.spark.reading.task import Reading

SMALL = {"max_events": 100, "cycle_s": 0.5}


def test_jobs_overlap_but_never_with_the_same_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 800)
    sink, lock = DeltaSink(tmp_path / "table"), threading.Lock()
    active: list[str] = []
    begun: list[SparkBatch] = []
    third, ends = threading.Event(), dict[str, int]()

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        names = [each.partition for each in batch.ranges]
        with lock:
            assert not set(names) & set(active), "a partition is in one job at a time"
            active.extend(names)
            begun.append(batch)
            number = len(begun)
            for each in batch.ranges:
                assert ends.get(each.partition, 0) == each.first, "in order, with none left out"
        if number == 3:
            third.set()
        if number == 2:  # the first one has all partitions
            assert third.wait(60), "another job begins before the second one has ended"
        try:
            sink.write(df, batch)
            with lock:
                ends.update((each.partition, each.end) for each in batch.ranges)
        finally:  # on a busy machine it may be overdue, and comes again
            with lock:
                active[:] = [name for name in active if name not in names]

    processor(spark, hub, tmp_path, on_batch=on_batch, **SMALL).run(until_drained=True)
    assert len(begun) > 2
    assert counted(tmp_path) == sent(hub)


def test_spark_is_warm_before_any_lease_is_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or partitions that another instance could work on would wait for it to load. So they would
    for a worker that only begins with the first job of several tasks."""
    monkeypatch.setattr(processor_module, "_warm", WeakSet[SparkSession]())
    opened: list[bool] = []
    tasks: list[int] = []

    class Recorded(Source):
        def __init__(self, spark: SparkSession, reading: Reading, ranges: Any, *more: Any) -> None:
            tasks.append(len(ranges))
            super().__init__(spark, reading, ranges, *more)

    monkeypatch.setattr(processor_module, "Source", Recorded)

    def on_open(context: lh.Context) -> None:
        opened.append(spark in processor_module._warm)

    hub = make_hub(tmp_path, 20)
    processor(spark, hub, tmp_path, on_partition_open=on_open).run(until_drained=True)
    assert opened == 4 * [True]
    assert tasks[0] == spark.sparkContext.defaultParallelism == 2


def test_a_stop_does_not_wait_for_spark_to_warm_up(spark: SparkSession, tmp_path: Path) -> None:
    worker = processor(spark, make_hub(tmp_path, 20), tmp_path)
    begun, end = threading.Event(), threading.Event()

    def warm_up() -> None:
        begun.set()
        end.wait()

    worker._warm_up = warm_up  # type: ignore[method-assign]
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert begun.wait(60)
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        end.set()


def test_the_first_job_is_small_and_each_tells_its_target_and_size(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 30_000, partitions=2)
    told: list[Progress] = []
    worker = processor(spark, hub, tmp_path, on_progress=told.append, overlap=False)
    worker.run(until_drained=True)
    assert told[0].events <= 20_000 < sum(each.events for each in told)
    assert all(each.target_s == 2.0 for each in told)
    assert told[0].size_bytes > 10 * told[0].events
    assert counted(tmp_path) == sent(hub)
    text = worker.telemetry.render()
    for name in ("cycle_seconds_count", "cycle_target_seconds", "cycle_bytes"):
        assert re.search(rf"^leasehold_{name}{{.*}} [1-9]", text, re.M), name
