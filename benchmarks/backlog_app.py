"""One Spark application on a hub, in a process of its own: ``-m benchmarks.backlog_app JSON``.

It prints a line of JSON for each job that begins and for each that is done."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl

SLOW = 90.0
"""A slow handler sleeps so many times as long as it aggregates, which is a tenth of all work on an
event: that makes it ten times slower."""


def main(said: dict[str, Any]) -> None:
    from benchmarks import spark as bench  # noqa: PLC0415  # PySpark takes its time to load
    from leasehold.feeds.hub import Hub  # noqa: PLC0415
    from leasehold.spark import DeltaSink, Progress, SparkBatch, SparkProcessor  # noqa: PLC0415
    from leasehold.stores import open_dead_letters, open_store  # noqa: PLC0415

    spark = bench._session(said["cores"])
    folder, slow = Path(said["folder"]), Path(said["folder"]) / "slow"
    sink = DeltaSink(folder / "table")

    def at_source(frame: pl.DataFrame) -> pl.DataFrame:
        began = time.perf_counter()
        found = bench.per_home_minute(frame)
        if slow.exists() and len(frame):
            time.sleep(SLOW * (time.perf_counter() - began))
        return found

    def on_batch(df: Any, batch: SparkBatch) -> None:
        tell("begin", events=batch.events)
        began = time.perf_counter()
        try:
            sink.write(df, batch)
        except Exception:
            tell("void", events=batch.events, seconds=time.perf_counter() - began)
            raise

    def on_progress(progress: Progress) -> None:
        tell("done", events=progress.events, seconds=progress.seconds, owned=progress.owned)

    one_at_a_time = threading.Lock()  # or lines of several threads run into one

    def tell(what: str, **more: Any) -> None:
        with one_at_a_time:
            print(json.dumps({"what": what, "at": time.time(), **more}), flush=True)

    if said["warm"]:
        warm = bench.make(folder / f"warm-{said['instance']}.db", said["warm"])
        bench._drain(spark, warm, folder / f"warm-{said['instance']}", said["cores"])
    tell("ready")
    sys.stdin.readline()  # so that all begin together
    threading.Thread(target=_end_with_parent, daemon=True).start()
    SparkProcessor(
        spark,
        Hub.open(said["hub"]),
        group="activity",
        store=open_store(f"sqlite:///{folder}/leases.db"),
        on_batch=on_batch,
        on_progress=on_progress,
        on_partition_open=lambda context: tell("open"),
        on_partition_close=lambda reason, context: tell("close"),
        schema=bench.SCHEMA,
        at_source=at_source,
        dead_letters=open_dead_letters(f"sqlite:///{folder}/dead.db"),
        instance=said["instance"],
        tasks=said["cores"],
        **said["settings"],
    ).run(until_drained=said["until_drained"])
    tell("end")
    spark.stop()


def _end_with_parent() -> None:
    """Whatever becomes of it, nothing is left behind."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
