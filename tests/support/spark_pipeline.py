"""A small pipeline over a real hub, for tests: readings in, counts per home and minute out."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import leasehold as lh
from leasehold.spark import DeltaSink, SparkProcessor
from support.blocking import result_of

# Python workers do not find the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
SCHEMA = "home_id string, value double, ts bigint"
QUICK = {
    "balance_interval_s": 0.2,
    "lease_ttl_s": 30.0,
    "poll_interval_s": 0.05,
    "gather_s": 0.01,
    "tasks": 1,
}


def reading(home: int, minute: int, value: float = 1.0) -> bytes:
    return json.dumps({"home_id": f"H{home}", "value": value, "ts": minute * 60_000}).encode()


def make_hub(folder: Path, events: int = 0, partitions: int = 4) -> lh.Hub:
    hub = lh.Hub.create(folder / "hub.db", name="sensors", namespace="t", partitions=partitions)
    send(hub, events)
    return hub


def send(hub: lh.Hub, events: int, first: int = 0) -> None:
    numbers = range(first, first + events)
    if events:
        hub.send_columns(
            [f"H{n % 10}" for n in numbers], [reading(n % 10, n // 20) for n in numbers]
        )


def per_home_minute(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by("partition", "home_id", (pl.col("ts") // 60_000).alias("minute")).agg(
        pl.len().alias("count"), pl.col("value").sum().alias("sum")
    )


def processor(spark: SparkSession, hub: lh.Hub, folder: Path, **settings: Any) -> SparkProcessor:
    settings = {
        "on_batch": DeltaSink(folder / "table").write,
        "schema": SCHEMA,
        "at_source": per_home_minute,
        **QUICK,
        **settings,
    }
    return SparkProcessor(
        spark,
        hub,
        group="activity",
        store=lh.open_store(f"sqlite:///{folder}/leases.db"),
        **settings,
    )


def sent(hub: lh.Hub) -> Counter[tuple[str, int]]:
    """What the table must say, told from the hub event by event."""
    found: Counter[tuple[str, int]] = Counter()
    for each in result_of(hub.extents()):
        for batch in hub_batches(hub, each.partition, each.first, each.end):
            for body in batch:
                try:
                    event = json.loads(body)
                    found[event["home_id"], event["ts"] // 60_000] += 1
                except (ValueError, TypeError, KeyError):
                    continue
    return found


def hub_batches(hub: lh.Hub, partition: str, at: int, end: int) -> Any:
    while at < end:
        batch = hub.read_arrow(partition, at, end - at)
        yield batch.column("body").to_pylist()
        at += batch.num_rows


def counted(folder: Path) -> Counter[tuple[str, int]]:
    """What the table says."""
    found: Counter[tuple[str, int]] = Counter()
    table = DeltaTable(str(folder / "table")).to_pyarrow_table()
    for row in table.select(["home_id", "minute", "count"]).to_pylist():
        found[row["home_id"], row["minute"]] += row["count"]
    return found
