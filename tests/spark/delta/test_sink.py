"""Each event's effect in the table exactly once, whoever crashes, wakes up or goes back."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.errors import NumberFormatException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from support.blocking import result_of
from support.spark_pipeline import counted, make_hub, per_home_minute, processor, send, sent
from typer.testing import CliRunner

import leasehold as lh
from leasehold.cli import app
from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, SinkUnavailable, StaleBatch
from leasehold.spark import DeltaSink, SparkBatch
from leasehold.spark.delta.compact import compact
from leasehold.spark.reading import frames
from leasehold.spark.reading.frames import Source, arrow_schema, plan_reading
from leasehold.spark.reading.task import Address

SCHEMA = "partition string, home_id string, value double, ts bigint"


def batch_of(
    hub: lh.Hub, *ranges: Range, lost: set[str] | None = None, source: Source | None = None
) -> SparkBatch:
    return SparkBatch(
        group=Group(namespace=hub.namespace, feed=hub.name, name="activity"),
        instance="test",
        identity=hub.identity,
        ranges=ranges,
        _held=lambda partition: partition not in (lost or ()),
        _source=source,
    )


def source_of(spark: SparkSession, hub: lh.Hub, *ranges: Range) -> Source:
    reading = plan_reading(Address.of(hub), schema=arrow_schema(SCHEMA), at_source=per_home_minute)
    return Source(spark, reading, [ranges])


def rows_of(spark: SparkSession, hub: lh.Hub, *ranges: Range) -> DataFrame:
    return source_of(spark, hub, *ranges).df


def write(sink: DeltaSink, spark: SparkSession, hub: lh.Hub, *ranges: Range, **more: Any) -> None:
    source = source_of(spark, hub, *ranges)
    sink.write(source.df, batch_of(hub, *ranges, source=source, **more))


def whole(hub: lh.Hub) -> list[Range]:
    return [
        Range(partition=each.partition, first=each.first, end=each.end)
        for each in result_of(hub.extents())
        if each.end > each.first
    ]


def total(folder: Path) -> int:
    return sum(counted(folder).values())


def test_rows_carry_the_partition_and_the_range_they_are_made_of(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    ranges = whole(hub)
    write(DeltaSink(tmp_path / "table"), spark, hub, *ranges)
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert counted(tmp_path) == sent(hub)
    known = {(each.partition, each.first, each.end) for each in ranges}
    assert {(r["partition"], r["first_sequence"], r["end_sequence"]) for r in rows} == known


def test_the_same_batch_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 200)
    (first, *_), sink = whole(hub), DeltaSink(tmp_path / "table")
    write(sink, spark, hub, first)
    version = sink.table().version()
    write(sink, spark, hub, first)
    assert sink.table().version() == version
    assert total(tmp_path) == len(first)


def test_a_batch_that_is_there_in_part_is_refused_and_says_where_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    (first, *_), sink = whole(hub), DeltaSink(tmp_path / "table")
    write(sink, spark, hub, Range(partition=first.partition, first=0, end=5))
    with pytest.raises(StaleBatch) as found:
        write(sink, spark, hub, first)
    assert found.value.begin_at == {first.partition: 5}


def test_storage_that_takes_no_file_is_told_in_one_line_and_nothing_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub, table = make_hub(tmp_path, 200), tmp_path / "table"
    sink = DeltaSink(table, partition_by=("home_id",))
    table.mkdir()
    (table / "home_id=H3").write_text("no room for a folder")
    with pytest.raises(SinkUnavailable, match="does not take files: home_id=H3/part-") as found:
        write(sink, spark, hub, *whole(hub))
    assert "\n" not in str(found.value)
    assert total(tmp_path) == 0
    (table / "home_id=H3").unlink()
    write(sink, spark, hub, *whole(hub))
    assert counted(tmp_path) == sent(hub)


def test_storage_that_takes_no_file_is_known_from_rows_of_any_dataframe(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub, table = make_hub(tmp_path, 200), tmp_path / "table"
    sink = DeltaSink(table, partition_by=("home_id",))
    table.mkdir()
    (table / "home_id=H3").write_text("no room for a folder")
    with pytest.raises(SinkUnavailable, match="does not take files: home_id=H3/part-"):
        sink.write(rows_of(spark, hub, *whole(hub)).where("true"), batch_of(hub, *whole(hub)))


def test_a_text_like_storage_trouble_is_not_the_storage_s(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 20)
    text = "x\nleasehold.spark.delta.files.StorageTrouble: y"
    rows = rows_of(spark, hub, *whole(hub))
    rows = rows.withColumn("count", sql.lit(text).cast("bigint"))
    with pytest.raises(NumberFormatException):
        DeltaSink(tmp_path / "table").write(rows, batch_of(hub, *whole(hub)))


def test_a_zombie_that_looked_before_the_new_owner_s_commit_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    (first, *_), zombie = whole(hub), DeltaSink(tmp_path / "table")
    write(
        DeltaSink(tmp_path / "table"), spark, hub, Range(partition=first.partition, first=0, end=5)
    )

    def overtaken(df: DataFrame) -> DataFrame:
        """Between the zombie's look at the table and its commit, the new owner commits."""
        rest = Range(partition=first.partition, first=5, end=first.end)
        write(DeltaSink(tmp_path / "table"), spark, hub, rest)
        return df

    rest = Range(partition=first.partition, first=5, end=first.end - 1)
    original = zombie._asked
    zombie._asked = lambda run, df, batch: original(run, overtaken(df), batch)  # type: ignore[method-assign]
    write(zombie, spark, hub, rest)
    assert total(tmp_path) == len(first)


def test_two_writers_of_different_partitions_do_not_disturb_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 400)
    ranges = whole(hub)
    errors: list[BaseException] = []

    def work(wanted: Range) -> None:
        sink = DeltaSink(tmp_path / "table")
        try:
            for at in range(wanted.first, wanted.end, 20):
                piece = Range(partition=wanted.partition, first=at, end=min(at + 20, wanted.end))
                write(sink, spark, hub, piece)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in ranges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert counted(tmp_path) == sent(hub)


def test_of_a_batch_whose_leases_are_lost_nothing_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    one, two, *_ = whole(hub)
    sink = DeltaSink(tmp_path / "table")
    with pytest.raises(StaleBatch) as found:
        write(sink, spark, hub, one, two, lost={one.partition, two.partition})
    assert found.value.begin_at == {one.partition: None, two.partition: None}
    assert DeltaTable(str(tmp_path / "table")).count() == 0
    assert not list((tmp_path / "table").glob("*.parquet")), "its files are removed again"


@pytest.mark.parametrize("folders", [(), ("minute",), ("partition",), ("partition", "minute")])
def test_a_lost_partition_is_left_out_and_the_rest_is_committed_without_another_job(
    spark: SparkSession, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    hub = make_hub(tmp_path, 200)
    one, two, *others = whole(hub)
    sink = DeltaSink(tmp_path / "table", partition_by=folders)
    write(sink, spark, hub, one, two, *others, lost={two.partition})
    rows = sink.rows().to_table()
    found = Counter[str]()
    for row in rows.to_pylist():
        found[row["partition"]] += row["count"]
    assert found == {each.partition: len(each) for each in (one, *others)}
    named = {Path(file).name for file in sink.table().file_uris()}
    assert {file.name for file in (tmp_path / "table").rglob("*.parquet")} == named
    write(sink, spark, hub, two)
    assert counted(tmp_path) == sent(hub)


@pytest.mark.parametrize("error", [DeltaError("no answer"), CommitFailedError("no answer")])
def test_a_commit_whose_answer_was_lost_counts_once_and_keeps_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    hub = make_hub(tmp_path, 200)
    commit, lost = DeltaTable.create_write_transaction, []

    def loses_the_first_answer(*arguments: Any, **named: Any) -> None:
        commit(*arguments, **named)
        if not lost:
            lost.append(1)
            raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", loses_the_first_answer)
    processor(spark, hub, tmp_path).run(until_drained=True)
    assert lost
    assert counted(tmp_path) == sent(hub)


@pytest.mark.parametrize("value", ["a/b", "50%", "a b", "ä", "../up"])
def test_a_value_that_makes_no_folder_is_kept_all_the_same(
    spark: SparkSession, tmp_path: Path, value: str
) -> None:
    hub = make_hub(tmp_path, 20)
    rows = rows_of(spark, hub, *whole(hub)).withColumn("place", sql.lit(value))
    sink = DeltaSink(tmp_path / "table", partition_by=["place"])
    sink.write(rows, batch_of(hub, *whole(hub)))
    assert counted(tmp_path) == sent(hub)
    found = sink.table().to_pyarrow_table().column("place").unique().to_pylist()
    assert found == [value]


def test_a_gap_is_no_error_because_dead_letters_and_retention_leave_some(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    (first, *_), sink = whole(hub), DeltaSink(tmp_path / "table")
    write(sink, spark, hub, Range(partition=first.partition, first=0, end=5))
    write(sink, spark, hub, Range(partition=first.partition, first=6, end=first.end))
    assert total(tmp_path) == len(first) - 1


def test_a_hub_made_anew_begins_anew_in_the_table(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 200)
    sink = DeltaSink(tmp_path / "table")
    write(sink, spark, hub, *whole(hub))
    other = make_hub(_folder(tmp_path / "other"), 100)
    write(sink, spark, other, *whole(other))
    assert total(tmp_path) == 300


def test_a_group_that_begins_any_number_of_batches_back_is_told_where_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    (first, *_), sink = whole(hub), DeltaSink(tmp_path / "table")
    write(sink, spark, hub, Range(partition=first.partition, first=0, end=5))
    write(sink, spark, hub, Range(partition=first.partition, first=5, end=first.end))
    send(hub, 200)
    longer = next(each for each in whole(hub) if each.partition == first.partition)
    assert longer.end > first.end
    with pytest.raises(StaleBatch) as found:
        write(sink, spark, hub, Range(partition=first.partition, first=2, end=longer.end))
    assert found.value.begin_at == {first.partition: first.end}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda df: df.drop("partition"), "no column 'partition'"),
        (lambda df: df.withColumnRenamed("count", "first_sequence"), "sink's own"),
    ],
)
def test_rows_that_cannot_be_kept_are_refused(
    spark: SparkSession,
    tmp_path: Path,
    change: Callable[[DataFrame], DataFrame],
    message: str,
) -> None:
    hub = make_hub(tmp_path, 20)
    ranges = whole(hub)
    with pytest.raises(BadInput, match=message):
        DeltaSink(tmp_path / "table").write(
            change(rows_of(spark, hub, *ranges)), batch_of(hub, *ranges)
        )


def test_other_columns_than_the_table_s_are_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 20)
    ranges, sink = whole(hub), DeltaSink(tmp_path / "table")
    write(sink, spark, hub, *ranges)
    send(hub, 20)
    more = [
        Range(partition=r.partition, first=r.first + len(r) // 2, end=r.end) for r in whole(hub)
    ]
    with pytest.raises(SinkUnavailable, match=r"sum \(double / not in the rows\)"):
        sink.write(rows_of(spark, hub, *more).drop("sum"), batch_of(hub, *more))


def test_a_table_by_columns_has_a_folder_for_each_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    write(DeltaSink(tmp_path / "table", partition_by=["partition"]), spark, hub, *whole(hub))
    assert counted(tmp_path) == sent(hub)
    folders = {path.parent.name for path in (tmp_path / "table").glob("*/*.parquet")}
    assert folders == {f"partition={each.partition}" for each in whole(hub)}


def test_the_files_say_what_they_hold_so_that_readers_can_pass_over_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 200)
    sink = DeltaSink(tmp_path / "table")
    for each in whole(hub):
        write(sink, spark, hub, each)
    one = whole(hub)[0].partition
    data = sink.table().to_pyarrow_dataset(partitions=None)
    kept = list(data.get_fragments(filter=_is(one)))
    assert len(kept) == 1
    assert len(list(data.get_fragments())) == len(whole(hub))


def test_storage_that_cannot_be_written_blames_no_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 20)
    sink = DeltaSink(tmp_path / "table")
    write(sink, spark, hub, *whole(hub))
    send(hub, 20)
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "table").write_text("a file where the folder was")
    with pytest.raises(SinkUnavailable, match="table"):
        write(sink, spark, hub, *whole(hub))


def test_a_table_whose_folder_was_removed_blames_no_event_and_is_made_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 20)
    sink = DeltaSink(tmp_path / "table")
    write(sink, spark, hub, *whole(hub))
    shutil.rmtree(tmp_path / "table")
    write(sink, spark, hub, *whole(hub))
    assert counted(tmp_path) == sent(hub)


def test_files_of_a_void_batch_whose_table_is_gone_are_no_trouble(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub, gone = make_hub(tmp_path, 20), tmp_path / "table"

    class Lost(set[str]):
        def __contains__(self, partition: object) -> bool:
            shutil.rmtree(gone, ignore_errors=True)
            return True

    with pytest.raises(StaleBatch):
        write(DeltaSink(gone), spark, hub, *whole(hub), lost=Lost("0"))


def test_compaction_beside_a_writer_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 600)
    over = threading.Event()
    errors: list[BaseException] = []

    def tidy() -> None:
        while not over.is_set():
            try:
                if (tmp_path / "table" / "_delta_log").exists():
                    compact(str(tmp_path / "table"), keep_hours=1)
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        processor(spark, hub, tmp_path, max_events=100).run(until_drained=True)
    finally:
        over.set()
        thread.join(60)
    assert not errors
    assert counted(tmp_path) == sent(hub)
    done = compact(str(tmp_path / "table"), keep_hours=1)
    assert done.files_after == 1
    assert counted(tmp_path) == sent(hub)


def test_compact_says_what_it_did(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 100)
    for each in whole(hub):
        write(DeltaSink(tmp_path / "table"), spark, hub, each)
    told = CliRunner().invoke(app, ["compact", str(tmp_path / "table")])
    assert told.exit_code == 0
    assert "files before, 1 now" in told.stdout


@pytest.mark.parametrize("keep", [0.0, -1.0, float("nan")])
def test_files_of_a_commit_under_way_are_not_for_vacuum(tmp_path: Path, keep: float) -> None:
    with pytest.raises(BadInput, match="keep_hours"):
        compact(str(tmp_path), keep_hours=keep)


def rewound(folder: Path, to: str, *more: str) -> Any:
    return CliRunner().invoke(
        app,
        [
            *("rewind", str(folder / "hub.db"), "--group", "activity", "--to", to, "--yes"),
            *("--store", f"sqlite:///{folder}/leases.db"),
            *more,
        ],
    )


@pytest.mark.parametrize("to", ["earliest", "sequence:7"])
def test_after_a_rewind_the_replayed_range_counts_once(
    spark: SparkSession, tmp_path: Path, to: str
) -> None:
    hub = make_hub(tmp_path, 600)
    processor(spark, hub, tmp_path, max_events=100).run(until_drained=True)
    before = total(tmp_path)
    told = rewound(tmp_path, to, "--sink", str(tmp_path / "table"))
    assert told.exit_code == 0, told.output
    assert total(tmp_path) < before
    if to == "earliest":
        assert total(tmp_path) == 0
    assert _checkpoints(tmp_path, hub) == _committed(tmp_path, hub)
    processor(spark, hub, tmp_path).run(until_drained=True)
    assert counted(tmp_path) == sent(hub)


def test_a_rewind_that_was_cut_short_is_noticed_and_finished_by_another(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasehold.spark.delta.rewind import DeltaRewind  # noqa: PLC0415

    hub = make_hub(tmp_path, 200)
    processor(spark, hub, tmp_path).run(until_drained=True)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaRewind, "finish", lambda *_: 1 / 0)
        assert rewound(tmp_path, "earliest", "--sink", str(tmp_path / "table")).exit_code == 1
    with pytest.raises(StaleBatch) as told:
        write(DeltaSink(tmp_path / "table"), spark, hub, *whole(hub))
    assert all("not finished" in str(each) for each in told.value.begin_at.values())
    told = rewound(tmp_path, "earliest", "--sink", str(tmp_path / "table"))
    assert told.exit_code == 0, told.output
    assert total(tmp_path) == 0
    processor(spark, hub, tmp_path).run(until_drained=True)
    assert counted(tmp_path) == sent(hub)


def test_rewinding_a_table_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    make_hub(tmp_path, 20)
    told = rewound(tmp_path, "earliest", "--sink", str(tmp_path / "nowhere"))
    assert isinstance(told.exception, BadInput)
    assert "no Delta table" in str(told.exception)


def _checkpoints(folder: Path, hub: lh.Hub) -> dict[str, int]:
    async def look() -> dict[str, int]:
        store = lh.open_store(f"sqlite:///{folder}/leases.db")
        group = Group(namespace=hub.namespace, feed=hub.name, name="activity")
        leases = (await store.snapshot(group)).leases
        await store.close()
        return {each.partition: each.checkpoint.next_sequence for each in leases}

    found = asyncio.run(look())
    return {p: at for p, at in found.items() if p in {r.partition for r in whole(hub)}}


def _committed(folder: Path, hub: lh.Hub) -> dict[str, int]:
    from leasehold.spark.delta.marks import Ids  # noqa: PLC0415

    table = DeltaTable(str(folder / "table"))
    group = Group(namespace=hub.namespace, feed=hub.name, name="activity")
    return {
        each.partition: table.transaction_version(Ids.of(group, hub.identity, each.partition).done)
        or 0
        for each in whole(hub)
    }


def _is(partition: str) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.field("partition") == partition


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("as_it_came", [True, False])
def test_the_frame_of_the_batch_is_written_where_it_is_read_and_any_other_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_it_came: bool
) -> None:
    hub = make_hub(tmp_path, 200)
    ranges, mapped = whole(hub), []
    source = source_of(spark, hub, *ranges)
    df = source.df if as_it_came else source.df.withColumn("count", sql.col("count"))
    at_source = Source.collect
    monkeypatch.setattr(Source, "collect", lambda *given: mapped.append(given) or at_source(*given))
    batch = batch_of(hub, *ranges, source=source)
    assert batch.df is source.df
    DeltaSink(tmp_path / "table").write(df, batch)
    assert bool(mapped) is as_it_came
    assert counted(tmp_path) == sent(hub)


def test_without_a_context_rows_are_written_where_they_are_read_all_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Spark Connect, which the tests of clusters try."""
    hub = make_hub(tmp_path, 200)
    monkeypatch.setattr(frames, "_numbered", lambda spark, tasks: None)
    write(DeltaSink(tmp_path / "table"), spark, hub, *whole(hub))
    assert counted(tmp_path) == sent(hub)


def test_jobs_with_and_without_a_dataframe_have_the_same_workers(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Or each core would have two of them, with all that is loaded."""
    hub = make_hub(tmp_path, 200)
    source = source_of(spark, hub, *whole(hub))

    def worker(batches: Any) -> Iterator[int]:
        for _ in batches:
            pass
        yield os.getpid()

    ours = [pid for _ in range(4) for pid in source.collect(worker)]
    theirs = [pid for _ in range(4) for pid in frames.collected(source.df, worker)]
    assert set(ours) & set(theirs)
