"""Spark Structured Streaming with its own Kafka connector, as one would write it. Aggregates only:
it cannot share a topic's partitions among applications. CPU time is that of Java and of this
process, after a first pass over the same topic that warms Java up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from benchmarks.peers.member import MINUTE_MS, Aggregates, PeerProcess

SCHEMA = "home string, sensor string, time_ms long, value long"
TICKS = os.sysconf("SC_CLK_TCK")


def session(jars: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.authenticate", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )


def aggregates(spark: SparkSession, member: PeerProcess, folder: Path) -> Aggregates:
    found = Aggregates()

    def merge(df: Any, _: int) -> None:
        reading = sql.from_json(sql.col("value").cast("string"), SCHEMA).alias("reading")
        minute = sql.floor(sql.col("time_ms") / MINUTE_MS).alias("minute")
        value = sql.col("value")
        grouped = df.select(reading).select("reading.*").groupBy("home", minute)
        rows = grouped.agg(sql.count(value), sql.sum(value), sql.min(value), sql.max(value))
        found.add_all(((row[0], row[1]), *row[2:]) for row in rows.collect())

    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", member.brokers)
        .option("subscribe", member.topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(merge)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(folder))
        .start()
    )
    query.awaitTermination()
    return found


def java_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    member = PeerProcess()
    spark = session(member.settings["jars"])
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    folder = Path(member.settings["folder"])
    aggregates(spark, member, folder / f"{member.instance}-warm")
    before_s = java_s(pid)
    member.begin()
    found = aggregates(spark, member, folder / member.instance)
    if found.events != member.events:
        raise AssertionError(f"Structured Streaming counts {found.events} readings")
    member.tell(found, besides_s=java_s(pid) - before_s)
    spark.stop()


if __name__ == "__main__":
    main()
