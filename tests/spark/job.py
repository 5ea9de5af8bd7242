"""The same job for any Spark: ``job.py SPARK FOLDER``. Says on its last line what came out.

SPARK is ``local[2]``, ``spark://host:port`` or, by Spark Connect, ``sc://host:port``. FOLDER has
the hub, and gets everything else.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import leasehold as lh
from leasehold.ports import LetterFilter
from leasehold.spark import DeltaSink, SparkProcessor, register

SCHEMA = "home_id string, value double, ts bigint"


def session(url: str, folder: Path) -> SparkSession:
    if url.startswith("sc://"):
        return SparkSession.builder.remote(url).getOrCreate()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.executor.memory": "640m",
        # Wait for both workers, so that both have something to do.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    builder = SparkSession.builder.master(url).appName("job")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def per_home(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by("partition", "home_id").agg(
        pl.len().alias("count"),
        pl.col("value").sum().alias("sum"),
        pl.col("value").min().alias("min"),
        pl.col("value").max().alias("max"),
    )


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The executor's own folder."""
    time.sleep(1)
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"where": [os.getcwd()] * batch.num_rows})


def processed(spark: SparkSession, folder: Path) -> dict[str, Any]:
    letters = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
    SparkProcessor(
        spark,
        lh.Hub.open(folder / "hub.db"),
        group="activity",
        store=lh.open_store(f"sqlite:///{folder}/leases.db"),
        on_batch=DeltaSink(folder / "table").write,
        schema=SCHEMA,
        at_source=per_home,
        dead_letters=letters,
        tasks=2,
    ).run(until_drained=True)
    found = pl.from_arrow(DeltaTable(str(folder / "table")).to_pyarrow_table())
    assert isinstance(found, pl.DataFrame)
    homes = found.group_by("home_id").agg(
        pl.col("count", "sum").sum(), pl.col("min").min(), pl.col("max").max()
    )
    dead = asyncio.run(lh.open_dead_letters(f"sqlite:///{folder}/dead.db").list(LetterFilter()))
    return {
        "homes": {row[0]: row[1:] for row in homes.iter_rows()},
        "dead": sorted((letter.partition, letter.sequence) for letter in dead),
    }


def barely_read(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Jobs that need one row only."""
    SparkProcessor(
        spark,
        lh.Hub.open(folder / "hub.db"),
        group="few",
        store=lh.open_store(f"sqlite:///{folder}/leases.db"),
        on_batch=lambda df, batch: df.limit(1).collect(),
        schema=SCHEMA,
        dead_letters=lh.open_dead_letters(f"sqlite:///{folder}/few.db"),
        tasks=2,
    ).run(until_drained=True)
    dead = asyncio.run(lh.open_dead_letters(f"sqlite:///{folder}/few.db").list(LetterFilter()))
    return {"dead unread": sorted((letter.partition, letter.sequence) for letter in dead)}


def sourced(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The same events by way of the data source, at once and as a stream."""
    register(spark)
    hub, columns = str(folder / "hub.db"), f"{SCHEMA}, _corrupt_record string"
    rows = spark.read.format("leasehold").option("tasks", 2).schema(columns).load(hub)
    corrupt = rows.where("_corrupt_record is not null").count()
    stream = spark.readStream.format("leasehold").schema(columns).load(hub)
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    written = spark.read.schema(columns).parquet(str(folder / "out")).count()
    return {"read": rows.count(), "corrupt": corrupt, "streamed": written}


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    spark = session(url, folder)
    folders = spark.range(0, 4, 1, 4).mapInArrow(where, "where string").distinct().count()
    result = {
        **processed(spark, folder),
        **barely_read(spark, folder),
        **sourced(spark, folder),
        "executors": folders,
    }
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
