"""Bounded cycles beside one huge batch, plain Structured Streaming and polars alone, in one run.

All ways are warmed up by the same events; the plain way also by a thousand lines only, as it was
measured before. Its source of files has no ``maxOffsetsPerTrigger``: the limit is a number of
files, all of one size. Some bodies are broken off in the middle: every way has to notice them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks import spark as bench
from benchmarks.backlog import Application
from benchmarks.row import Row
from leasehold.feeds.hub import Hub
from leasehold.spark import DeltaSink, Progress, SparkProcessor
from leasehold.stores import open_dead_letters, open_store

EVENTS = 16_000_000
WARM_EVENTS, WARM_UPS = 4_000_000, 3
SMALL_EVENTS, SMALL_BATCHES = 1_000_000, 300
"""What all ways are warmed up with: large batches, and then small ones, for Java goes on compiling
what a batch needs for hundreds of them: ten minutes of cycles."""
BAD = (0.0, 0.001, 0.01)
FILE_EVENTS = 50_000
FILES_A_TRIGGER = 10
"""About two seconds of the plain way."""
CHUNK = 200_000
ROUNDS = 9
"""How often cycles and one huge batch take turns, each first in turn. On a machine that others use,
too, one and the same batch takes up to a quarter longer at times, and so the spread is told."""


def run(
    *, events: int = EVENTS, warm: int = WARM_EVENTS, folder: Path | None = None
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        small = warm * SMALL_EVENTS // WARM_EVENTS
        _make(place / "warm.db", warm, 0.0).close()
        _make(place / "small.db", small, 0.0).close()
        _as_files(place / "warm.db", place / "warm-files", FILE_EVENTS)
        _as_files(place / "small.db", place / "small-files", -(-small // SMALL_BATCHES))
        spark = bench._session(2)
        with Hub.open(place / "warm.db") as hub:
            for number in range(WARM_UPS):
                _drain(spark, hub, place / f"warm-{number}")
        with Hub.open(place / "small.db") as hub:
            _drain(spark, hub, place / "small", max_events=-(-small // SMALL_BATCHES))
        few = place / "few-files"
        few.mkdir()
        (few / "0.txt").write_bytes(b"\n".join(bench.readings(0, 1_000)[1].to_pylist()))
        _plain(spark, few, place / "few", 0)
        for number, part in enumerate(BAD):
            here = place / f"bad-{part}"
            here.mkdir()
            yield from _side_by_side(spark, here, events, part, None if number else place)
        spark.stop()
        yield from _two_at_once(place, events, warm // 5)


def _side_by_side(
    spark: Any, folder: Path, events: int, part: float, cold: Path | None
) -> Iterator[Row]:
    """``cold``: what to warm the plain way up with, if nothing has yet."""
    name, good = f"{100 * part:g} % bad rows", _good(events, part)
    with _make(folder / "hub.db", events, part) as hub:
        _as_files(folder / "hub.db", folder / "files", FILE_EVENTS)
        if cold is not None:  # before it is warmed up like the others
            seconds, _ = _plain(spark, folder / "files", folder / "cold", 0)
            yield _row(f"{name}: plain Spark, warmed up by 1,000 lines", events, seconds)
            for number in range(WARM_UPS):
                _plain(spark, cold / "warm-files", folder / f"warm-plain-{number}", 0)
            _plain(spark, cold / "small-files", folder / "small-plain", 1)
        rounds = [_round(spark, hub, folder / str(n), n, good) for n in range(ROUNDS)]
        cycles_s = median(each.cycles_s for each in rounds)
        huge_s = [each.huge_s for each in rounds]
        spread = f"{min(huge_s):.1f} to {max(huge_s):.1f} s"
        yield _row(f"{name}: one huge batch ({spread})", events, median(huge_s))
        yield _beside_huge(name, events, rounds)
        jobs = rounds[-1].jobs
        full = [each.seconds for each in jobs[len(jobs) // 2 :]]
        yield Row(
            what=f"{name}: a cycle, median of the later half of {len(jobs)}",
            value=median(full),
            unit="s",
        )
        for files in (0, FILES_A_TRIGGER):
            seconds, found = _plain(spark, folder / "files", folder / f"plain-{files}", files)
            said = "unlimited" if not files else f"{files} files a trigger"
            yield _row(f"{name}: plain Spark, {said}", events, seconds, seconds / cycles_s)
            if found != good:
                raise AssertionError(f"plain Spark counts {found} readings")
        seconds = _polars(folder)
        yield _row(f"{name}: polars alone, in memory", events, seconds, seconds / cycles_s)


class _Round(NamedTuple):
    huge_s: float
    cycles_s: float
    jobs: Sequence[Progress]
    """The cycles."""


def _round(spark: Any, hub: Hub, folder: Path, number: int, good: int) -> _Round:
    folder.mkdir()
    took: dict[bool, tuple[float, list[Progress]]] = {}
    for huge in (True, False) if number % 2 == 0 else (False, True):
        place = folder / ("huge" if huge else "cycles")
        took[huge] = _drain(spark, hub, place, huge=huge)
    found, other = (bench.merged(bench._table(folder / way)) for way in ("huge", "cycles"))
    bench._require_count(found, good)
    bench._require_equal(found, other, "the way in cycles")
    return _Round(took[True][0], *took[False])


def _beside_huge(name: str, events: int, rounds: Sequence[_Round]) -> Row:
    """The ratio is the median of those of the rounds: each compares what ran side by side."""
    ratios = [each.huge_s / each.cycles_s for each in rounds]
    spread = f"{len(rounds)} rounds, {min(ratios):.2f} to {max(ratios):.2f} x"
    return _row(
        f"{name}: cycles of 2 s, beside one huge batch ({spread})",
        events,
        median(each.cycles_s for each in rounds),
        median(ratios),
    )


def _two_at_once(place: Path, events: int, warm: int) -> Iterator[Row]:
    """Two applications of one core each, from the first job to the last commit."""
    _make(place / "two.db", events, 0.0).close()
    folder = place / "two"
    apps = [Application(folder, place / "two.db", name, warm=warm) for name in ("one", "two")]
    try:
        for each in apps:
            each.ready()
        for each in apps:
            each.go()
        for each in apps:
            each.wait(lambda each=each: bool(each.all("end")))  # type: ignore[misc]
    finally:
        for each in apps:
            each.kill()
    bench._require_count(bench._table(folder), events)
    first = min(each["at"] for app in apps for each in app.all("begin"))
    last = max(each["at"] for app in apps for each in app.all("done"))
    yield _row("2 instances at once, one core each", events, last - first)


def _row(what: str, events: int, seconds: float, ratio: float | None = None) -> Row:
    return Row(what=what, value=events / seconds / 1e6, unit="M events/s", ratio=ratio)


def _is_bad(first: int, count: int, part: float) -> Any:
    number = np.arange(first, first + count)
    return (number * 7919) % 1_000_000 < part * 1_000_000


def _good(events: int, part: float) -> int:
    return int(events - _is_bad(0, events, part).sum())


def _make(path: Path, events: int, part: float) -> Hub:
    hub = Hub.create(path, name="sensors", namespace="bench", partitions=16)
    for first in range(0, events, CHUNK):
        count = min(CHUNK, events - first)
        keys, bodies = bench.readings(first, count)
        if part:
            texts = bodies.to_pylist()
            for row in np.flatnonzero(_is_bad(first, count, part)):
                texts[row] = texts[row][:40]
            bodies = pa.array(texts, pa.binary())
        hub.send_columns(keys, bodies)
    return hub


def _as_files(hub: Path, folder: Path, events: int) -> None:
    """As lines, in files of so many events, each of several partitions."""
    folder.mkdir()
    lines: list[bytes] = []
    count = 0

    def write(some: Sequence[bytes]) -> None:
        nonlocal count
        (folder / f"{count:05d}.txt").write_bytes(b"\n".join(some) + b"\n")
        count += 1

    with Hub.open(hub) as opened:
        for each in asyncio.run(opened.extents()):
            for bodies in bench._bodies(opened, each.partition, each.first, each.end):
                lines += bodies.to_pylist()
                while len(lines) >= events:
                    write(lines[:events])
                    del lines[:events]
    if lines:
        write(lines)


def _drain(
    spark: Any, hub: Hub, folder: Path, *, huge: bool = False, **settings: Any
) -> tuple[float, list[Progress]]:
    folder.mkdir()
    told: list[Progress] = []
    sink = DeltaSink(folder / "table")
    settings |= bench.AT_ONCE if huge else {}
    processor = SparkProcessor(
        spark,
        hub,
        group="activity",
        store=open_store(f"sqlite:///{folder}/leases.db"),
        on_batch=sink.write,
        on_progress=told.append,
        schema=bench.SCHEMA,
        at_source=bench.per_home_minute,
        dead_letters=open_dead_letters(f"sqlite:///{folder}/dead.db"),
        tasks=2,
        **settings,
    )
    if huge:
        processor._pacer.take_all()
    seconds = bench._timed(lambda: processor.run(until_drained=True))
    return seconds, told


def _plain(spark: Any, files: Path, folder: Path, files_a_trigger: int) -> tuple[float, int]:
    """What a user of Spark would write: read lines, parse, group, write. How many it counted."""
    from pyspark.sql import functions as sql  # noqa: PLC0415

    def write(df: Any, number: int) -> None:
        event = sql.from_json("value", bench.SCHEMA).alias("event")
        minute = sql.floor(sql.col("ts") / 60_000).alias("minute")
        good = df.select(event).select("event.*").where("ts is not null")
        good.groupBy("home_id", minute).agg(
            sql.count("*").alias("count"),
            sql.sum("value").alias("sum"),
            sql.min("value").alias("min"),
            sql.max("value").alias("max"),
        ).write.mode("append").parquet(str(folder / "rows"))

    spark.conf.set("spark.sql.shuffle.partitions", "2")
    reader = spark.readStream.schema("value string")
    if files_a_trigger:
        reader = reader.option("maxFilesPerTrigger", str(files_a_trigger))
    query = reader.text(str(files)).writeStream.foreachBatch(write).trigger(availableNow=True)
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    seconds = bench._timed(lambda: query.start().awaitTermination())
    return seconds, int(pl.read_parquet(folder / "rows" / "*.parquet")["count"].sum())


def _polars(folder: Path) -> float:
    environment = {k: v for k, v in os.environ.items() if k != "POLARS_MAX_THREADS"}
    code = "import sys; from benchmarks.cycles import polars_alone; polars_alone(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "files")],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(json.loads(done.stdout))


def polars_alone(folder: str) -> None:
    """With all cores, on lines in memory; bad ones are left out beforehand, as polars does not take
    any."""
    lines = [line for file in sorted(Path(folder).iterdir()) for line in file.open("rb")]
    text = b"".join(line for line in lines if line.endswith(b"}\n"))
    schema = {
        "home_id": pl.String,
        "sensor_id": pl.String,
        "type": pl.String,
        "value": pl.Float64,
        "battery": pl.Float64,
        "ts": pl.Int64,
    }
    warm = text[: text.rindex(b"\n", 0, len(text) // 8) + 1]
    for some in (warm, text):
        began = time.perf_counter()
        frame = pl.read_ndjson(some, schema=schema).with_columns(partition=pl.lit("0"))
        bench.per_home_minute(frame)
        seconds = time.perf_counter() - began
    print(json.dumps(seconds))
