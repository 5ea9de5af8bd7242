"""Dead letters of rows that a job never read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from support.processing import open_leases
from support.spark_pipeline import QUICK, SCHEMA, make_hub, processor, reading

import leasehold as lh
from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.spark import DeltaSink, SparkBatch, SparkProcessor
from leasehold.spark.reading import read_to_end
from leasehold.spark.reading.frames import Source, arrow_schema, plan_reading
from leasehold.spark.reading.task import Address, Letters

# Python workers do not find the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
GOOD = 60


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[lh.Hub]:
    """Its last event but one is bad."""
    with make_hub(tmp_path, GOOD, partitions=1) as hub:
        hub.send([lh.EventData(b"no json"), lh.EventData(reading(1, 1))])
        yield hub


def letters(folder: Path) -> list[int]:
    store = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
    return [each.sequence for each in asyncio.run(store.list(lh.LetterFilter()))]


def first_row(rows: Iterator[pa.RecordBatch]) -> Iterator[int]:
    yield next(rows).num_rows


def of_nobody(df: DataFrame) -> DataFrame:
    """Joined with a table that is empty just now, so that Spark reads none of it."""
    nobody = df.sparkSession.range(9).where("id > 100").selectExpr("concat('H', id) AS home_id")
    return df.join(sql.broadcast(nobody), "home_id")


USES: dict[str, Callable[[DataFrame, SparkBatch], Any]] = {
    "all": lambda df, batch: df.count(),
    "limit": lambda df, batch: df.limit(1).collect(),
    "is empty": lambda df, batch: df.isEmpty(),
    "empty join": lambda df, batch: of_nobody(df).collect(),
    "nothing": lambda df, batch: None,
    "collect": lambda df, batch: batch.collect(df, first_row),
    "collect of another": lambda df, batch: batch.collect(of_nobody(df), first_row),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_does_not_decode_is_a_dead_letter_whatever_a_job_reads(
    spark: SparkSession, hub: lh.Hub, tmp_path: Path, use: Callable[..., Any]
) -> None:
    SparkProcessor(
        spark,
        hub,
        group="g",
        store=open_leases(tmp_path),
        on_batch=use,
        schema=SCHEMA,
        dead_letters=lh.open_dead_letters(f"sqlite:///{tmp_path}/dead.db"),
        **QUICK,
    ).run(until_drained=True)
    assert letters(tmp_path) == [GOOD]


def test_letters_are_put_before_a_sink_commits(
    spark: SparkSession, hub: lh.Hub, tmp_path: Path
) -> None:
    """After a crash behind the commit, what the sink has is skipped."""
    sink = DeltaSink(tmp_path / "table")
    seen: list[list[int]] = []

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        seen.append(letters(tmp_path))
        sink.write(of_nobody(df).select("partition", "home_id"), batch)
        seen.append(letters(tmp_path))

    dead = lh.open_dead_letters(f"sqlite:///{tmp_path}/dead.db")
    processor(spark, hub, tmp_path, on_batch=on_batch, at_source=None, dead_letters=dead).run(
        until_drained=True
    )
    assert seen == [[], [GOOD]]


def source(spark: SparkSession, hub: lh.Hub, folder: Path) -> Source:
    store = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
    group = Group(namespace=hub.namespace, feed=hub.name, name="g")
    reading = plan_reading(
        Address.of(hub),
        schema=arrow_schema(SCHEMA),
        letters=Letters(store=store, group=group),
    )
    ends = [0, 20, 40, GOOD + 2]
    tasks = [[Range(partition="0", first=a, end=b)] for a, b in pairwise(ends)]
    return Source(spark, reading, tasks)


def test_what_was_read_is_not_read_again(spark: SparkSession, hub: lh.Hub, tmp_path: Path) -> None:
    one = source(spark, hub, tmp_path)
    assert one.unread == [0, 1, 2]
    assert one.df.count() == GOOD + 1
    assert one.unread == []
    other = source(spark, hub, tmp_path)
    assert other.collect(lambda rows: [sum(each.num_rows for each in rows)]) == [20, 20, 21]
    assert other.unread == []


def test_without_a_schema_nothing_is_read_for_letters(
    spark: SparkSession, hub: lh.Hub, tmp_path: Path
) -> None:
    decoded = source(spark, hub, tmp_path)
    plain = plan_reading(Address.of(hub), letters=decoded.reading.letters)
    assert Source(spark, plain, decoded.tasks).unread == []


def test_a_task_that_was_left_early_counts_as_unread(
    spark: SparkSession, hub: lh.Hub, tmp_path: Path
) -> None:
    one = source(spark, hub, tmp_path)
    assert one.collect(first_row) == [20, 20, 21]
    assert one.unread == [0, 1, 2]
    one.put_letters()
    assert (one.unread, letters(tmp_path)) == ([], [GOOD])


def test_reports_that_nobody_asks_for_do_not_grow_without_bound(spark: SparkSession) -> None:
    shared = read_to_end._shared(spark.sparkContext)
    for number in range(3 * read_to_end.KEPT_MAX):
        shared.add({(-1, number)})
    assert len(shared.value) <= read_to_end.KEPT_MAX + 1
    shared.value.clear()
