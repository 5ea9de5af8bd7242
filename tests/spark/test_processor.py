"""A Spark application as a member of a group, with faults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from support.processing import open_leases, until
from support.spark_pipeline import (
    QUICK,
    SCHEMA,
    counted,
    make_hub,
    processor,
    reading,
    send,
    sent,
)

import leasehold as lh
from leasehold.core import pacing
from leasehold.core.model import Checkpoint, Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, SinkUnavailable
from leasehold.spark import DeltaSink, Progress, SparkBatch, SparkProcessor
from leasehold.spark.jobs import SparkJob
from leasehold.stores.dead_letters.sqlite import SqliteDeadLetters

# Python workers do not find the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def letters_of(folder: Path) -> list[lh.DeadLetter]:
    async def main() -> list[lh.DeadLetter]:
        store = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
        found = list(await store.list(lh.LetterFilter(), limit=1000))
        await store.close()
        return found

    return asyncio.run(main())


def dead(folder: Path) -> Any:
    return lh.open_dead_letters(f"sqlite:///{folder}/dead.db")


def test_every_event_counts_once_per_home_and_minute(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 1000)
    processor(spark, hub, tmp_path).run(until_drained=True)
    assert counted(tmp_path) == sent(hub)


def test_the_dataframe_has_the_columns_of_the_events(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 40)
    found: list[Any] = []

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        found.extend(df.collect())

    SparkProcessor(
        spark, hub, group="g", store=open_leases(tmp_path), on_batch=on_batch, **QUICK
    ).run(until_drained=True)
    assert len({(row.partition, row.sequence) for row in found}) == len(found) == 40
    row = found[0]
    event = hub.read_batch(row.partition, Checkpoint(next_sequence=row.sequence), 1).events[0]
    assert (bytes(row.body), row.offset) == (event.body, event.offset)
    assert row.partition_key == event.partition_key


def test_plain_spark_code_works_on_typed_columns(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 400)
    sink = DeltaSink(tmp_path / "table")

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        minute = (sql.col("ts") / 60_000).cast("bigint").alias("minute")
        sink.write(
            df.groupBy("partition", "home_id", minute).agg(sql.count("*").alias("count")), batch
        )

    SparkProcessor(
        spark,
        hub,
        group="g",
        store=open_leases(tmp_path),
        on_batch=on_batch,
        schema=SCHEMA,
        **QUICK,
    ).run(until_drained=True)
    assert counted(tmp_path) == sent(hub)


def test_it_shares_a_group_with_plain_processors(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 400)
    store, seen, rows = open_leases(tmp_path), [], []
    settings = {k: v for k, v in QUICK.items() if k not in ("gather_s", "tasks")}
    plain = lh.Processor(hub, group="g", store=store, on_batch=seen.extend, **settings)
    other = SparkProcessor(
        spark,
        hub,
        group="g",
        store=open_leases(tmp_path),
        on_batch=lambda df, batch: rows.extend(df.collect()),
        **QUICK,
    )

    async def main() -> None:
        running = [asyncio.ensure_future(each.run_async()) for each in (plain, other)]
        await until(lambda: len(plain.partitions) == len(other.partitions) == 2)
        await asyncio.to_thread(send, hub, 400, 1000)
        await until(lambda: len(seen) + len(rows) >= 800)
        for each in (plain, other):
            each.stop()
        await asyncio.gather(*running)

    asyncio.run(main())
    places = [(e.partition, e.sequence) for e in seen] + [(r.partition, r.sequence) for r in rows]
    assert len(set(places)) == len(places) == 800
    assert seen
    assert rows


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"null",
        b"[1]",
        b"\xff\xfe",
        b'{"home_id": "H1", "value": "high", "ts": 1}',
        b'{"home_id": "H1", "value": 1, "ts": 99999999999999999999}',
        b'{"home_id": "H1", "value": 1e999, "ts": 1}',
        b"x" * 1_000_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_an_event_that_does_not_decode_is_dead_and_nothing_else(
    spark: SparkSession, tmp_path: Path, body: bytes
) -> None:
    hub = lh.Hub.create(
        tmp_path / "hub.db", name="sensors", namespace="t", partitions=2, batch_bytes_max=2 << 20
    )
    for part in (0, 1):
        hub.send([lh.EventData(reading(n % 3, n)) for n in range(30)], partition_id=part)
    hub.send([lh.EventData(body)], partition_id=1)
    hub.send([lh.EventData(reading(1, 50))], partition_id=1)
    processor(spark, hub, tmp_path, dead_letters=dead(tmp_path)).run(until_drained=True)
    assert sum(counted(tmp_path).values()) == 61
    (letter,) = letters_of(tmp_path)
    assert (letter.body, letter.partition, letter.sequence) == (body, "1", 30)


def test_without_a_dead_letter_store_bad_rows_are_kept_beside_the_good(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 10, partitions=1)
    hub.send([lh.EventData(b"no json")])
    rows: list[Any] = []
    SparkProcessor(
        spark,
        hub,
        group="g",
        store=open_leases(tmp_path),
        on_batch=lambda df, batch: rows.extend(df.collect()),
        schema=SCHEMA,
        **QUICK,
    ).run(until_drained=True)
    assert len(rows) == 11
    assert [row._corrupt_record for row in rows if row.home_id is None] == ["no json"]


def test_a_poison_event_is_found_and_dead_lettered_and_the_rest_counts_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 100)
    hub.send_columns(["H3"], [reading(3, 666)])
    send(hub, 100, first=100)

    def poisoned(frame: pl.DataFrame) -> pl.DataFrame:
        if (frame["ts"] == 666 * 60_000).any():
            raise ZeroDivisionError("this event cannot be handled")
        return frame.group_by("partition", "home_id", (pl.col("ts") // 60_000).alias("minute")).agg(
            pl.len().alias("count"), pl.col("value").sum().alias("sum")
        )

    sink = DeltaSink(tmp_path / "table")
    SparkProcessor(
        spark,
        hub,
        group="activity",
        store=open_leases(tmp_path),
        on_batch=sink.write,
        schema=SCHEMA,
        at_source=poisoned,
        dead_letters=dead(tmp_path),
        retry=lh.Retry(attempts=2, then="dead-letter", backoff_s=0.01),
        **QUICK,
    ).run(until_drained=True)
    (letter,) = letters_of(tmp_path)
    assert json.loads(letter.body)["ts"] == 666 * 60_000
    assert "this event cannot be handled" in letter.error
    expected = sent(hub)
    del expected["H3", 666]
    assert counted(tmp_path) == expected


def test_a_sink_that_is_down_holds_everything_up_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    sink, told, together = DeltaSink(tmp_path / "table"), [], []
    down = threading.Event()

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        if len(told) < 6:
            raise SinkUnavailable("down for maintenance")
        sink.write(df, batch)
        together.append(len(batch.ranges))

    def on_error(error: BaseException) -> None:
        told.append(error)
        down.set()

    processor(
        spark,
        hub,
        tmp_path,
        on_batch=on_batch,
        on_error=on_error,
        dead_letters=dead(tmp_path),
        retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
    ).run(until_drained=True)
    assert down.is_set()
    assert max(together) > 1, "no partition is suspected and kept apart"
    assert counted(tmp_path) == sent(hub)
    assert letters_of(tmp_path) == []


def test_storage_that_takes_nothing_for_a_while_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As with a full disk: what lies in the way of the table is removed after some failures."""
    hub = make_hub(tmp_path, 200)
    obstacle, told = tmp_path / "table", []
    obstacle.write_text("no room for a table")

    def on_error(error: BaseException) -> None:
        told.append(error)
        if len(told) == 6:
            obstacle.unlink()

    processor(
        spark,
        hub,
        tmp_path,
        on_error=on_error,
        dead_letters=dead(tmp_path),
        retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
    ).run(until_drained=True)
    assert len(told) >= 6
    assert counted(tmp_path) == sent(hub)
    assert letters_of(tmp_path) == []


def test_no_job_begins_on_a_feed_that_was_recreated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors know it by its address, and a range only by its numbers."""
    hub = make_hub(tmp_path, 40)
    begun: list[SparkBatch] = []
    working = processor(spark, hub, tmp_path, on_batch=lambda df, batch: begun.append(batch))
    monkeypatch.setattr(hub, "identity", "another")
    job = SparkJob(tag="job", ranges=(Range(partition="0", first=0, end=5),))
    with pytest.raises(SinkUnavailable, match="was recreated meanwhile: start the processor again"):
        working._run_job(job)
    assert not begun


def test_trouble_that_an_executor_meets_blames_no_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 60)
    mark, told = tmp_path / "trouble-is-over", []

    def in_trouble(frame: pl.DataFrame) -> pl.DataFrame:
        if len(frame) and not mark.exists():
            raise lh.StoreUnavailable("the dead-letter store does not answer")
        return frame.group_by("partition", "home_id", (pl.col("ts") // 60_000).alias("minute")).agg(
            pl.len().alias("count"), pl.col("value").sum().alias("sum")
        )

    def on_error(error: BaseException) -> None:
        told.append(error)
        if len(told) == 8:
            mark.touch()

    processor(
        spark,
        hub,
        tmp_path,
        at_source=in_trouble,
        on_error=on_error,
        dead_letters=dead(tmp_path),
        retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
    ).run(until_drained=True)
    assert all(isinstance(error, SinkUnavailable) for error in told)
    assert all(str(error).endswith("the dead-letter store does not answer") for error in told)
    assert counted(tmp_path) == sent(hub)
    assert letters_of(tmp_path) == []


@pytest.mark.parametrize("text", ["No space left on device", "x\nleasehold.errors.BadInput: y\n"])
def test_a_device_s_text_that_spark_repeats_is_no_trouble_of_ours(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    hub = make_hub(tmp_path, 0, partitions=1)
    hub.send([lh.EventData(json.dumps({"v": each})) for each in ("0", "1", text, "3")])
    told: list[BaseException] = []

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        df.select(sql.col("v").cast("bigint")).collect()

    def on_error(error: BaseException) -> None:
        told.append(error)
        if isinstance(error, SinkUnavailable):
            one.stop()

    one = processor(
        spark,
        hub,
        tmp_path,
        schema="v string",
        at_source=None,
        on_batch=on_batch,
        on_error=on_error,
        dead_letters=dead(tmp_path),
        retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
    )
    one.run(until_drained=True)
    assert [type(each).__name__ for each in told if isinstance(each, SinkUnavailable)] == []
    assert [each.sequence for each in letters_of(tmp_path)] == [2]


class SmallLetters(SqliteDeadLetters):
    """Refuses what is large, as Cosmos DB does."""

    async def put(self, letters: Sequence[lh.DeadLetter]) -> None:
        for each in letters:
            if len(each.body) > 1_000:
                raise BadInput(f"dead letter of {each.origin}: the body is too large")
        await super().put(letters)


def test_a_letter_that_is_refused_holds_up_its_own_partition_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 0, partitions=2)
    for partition in (0, 1):
        hub.send([lh.EventData(reading(n % 3, n)) for n in range(30)], partition_id=partition)
    hub.send([lh.EventData(b"{" * 2_000)], partition_id=1)
    for partition in (0, 1):
        hub.send([lh.EventData(b"small"), lh.EventData(reading(1, 50))], partition_id=partition)
    told: list[BaseException] = []

    def on_error(error: BaseException) -> None:
        told.append(error)
        if _positions(tmp_path, hub) == {"0": 32, "1": 30}:
            one.stop()

    one = processor(
        spark,
        hub,
        tmp_path,
        on_error=on_error,
        dead_letters=SmallLetters(tmp_path / "dead.db"),
        retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
    )
    one.run()
    assert _positions(tmp_path, hub) == {"0": 32, "1": 30}
    assert [(each.partition, each.sequence) for each in letters_of(tmp_path)] == [("0", 30)]
    assert isinstance(told[0], lh.LetterRefused)
    assert str(told[0]) == "dead letter of t/sensors/activity/1/30: the body is too large"


def test_an_executor_killed_in_mid_job_costs_a_try_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    mark = tmp_path / "killed"

    def dies_once(frame: pl.DataFrame) -> pl.DataFrame:
        if len(frame) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return frame.group_by("partition", "home_id", (pl.col("ts") // 60_000).alias("minute")).agg(
            pl.len().alias("count"), pl.col("value").sum().alias("sum")
        )

    processor(spark, hub, tmp_path, at_source=dies_once).run(until_drained=True)
    assert mark.exists()
    assert counted(tmp_path) == sent(hub)


def test_a_schema_that_fits_nothing_makes_everything_dead_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 60)
    processor(
        spark, hub, tmp_path, schema="home_id int, value double, ts bigint",
        dead_letters=dead(tmp_path),
    ).run(until_drained=True)  # fmt: skip
    assert len(letters_of(tmp_path)) == 60
    assert sum(counted(tmp_path).values()) == 0


def _crashed(working: SparkProcessor, died: threading.Event) -> None:
    async def main() -> None:
        running = asyncio.ensure_future(working.run_async())
        await asyncio.to_thread(died.wait, 60)
        working._end()  # no word to anybody, as when the process is gone
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_a_crash_between_commit_and_checkpoint_counts_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first instance commits to the table and is gone before its checkpoints."""
    hub = make_hub(tmp_path, 300)
    sink = DeltaSink(tmp_path / "table")
    died = threading.Event()

    def dies(df: DataFrame, batch: SparkBatch) -> None:
        sink.write(df, batch)
        died.set()
        time.sleep(3600)

    _crashed(
        processor(spark, hub, tmp_path, on_batch=dies, lease_ttl_s=6.0, instance="first"), died
    )
    assert counted(tmp_path) == sent(hub), "the commit is there"
    assert set(_positions(tmp_path, hub).values()) == {0}, "and no checkpoint"
    send(hub, 100, first=300)
    processor(spark, hub, tmp_path, instance="second").run(until_drained=True)
    assert counted(tmp_path) == sent(hub)


def test_each_of_two_tables_has_everything_whatever_fails_between_their_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200, partitions=2)
    tables = [tmp_path / name / "table" for name in ("one", "two")]
    one, two = (DeltaSink(table) for table in tables)
    calls: list[str] = []

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        one.write(df, batch)
        calls.append(str(batch))
        if len(calls) == 1:
            raise SinkUnavailable("for a moment")
        two.write(df, batch)

    processor(spark, hub, tmp_path, on_batch=on_batch, retry_s=0.05).run(until_drained=True)
    assert counted(tables[0].parent) == counted(tables[1].parent) == sent(hub)


def test_each_of_two_tables_has_everything_after_a_crash_between_their_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And after more has come since, so that the first one has a part of the next batch."""
    hub = make_hub(tmp_path, 200, partitions=2)
    tables = [tmp_path / name / "table" for name in ("one", "two")]
    one, two = (DeltaSink(table) for table in tables)
    died = threading.Event()

    def dies(df: DataFrame, batch: SparkBatch) -> None:
        one.write(df, batch)
        died.set()
        time.sleep(3600)

    def both(df: DataFrame, batch: SparkBatch) -> None:
        one.write(df, batch)
        two.write(df, batch)

    _crashed(processor(spark, hub, tmp_path, on_batch=dies, lease_ttl_s=6.0), died)
    send(hub, 100, first=200)
    processor(spark, hub, tmp_path, on_batch=both).run(until_drained=True)
    assert counted(tables[0].parent) == counted(tables[1].parent) == sent(hub)


def test_what_is_left_out_comes_again_although_a_table_had_all_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200, partitions=2)
    one = DeltaSink(tmp_path / "table")
    elsewhere: Counter[str] = Counter()
    calls: list[str] = []

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        one.write(df, batch)
        calls.append(str(batch))
        if len(calls) == 1:
            raise SinkUnavailable("for a moment, and the table has it")
        for each in batch.ranges:
            if len(calls) == 2 and each.partition == "0":
                batch.leave_out({"0": SinkUnavailable("its target does not answer")})
            else:
                elsewhere[each.partition] += len(each)

    processor(spark, hub, tmp_path, on_batch=on_batch, retry_s=0.05).run(until_drained=True)
    assert counted(tmp_path) == sent(hub)
    assert elsewhere == _positions(tmp_path, hub)


@pytest.mark.parametrize("planned", [False, True])
def test_what_the_table_has_already_says_nothing_about_the_pace(
    spark: SparkSession, tmp_path: Path, planned: bool
) -> None:
    """To pass it over takes no time, whatever its size: the next jobs would be far too large."""
    hub, told = make_hub(tmp_path, 1_000), list[Progress]()
    hub.send([lh.EventData(b"no JSON")])
    sink = DeltaSink(tmp_path / "table")

    def transformed(df: DataFrame, batch: SparkBatch) -> None:
        sink.write(df.where("count > 0"), batch)

    settings = {
        "on_batch": transformed if planned else sink.write,
        "dead_letters": dead(tmp_path),
        "on_progress": told.append,
    }
    processor(spark, hub, tmp_path, **settings).run(until_drained=True)
    (letter,) = letters_of(tmp_path)
    assert asyncio.run(dead(tmp_path).purge(lh.LetterFilter())) == 1
    (tmp_path / "leases.db").unlink()
    told.clear()
    again = processor(spark, hub, tmp_path, **settings)
    again.run(until_drained=True)
    assert counted(tmp_path) == sent(hub)
    assert told == []
    assert again._pacer.events == pacing.FIRST_EVENTS
    assert letters_of(tmp_path) == [], f"{letter} was put before the commit"


@pytest.mark.parametrize("fails", [False, True])
def test_letters_are_put_although_the_sink_of_a_user_has_the_batch_already(
    spark: SparkSession, tmp_path: Path, fails: bool
) -> None:
    """It needs no rows just then, and commits before their letters are put, which may fail."""
    hub = make_hub(tmp_path, 0, partitions=1)
    hub.send([lh.EventData(reading(1, 1))] * 100 + [lh.EventData(b"no JSON")])
    has: dict[str, int] = {}

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        stale = {p: at for p, at in has.items() if at > batch.ranges[0].first}
        if stale:
            raise lh.StaleBatch("written already", stale)
        has.update((each.partition, each.end) for each in batch.ranges)

    class Letters(SqliteDeadLetters):
        async def put(self, letters: Sequence[lh.DeadLetter]) -> None:
            if fails and not mark.exists():
                mark.touch()
                raise lh.StoreUnavailable("locked")
            await super().put(letters)

    mark = tmp_path / "it-has-failed"
    settings = {"dead_letters": Letters(tmp_path / "dead.db"), "retry_s": 0.05}
    processor(spark, hub, tmp_path, on_batch=on_batch, at_source=None, **settings).run(
        until_drained=True
    )
    assert [each.sequence for each in letters_of(tmp_path)] == [100]
    assert mark.exists() == fails


def test_a_lease_lost_in_mid_job_makes_only_that_part_void(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 300)
    sink = DeltaSink(tmp_path / "table")
    stolen: list[str] = []

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        if not stolen:
            stolen.append(batch.ranges[0].partition)
            worker._host.workers[stolen[0]].lose()
        sink.write(df, batch)

    worker = processor(spark, hub, tmp_path, on_batch=on_batch)
    ranges: list[set[str]] = []
    write = sink.write

    def recorded(df: DataFrame, batch: SparkBatch) -> None:
        write(df, batch)
        ranges.append({each.partition for each in batch.ranges})

    sink.write = recorded  # type: ignore[method-assign]
    worker.run(until_drained=True)
    assert len(ranges[0]) > 1
    assert stolen[0] in ranges[0]
    assert not any(ranges[0] & each for each in ranges[1:] if each != {stolen[0]}), (
        "no other partition's work was done again"
    )
    assert counted(tmp_path) == sent(hub)


def test_a_feed_of_changes_drives_jobs_too(spark: SparkSession, tmp_path: Path) -> None:
    box = lh.Container.create(
        tmp_path / "box.db", name="alerts", namespace="t", partition_key="/home"
    )
    for n in range(60):
        box.upsert({"id": f"{n}", "home": f"h{n % 7}", "level": n})
    rows: list[Any] = []
    store = open_leases(tmp_path)

    def run() -> None:
        SparkProcessor(
            spark,
            box,
            group="unit",
            store=store,
            on_batch=lambda df, batch: rows.extend(df.collect()),
            schema="id string, level int",
            **QUICK,
        ).run(until_drained=True)

    run()
    assert sorted(row.level for row in rows) == list(range(60))
    box.split("0")
    for n in range(60, 90):
        box.upsert({"id": f"{n}", "home": f"h{n % 7}", "level": n})
    run()
    assert sorted(row.level for row in rows) == list(range(90))
    assert {"4", "5"} <= {row.range for row in rows if row.level >= 60}, "the children of range 0"


def test_progress_is_told_with_each_job(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make_hub(tmp_path, 200)
    told: list[Progress] = []
    with caplog.at_level("INFO", "leasehold.spark"):
        processor(spark, hub, tmp_path, on_progress=told.append).run(until_drained=True)
    assert sum(each.events for each in told) == 200
    assert set(told[0].parts) == {"plan", "job", "commit"}
    assert f"{told[0].events:,} events of" in caplog.text


def test_an_on_progress_that_fails_condemns_no_event(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job is done by then."""
    hub, calls = make_hub(tmp_path, 20, partitions=1), list[int]()

    def on_progress(progress: Progress) -> None:
        raise BrokenPipeError("nobody reads this any more")

    SparkProcessor(
        spark,
        hub,
        group="g",
        store=open_leases(tmp_path),
        on_batch=lambda df, batch: calls.append(batch.events),
        on_progress=on_progress,
        dead_letters=dead(tmp_path),
        retry=lh.Retry(attempts=1, then="dead-letter"),
        max_events=10,
        **QUICK,
    ).run(until_drained=True)
    assert sum(calls) == 20
    assert letters_of(tmp_path) == []
    assert caplog.text.count("on_progress failed") == 1


def test_progress_does_not_count_what_was_left_out(spark: SparkSession, tmp_path: Path) -> None:
    hub, told, calls = make_hub(tmp_path, 200, partitions=2), list[Progress](), list[int]()

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        calls.append(1)
        if len(calls) < 5 and any(each.partition == "0" for each in batch.ranges):
            batch.leave_out({"0": SinkUnavailable("its target does not answer")})

    processor(spark, hub, tmp_path, on_batch=on_batch, on_progress=told.append, retry_s=0.05).run(
        until_drained=True
    )
    assert sum(each.events for each in told) == 200


def test_what_is_left_out_needs_a_reason_that_can_be_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub, refused = make_hub(tmp_path, 20, partitions=1), list[BadInput]()

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        with pytest.raises(BadInput, match="None or a SinkUnavailable") as found:
            batch.leave_out({"0": "its target does not answer"})  # type: ignore[dict-item]
        refused.append(found.value)

    processor(spark, hub, tmp_path, on_batch=on_batch).run(until_drained=True)
    assert refused


def test_spark_s_own_pages_say_what_a_job_is_about(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 50, partitions=1)
    said: list[str] = []
    tags: set[str] = set()

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        said.append(spark.sparkContext.getLocalProperty("spark.job.description") or "")
        tags.update(spark.sparkContext.getJobTags())

    processor(spark, hub, tmp_path, on_batch=on_batch, instance="app/1").run(until_drained=True)
    assert said == ["t/sensors/activity at app/1: 50 events of 1 partitions, target 2 s: 0[0,50)"]
    instance, job = sorted(tags)
    assert instance.startswith("leasehold-activity-app_1-")
    assert job == f"{instance}-1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schema": "home_id nonsense"}, "schema"),
        ({"schema": "amount decimal(10,2)"}, "cannot be decoded"),
        ({"schema": "partition int"}, "column partition"),
        ({"tasks": 0}, "tasks"),
        ({"gather_s": -1.0}, "gather_s"),
        ({"cycle_s": 0}, "cycle_s"),
        ({"cycle_bytes": 0.5}, "cycle_bytes"),
        ({"overlap": "no"}, "overlap"),
        ({"max_events": 0}, "max_events"),
        ({"on_batch": "aggregate"}, "on_batch"),
        ({"at_source": lambda frame: 5}, "at_source"),
        ({"group": " "}, "group"),
    ],
)
def test_bad_settings_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    hub = make_hub(tmp_path)
    wanted: dict[str, Any] = {
        "group": "g",
        "store": open_leases(tmp_path),
        "on_batch": lambda df, batch: None,
        **settings,
    }
    with pytest.raises(BadInput, match=message):
        SparkProcessor(spark, hub, **wanted)


def test_a_feed_that_executors_cannot_open_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read by Spark"):
        SparkProcessor(
            spark,
            object(),  # type: ignore[arg-type]
            group="g",
            store=open_leases(tmp_path),
            on_batch=lambda df, batch: None,
        )


def _positions(folder: Path, hub: lh.Hub) -> dict[str, int]:
    async def look() -> dict[str, int]:
        store = open_leases(folder)
        key = Group(namespace=hub.namespace, feed=hub.name, name="activity")
        leases = (await store.snapshot(key)).leases
        await store.close()
        return {each.partition: each.checkpoint.next_sequence for each in leases}

    return asyncio.run(look())


GONE = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import leasehold as lh
from leasehold.spark import local_session
from support.spark_pipeline import processor

spark = local_session(1, settings={{"spark.driver.memory": "512m"}})
java = spark.sparkContext._gateway.proc

def on_batch(df, batch):
    java.kill()
    java.wait()
    df.collect()

folder = Path({folder!r})
processor(
    spark,
    lh.Hub.open(folder / "hub.db"),
    folder,
    on_batch=on_batch,
    dead_letters=lh.open_dead_letters(f"sqlite:///{{folder}}/dead.db"),
    retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
).run()
"""


def test_when_spark_itself_is_gone_the_instance_stops_and_no_event_is_blamed(
    tmp_path: Path,
) -> None:
    hub = make_hub(tmp_path, 50, partitions=1)
    script = GONE.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode != 0
    assert "the Spark session is gone" in ended.stderr
    assert letters_of(tmp_path) == []
    assert _positions(tmp_path, hub) == {"0": 0}
