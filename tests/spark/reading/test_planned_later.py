"""A batch's DataFrame: Spark hears of it when it is used, and it is then like any other."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import leasehold as lh
from leasehold.core.ranges import Range
from leasehold.spark.reading.frames import Source, arrow_schema, plan_reading
from leasehold.spark.reading.task import Address


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    hub = lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="test", partitions=1)
    hub.send([lh.EventData(f'{{"n": {n}}}') for n in range(6)], partition_id=0)
    schema = arrow_schema("partition string, sequence bigint, n bigint")
    reading = plan_reading(Address.of(hub), schema=schema)
    return Source(spark, reading, [(Range(partition="0", first=0, end=6),)])


def test_spark_hears_of_it_when_it_is_first_used(source: Source) -> None:
    asked: list[Any] = []
    plan = source._planned
    source._planned = lambda: asked.append(1) or plan()  # type: ignore[method-assign]
    df = source.df
    assert isinstance(df, DataFrame)
    assert df.columns == ["partition", "sequence", "n"]
    assert not asked
    assert df.count() == 6
    assert df.where("n > 2").count() == 3
    assert asked == [1], "planned once"
    assert source.planned_s > 0


def test_its_schema_is_that_of_the_planned_one(source: Source) -> None:
    assert source.df.schema == source._planned().schema


def test_it_can_be_used_as_any_other(source: Source, spark: SparkSession) -> None:
    df = source.df
    assert df.agg(sql.sum("n")).first() == (15,)
    assert sorted(df.toPandas()["n"]) == list(range(6))
    assert df.toArrow().num_rows == 6
    assert df.rdd.map(lambda row: row.n).sum() == 15
    assert spark.range(3).join(df, sql.col("id") == df.n).count() == 3
    assert spark.range(3).toDF("n").unionByName(df.select("n")).count() == 9
    assert spark.sql("select max(n) as most from {df}", df=df).first() == (5,)
    df.createOrReplaceTempView("planned_later")
    try:
        assert spark.table("planned_later").count() == 6
    finally:
        spark.catalog.dropTempView("planned_later")
    with pytest.raises(AttributeError, match="no_such_column"):
        _ = df.no_such_column


def test_a_plan_that_fails_says_why(source: Source) -> None:
    def plan() -> DataFrame:
        raise AttributeError("something is missing")

    source._planned = plan  # type: ignore[method-assign]
    with pytest.raises(Exception, match="something is missing"):
        source.df.count()


def test_threads_that_use_it_at_once_have_one_plan(source: Source) -> None:
    plans: list[DataFrame] = []
    plan = source._planned

    def planned() -> DataFrame:
        plans.append(plan())
        return plans[-1]

    source._planned = planned  # type: ignore[method-assign]
    df = source.df
    with ThreadPoolExecutor(4) as threads:
        sums = list(threads.map(lambda _: df.select(df.n).agg(sql.sum("n")).first(), range(4)))
    assert sums == [(15,)] * 4
    assert len(plans) == 1


def test_once_planned_it_is_let_go_with_its_batch(source: Source) -> None:
    seen = weakref.ref(source.df)
    assert source.df.count() == 6
    gc.collect()
    gc.disable()
    try:
        del source.__dict__["df"]
        assert seen() is None
    finally:
        gc.enable()
