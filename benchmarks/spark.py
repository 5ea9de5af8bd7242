"""From hub to committed aggregates on Spark, beside three other ways over the same events.

Every way counts the readings of each home and minute with their sum, least and most value; the
results have to be equal. ``limits`` runs in a process of its own, so that nothing of Spark shares
its cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.row import Row
from leasehold.feeds.hub import Hub
from leasehold.spark import DeltaSink, Progress, SparkProcessor, local_session
from leasehold.stores import open_store

EVENTS = 4_000_000
HOMES = 100_000
LOOP_EVENTS = 200_000
SMALL_EVENTS, SMALL_CYCLES = 2_000, 40
SCHEMA = "home_id string, sensor_id string, type string, value double, battery double, ts bigint"
KINDS = np.array(["motion", "door", "window", "glass"])
KEYS = ["home_id", "minute"]
AT_ONCE: dict[str, Any] = {
    "cycle_s": 1e6,
    "max_events": 1 << 40,
    "cycle_bytes": 1 << 60,
    "overlap": False,
}
"""Without a target, and with all that there is allowed in one job."""


def run(
    *, events: int = EVENTS, growth: int = 1_000_000, folder: Path | None = None
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield from _throughput(Path(name), events)
        yield from _small(Path(name))
        if growth:
            yield from _growth(Path(name), growth)


def make(path: Path, events: int, partitions: int = 16) -> Hub:
    """Four sensors a home, a reading each a minute, keyed by home."""
    hub = Hub.create(path, name="sensors", namespace="bench", partitions=partitions)
    for first in range(0, events, 200_000):
        keys, bodies = readings(first, min(200_000, events - first))
        hub.send_columns(keys, bodies)
    return hub


def readings(first: int, count: int) -> tuple[pa.Array, pa.Array]:
    chance, number = np.random.default_rng(first), np.arange(first, first + count)
    home = pc.utf8_lpad(pa.array(number // 4 % HOMES).cast(pa.string()), 6, "0")
    minute = number // (4 * HOMES)
    ts = 1_700_000_040_000 + minute * 60_000 + chance.integers(0, 60_000, count)
    kind = pa.array(KINDS[number % 4])
    parts = [
        *('{"home_id":"H', home, '","sensor_id":"H', home, "-", kind, '","type":"', kind),
        *('","value":', _text(chance.integers(0, 80, count) / 8), ',"battery":'),
        *(_text(chance.integers(1, 100, count)), ',"ts":', _text(ts), "}"),
    ]
    keys = pc.binary_join_element_wise("H", home, "")
    return keys, pc.binary_join_element_wise(*parts, "").cast(pa.binary())


def per_home_minute(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by("partition", "home_id", (pl.col("ts") // 60_000).alias("minute")).agg(
        pl.len().alias("count"),
        pl.col("value").sum().alias("sum"),
        pl.col("value").min().alias("min"),
        pl.col("value").max().alias("max"),
    )


def merged(frame: pl.DataFrame) -> pl.DataFrame:
    """As a reader of the table sees it, in an order of its own."""
    found = frame.group_by(KEYS).agg(
        pl.col("count").sum(), pl.col("sum").sum(), pl.col("min").min(), pl.col("max").max()
    )
    return found.select(*KEYS, pl.col("count").cast(pl.Int64), "sum", "min", "max").sort(KEYS)


def _throughput(folder: Path, events: int) -> Iterator[Row]:
    with make(folder / "hub.db", events) as hub:
        _as_lines(hub, folder / "lines")
        limit = _limits(folder)
        spark = _session(2)
        _drain(spark, make(folder / "warm.db", 500_000), folder / "warm", 2)
        seconds, jobs = _drain(spark, hub, folder / "ours", 2, **AT_ONCE)
        cycles_s, _ = _drain(spark, hub, folder / "cycles", 2)
        found = merged(_table(folder / "ours"))
        _require_equal(found, merged(_table(folder / "cycles")), "cycles")
        plain_s = _plain_spark(spark, folder, events)
        _require_equal(found, merged(pl.read_parquet(folder / "plain" / "*.parquet")), "Spark")
        _require_equal(found, pl.read_parquet(folder / "polars.parquet"), "polars")
        spark.stop()
    rate = events / seconds
    yield Row(
        what="hub to committed aggregates, beside plain Spark",
        value=rate / 1e6,
        unit="M events/s",
        ratio=plain_s / seconds,
    )
    yield Row(
        what="… in cycles of 2 s that begin small, beside all at once",
        value=events / cycles_s / 1e6,
        unit="M events/s",
        ratio=seconds / cycles_s,
    )
    polars, loop = events / limit["polars_s"], limit["loop_per_s"]
    yield Row(
        what="… beside polars alone, in memory", value=rate / 1e6, unit="M events/s",
        ratio=rate / polars,
    )  # fmt: skip
    yield Row(
        what="… beside a loop in Python", value=rate / 1e6, unit="M events/s", ratio=rate / loop
    )
    yield Row(what="plain Structured Streaming", value=events / plain_s / 1e6, unit="M events/s")
    yield Row(what="polars alone, in memory", value=polars / 1e6, unit="M events/s")
    yield Row(what="a loop in Python", value=loop / 1e6, unit="M events/s")
    yield from _parts(seconds, jobs)


def _parts(seconds: float, jobs: Sequence[Progress]) -> Iterator[Row]:
    job = sum(each.parts["job"] for each in jobs)
    commit = sum(each.parts["commit"] for each in jobs)
    rest = sum(each.seconds for each in jobs) - job - commit
    for what, part in (
        (f"{len(jobs)} Spark jobs (read, decode, aggregate, write)", job),
        ("Delta commits", commit),
        ("planning of the jobs", rest),
        ("joining, checkpoints, waiting", seconds - job - commit - rest),
    ):
        yield Row(what=f"of which: {what}", value=100 * part / seconds, unit="%")


def _small(folder: Path) -> Iterator[Row]:
    """Little at a time: what one cycle costs."""
    spark, told, done = _session(2), list[Progress](), threading.Event()

    def on_progress(progress: Progress) -> None:
        told.append(progress)
        done.set()

    with make(folder / "small.db", 0) as hub:
        processor = _processor(spark, hub, folder / "small", 2, on_progress=on_progress)
        thread = threading.Thread(target=processor.run)
        thread.start()
        waits = []
        for cycle in range(SMALL_CYCLES):
            keys, bodies = readings(cycle * SMALL_EVENTS, SMALL_EVENTS)
            done.clear()
            began = time.perf_counter()
            hub.send_columns(keys, bodies)
            if not done.wait(60):
                raise AssertionError("no progress within a minute")
            waits.append(time.perf_counter() - began)
            time.sleep(0.3)
        # What was sent at once may be handled in two jobs.
        deadline = time.monotonic() + 60
        while sum(each.events for each in told) < SMALL_CYCLES * SMALL_EVENTS:
            if time.monotonic() > deadline:
                raise AssertionError("no progress within a minute")
            time.sleep(0.05)
        processor.stop()
        thread.join()
        _require_count(_table(folder / "small"), SMALL_CYCLES * SMALL_EVENTS)
    spark.stop()
    warm = told[SMALL_CYCLES // 4 :]
    what = f"{SMALL_EVENTS:,} events of 16 partitions"
    yield Row(
        what=f"{what}: a cycle, median",
        value=1e3 * median(each.seconds for each in warm),
        unit="ms",
        target=500,
    )
    for part in ("plan", "job", "commit"):
        value = 1e3 * median(each.parts[part] for each in warm)
        yield Row(what=f"{what}: of which {part}", value=value, unit="ms")
    yield Row(
        what=f"{what}: from sending to committed, median",
        value=1e3 * median(waits[SMALL_CYCLES // 4 :]),
        unit="ms",
    )


def _growth(folder: Path, events: int) -> Iterator[Row]:
    one: float | None = None
    for cores in (1, 2):
        spark = _session(cores)
        _drain(spark, make(folder / f"warm{cores}.db", 50_000), folder / f"warm{cores}", cores)
        for partitions in (16,) if cores == 1 else (1, 4, 16, 64):
            place = f"grow-{cores}-{partitions}"
            with make(folder / f"{place}.db", events, partitions) as hub:
                seconds, _ = _drain(spark, hub, folder / place, cores, **AT_ONCE)
            if one is None:
                one = seconds
            yield Row(
                what=f"{cores} core{'s' * (cores > 1)}, {partitions} partitions",
                value=events / seconds / 1e6,
                unit="M events/s",
                ratio=one / seconds,
            )
        spark.stop()
    with make(folder / "memory.db", 10 * events) as hub:
        for size in (events, 10 * events):
            spark = _session(2)
            with _Memory() as memory:
                _drain(spark, hub, folder / f"memory-{size}", 2, **AT_ONCE | {"max_events": size})
            yield Row(
                what=f"memory of Python workers, {size:,} events a batch",
                value=memory.most_bytes / 1e6,
                unit="MB",
            )
            spark.stop()


def _session(cores: int) -> Any:
    spark = local_session(cores, name="bench", settings={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _processor(spark: Any, hub: Hub, folder: Path, tasks: int, **more: Any) -> SparkProcessor:
    folder.mkdir()
    return SparkProcessor(
        spark,
        hub,
        group="activity",
        store=open_store(f"sqlite:///{folder}/leases.db"),
        on_batch=DeltaSink(folder / "table").write,
        schema=SCHEMA,
        at_source=per_home_minute,
        tasks=tasks,
        **more,
    )


def _drain(
    spark: Any, hub: Hub, folder: Path, tasks: int, **more: Any
) -> tuple[float, list[Progress]]:
    told: list[Progress] = []
    processor = _processor(spark, hub, folder, tasks, on_progress=told.append, **more)
    if more.keys() >= AT_ONCE.keys():
        processor._pacer.take_all()
    seconds = _timed(lambda: processor.run(until_drained=True))
    _require_count(_table(folder), hub.properties().events)
    return seconds, told


def _table(folder: Path) -> pl.DataFrame:
    return pl.DataFrame(DeltaSink(folder / "table").rows().to_table())


def _plain_spark(spark: Any, folder: Path, events: int) -> float:
    """What a user of Spark would write: read lines, parse, group, write."""
    from pyspark.sql import functions as sql  # noqa: PLC0415

    def write(df: Any, number: int) -> None:
        event = sql.from_json("value", SCHEMA).alias("event")
        minute = sql.floor(sql.col("ts") / 60_000).alias("minute")
        found = df.select(event).select("event.*").groupBy("home_id", minute)
        found.agg(
            sql.count("*").alias("count"),
            sql.sum("value").alias("sum"),
            sql.min("value").alias("min"),
            sql.max("value").alias("max"),
        ).write.mode("append").parquet(str(folder / "plain"))

    def once(lines: Path, place: str) -> None:
        stream = spark.readStream.schema("value string").text(str(lines))
        query = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", str(folder / place)).start().awaitTermination()

    spark.conf.set("spark.sql.shuffle.partitions", "2")
    (folder / "warm-lines").mkdir()
    (folder / "warm-lines" / "0.txt").write_bytes(b"\n".join(readings(0, 1_000)[1].to_pylist()))
    once(folder / "warm-lines", "warm-checkpoint")
    for file in (folder / "plain").iterdir():
        file.unlink()
    return _timed(lambda: once(folder / "lines", "plain-checkpoint"))


def _as_lines(hub: Hub, folder: Path) -> None:
    folder.mkdir()
    for each in hub.properties().partitions:
        with (folder / f"{each.partition}.txt").open("wb") as file:
            for bodies in _bodies(hub, each.partition, each.first_sequence, each.next_sequence):
                file.write(b"\n".join(bodies.to_pylist()) + b"\n")


def _bodies(hub: Hub, partition: str, at: int, end: int) -> Iterator[pa.Array]:
    while at < end:
        batch = hub.read_arrow(partition, at, end - at)
        yield batch.column("body")
        at += batch.num_rows


def _limits(folder: Path) -> dict[str, float]:
    environment = {k: v for k, v in os.environ.items() if k != "POLARS_MAX_THREADS"}
    code = "import sys; from benchmarks.spark import limits; limits(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def limits(folder: str) -> None:
    """Polars with all cores on lines in memory, and a loop over some of them."""
    place = Path(folder)
    text = b"".join(file.read_bytes() for file in sorted((place / "lines").iterdir()))
    schema = {
        "home_id": pl.String,
        "sensor_id": pl.String,
        "type": pl.String,
        "value": pl.Float64,
        "battery": pl.Float64,
        "ts": pl.Int64,
    }

    def polars() -> pl.DataFrame:
        frame = pl.read_ndjson(text, schema=schema).with_columns(partition=pl.lit("0"))
        return per_home_minute(frame)

    _timed(lambda: pl.read_ndjson(text[: text.rindex(b"\n", 0, 1 << 20)], schema=schema))
    began = time.perf_counter()
    found = polars()
    polars_s = time.perf_counter() - began
    merged(found).write_parquet(place / "polars.parquet")
    lines = text[: 200 * LOOP_EVENTS].splitlines()[:LOOP_EVENTS]
    loop_s = _timed(lambda: _loop(lines))
    print(json.dumps({"polars_s": polars_s, "loop_per_s": len(lines) / loop_s}))


def _loop(lines: Sequence[bytes]) -> None:
    found: dict[tuple[str, int], tuple[int, float, float, float]] = {}
    for line in lines:
        event = json.loads(line)
        key, value = (event["home_id"], event["ts"] // 60_000), event["value"]
        count, total, least, most = found.get(key, (0, 0.0, value, value))
        found[key] = count + 1, total + value, min(least, value), max(most, value)


class _Memory:
    """The most that the Python workers of this process's Spark had in hand together."""

    def __enter__(self) -> _Memory:
        self.most_bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.most_bytes = max(self.most_bytes, _workers_bytes(os.getpid()))


def _workers_bytes(root: int) -> int:
    parents, sizes = dict[int, int](), dict[int, int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            pid = int(lines["Pid"])
            parents[pid] = int(lines["PPid"])
            if lines["Name"].strip().startswith("python"):
                sizes[pid] = int(lines.get("VmRSS", "0 kB").split()[0]) * 1024
        except (OSError, ValueError, KeyError):  # it has ended meanwhile
            continue
    return sum(size for pid, size in sizes.items() if pid != root and _under(root, pid, parents))


def _under(root: int, pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == root:
            return True
    return False


def _text(values: Any) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _require_count(frame: pl.DataFrame, wanted: int) -> None:
    found = int(frame["count"].sum())
    if found != wanted:
        raise AssertionError(f"{found} events counted of {wanted}")


def _require_equal(found: pl.DataFrame, other: pl.DataFrame, who: str) -> None:
    """Values are eighths, so that sums do not depend on their order."""
    if not found.equals(other.select(found.columns).cast(dict(found.schema.items())).sort(KEYS)):
        raise AssertionError(f"{who} comes to another result")
