"""One test for each thing that once broke the table; ``test_delta_model`` looks for more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from support.sink_world import (
    EVENTS,
    LOST,
    PARTITIONS,
    Crash,
    DeltaWorld,
    Frame,
    Job,
    RewindJob,
)

from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, SinkUnavailable, StaleBatch
from leasehold.spark import DeltaSink, SparkBatch
from leasehold.spark.delta.marks import Ids, MarkReader
from leasehold.spark.delta.schema import RETENTION, WRITER

BOTH = dict.fromkeys(PARTITIONS, 5)


@pytest.fixture
def world(tmp_path: Path) -> DeltaWorld:
    return DeltaWorld(tmp_path)


def crashes(world: DeltaWorld, sizes: dict[str, int], **job: Any) -> None:
    with pytest.raises(Crash):
        world.write("one", "i1", sizes, Job(**job))
    world.sinks.clear()


def test_what_was_void_when_it_was_asked_stays_void(world: DeltaWorld) -> None:
    """A renewal that comes late must not bring back what has no files any more."""
    world.write("one", "i1", BOTH, Job(lost=[True, False]))
    done = {p: stream.done for p, stream in world.reader("one").streams.items()}
    assert done == {"0": 5, "1": 0}
    world.check()


@pytest.mark.parametrize("other", ["another group", "a feed recreated"])
def test_a_rewind_removes_the_rows_of_its_own_feed_and_group_alone(
    world: DeltaWorld, other: str
) -> None:
    world.write("two", "i1", BOTH)
    if other == "a feed recreated":
        world.generation += 1
    world.write("one", "i1", BOTH)
    world.append_foreign()
    world.rewind("one", 0, PARTITIONS, RewindJob())
    assert DeltaTable(world.url).count() == 10 + world.foreign
    world.finish()


def test_compaction_does_not_mix_up_whose_rows_are_whose(world: DeltaWorld) -> None:
    world.write("two", "i1", BOTH)
    world.write("one", "i1", BOTH)
    assert DeltaTable(world.url).optimize.compact()["numFilesRemoved"] > 1
    world.rewind("one", 0, PARTITIONS, RewindJob())
    world.check()


def test_crashes_between_commit_and_checkpoint_refuse_nothing_for_ever(world: DeltaWorld) -> None:
    """However many: a batch that is in the table is skipped, one that is in part is cut."""
    crashes(world, {"0": 4}, at_commit="crash after")
    crashes(world, {"0": 9}, at_commit="crash after")
    crashes(world, {"0": 12}, at_commit="crash after")
    stream = world.reader("one").streams["0"]
    assert stream.batches == [(0, 4), (4, 9), (9, 12)]
    world.write("one", "i1", {"0": 3})
    world.finish()


@pytest.mark.parametrize("answer", LOST)
def test_a_rewind_whose_answer_was_lost_removes_nothing_that_came_since(
    world: DeltaWorld, answer: str
) -> None:
    world.write("one", "i1", BOTH)

    def since() -> None:
        world.write("one", "i2", {"0": 3, "1": 4})

    world.rewind("one", 0, PARTITIONS, RewindJob(at=answer, stage="finish", since=since))
    assert DeltaTable(world.url).count() == 7
    world.finish()


def test_a_zombie_does_not_leave_a_gap_where_its_table_was_rewound(world: DeltaWorld) -> None:
    world.write("one", "i1", BOTH)
    world.write("one", "i1", BOTH)
    job = Job(after_job=lambda: world.rewind("one", 5, PARTITIONS, RewindJob()))
    world.write("one", "i1", BOTH, job)
    assert world.reader("one").streams["0"].done == 5
    world.finish()


def test_reading_in_the_middle_of_a_write_lets_no_zombie_commit(world: DeltaWorld) -> None:
    def overtaken() -> None:
        world.write("one", "i2", BOTH)
        world.sink("i1").rows().count_rows()
        world.sink("i1").table()

    world.write("one", "i1", BOTH, Job(after_job=overtaken))
    assert DeltaTable(world.url).count() == 10
    world.check()


def test_marks_say_when_they_were_made_so_that_no_writer_thinks_them_too_old(
    world: DeltaWorld,
) -> None:
    world.write("one", "i1", BOTH)
    world.rewind("one", 2, PARTITIONS, RewindJob())
    texts = [path.read_text() for path in (Path(world.url) / "_delta_log").glob("*.json")]
    marks = [json.loads(line) for text in texts for line in text.splitlines() if '"txn"' in line]
    assert len(marks) > 4
    assert all(each["txn"]["lastUpdated"] > 1_700_000_000_000 for each in marks)


def test_a_table_that_forgets_its_marks_is_refused(world: DeltaWorld) -> None:
    world.write("one", "i1", BOTH)
    DeltaTable(world.url).alter.set_table_properties({RETENTION: "interval 1 days"})
    with pytest.raises(SinkUnavailable, match="UNSET TBLPROPERTIES"):
        world.write("one", "i1", BOTH)
    with pytest.raises(SinkUnavailable, match="UNSET TBLPROPERTIES"):
        world.rewind("one", 0, PARTITIONS, RewindJob())
    world.check()


def test_the_marks_of_all_partitions_cost_each_commit_one_read(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        world.write("one", "i1", dict.fromkeys(PARTITIONS, 1))
    reads: list[str] = []
    monkeypatch.setattr(
        DeltaTable, "transaction_version", lambda *_: pytest.fail("searches the whole log")
    )
    monkeypatch.setattr(
        "leasehold.spark.delta.marks._read", lambda files, path: reads.append(path) or _text(path)
    )

    def _text(path: str) -> bytes:
        return (Path(world.url) / path).read_bytes()

    world.write("one", "i1", BOTH)
    last = f"_delta_log/{DeltaTable(world.url).version() - 1:020d}.json"
    assert reads == [last, last], "the one commit since the last look, and again before the next"
    reads.clear()
    world.write("one", "i2", BOTH)
    again = reads.pop()
    assert again == max(reads), "the newest, before the commit"
    assert len(reads) == len(set(reads)) == DeltaTable(world.url).version(), "each once"
    reads.clear()
    for n in range(10):
        world.write("one", "i1", dict.fromkeys(PARTITIONS, 1))
        assert len(reads) == 2 * (n + 1) + 1, "what i2 wrote is read once, too"


def test_marks_are_the_same_however_the_log_is_kept(world: DeltaWorld) -> None:
    for _ in range(3):
        world.write("one", "i1", BOTH)
    before = MarkReader(world.url, {}).read(DeltaTable(world.url))
    assert before == {id: DeltaTable(world.url).transaction_version(id) for id in before}
    history = {id for id in before if id.endswith("/history")}
    assert {15} == {number for id, number in before.items() if id not in history}
    assert len(history) == len(PARTITIONS)
    table = DeltaTable(world.url)
    table.create_checkpoint()
    for commit in (Path(world.url) / "_delta_log").glob("*.json"):
        if int(commit.stem) < table.version():
            commit.unlink()
    assert MarkReader(world.url, {}).read(table) == before
    world.write("one", "i1", BOTH)
    after = MarkReader(world.url, {}).read(DeltaTable(world.url))
    assert {20} == {number for id, number in after.items() if id not in history}


def test_a_table_made_anew_in_the_same_place_is_not_taken_for_the_old_one(
    world: DeltaWorld, tmp_path: Path
) -> None:
    world.write("one", "i1", BOTH)
    sink = DeltaSink(world.url)
    assert sink.marks(DeltaTable(world.url))
    (tmp_path / "table").rename(tmp_path / "old")
    write_deltalake(world.url, DeltaTable(str(tmp_path / "old")).to_pyarrow_table())
    assert sink.marks(DeltaTable(world.url)) == {}


GROUP = Group(namespace="test", feed="numbers", name="one")


def plain(
    sink: DeltaSink, partition: str, first: int, end: int, during: Any = lambda: None
) -> None:
    """One write, of a lease that nobody takes away. ``during``: while its job runs."""
    asked: list[bool] = []

    def held(_: str) -> bool:
        if not asked:
            asked.append(True)
            during()
        return True

    wanted = Range(partition=partition, first=first, end=end)
    batch = SparkBatch(group=GROUP, instance="i", identity="f", ranges=(wanted,), _held=held)
    numbers = pa.array(range(first, end), pa.int64())
    rows = {"partition": pa.array([partition] * len(numbers)), "sequence": numbers}
    frame: Any = Frame(pa.table(rows))
    sink.write(frame, batch)


def sequences(path: Path, partition: str) -> list[int]:
    rows = DeltaTable(str(path)).to_pyarrow_table(filters=[("partition", "=", partition)])
    return sorted(rows.column("sequence").to_pylist())


OLD_COMMITS = 4
"""One makes the table, and each write adds one."""


def write_first(sink: DeltaSink) -> None:
    for n in range(OLD_COMMITS - 1):
        plain(sink, "0", 10 * n, 10 * (n + 1))


def recreate(path: Path, commits: int) -> None:
    """By another instance, as far as that many commits of another partition."""
    shutil.rmtree(path)
    for n in range(commits - 1):
        plain(DeltaSink(path), "1", n, n + 1)


@pytest.mark.parametrize("commits", [0, 2, OLD_COMMITS, OLD_COMMITS + 1, 3 * OLD_COMMITS])
def test_a_table_that_is_recreated_while_an_instance_runs_has_nothing_of_the_old_one(
    tmp_path: Path, commits: int
) -> None:
    """A table that is brought up to date goes on with whatever log is there."""
    path = tmp_path / "table"
    sink = DeltaSink(path)
    write_first(sink)
    recreate(path, commits)
    for n in range(5):
        plain(sink, "0", 10 * n, 10 * (n + 1))
    assert sequences(path, "0") == [*range(50)]
    assert sequences(path, "1") == [*range(commits - 1)]


@pytest.mark.parametrize("commits", [0, 2, OLD_COMMITS, OLD_COMMITS + 1, 3 * OLD_COMMITS])
def test_a_table_that_is_recreated_during_a_job_does_not_take_what_it_wrote(
    tmp_path: Path, commits: int
) -> None:
    path = tmp_path / "table"
    sink = DeltaSink(path)
    write_first(sink)
    with pytest.raises(SinkUnavailable):
        plain(sink, "0", 30, 40, during=lambda: recreate(path, commits))
    plain(sink, "0", 0, 10)
    assert sequences(path, "0") == [*range(10)]
    files = {file.name for file in path.glob("*.parquet")}
    assert files == {Path(uri).name for uri in DeltaTable(str(path)).file_uris()}, "none is left"


def test_a_table_that_is_recreated_between_two_tries_to_commit_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    sink = DeltaSink(path)
    write_first(sink)
    tries: list[int] = []

    def refused(*_: Any, **__: Any) -> None:
        tries.append(1)
        monkeypatch.undo()
        recreate(path, 3 * OLD_COMMITS)
        raise CommitFailedError("somebody was first")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    with pytest.raises(SinkUnavailable, match="replaced"):
        plain(sink, "0", 30, 40)
    plain(sink, "0", 0, 10)
    assert tries
    assert sequences(path, "0") == [*range(10)]


def test_an_older_copy_of_a_table_that_is_restored_while_an_instance_runs_is_noticed(
    tmp_path: Path,
) -> None:
    """It has the same id, so only its commits tell."""
    path = tmp_path / "table"
    sinks = DeltaSink(path), DeltaSink(path)
    plain(sinks[0], "0", 0, 10)
    shutil.copytree(path, tmp_path / "copy")
    for n in range(1, 5):
        plain(sinks[0], "0", 10 * n, 10 * (n + 1))
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    for n in range(9):
        plain(sinks[1], "1", n, n + 1)
    with pytest.raises(StaleBatch):
        plain(sinks[0], "0", 5, 20)
    plain(sinks[0], "0", 10, 20)
    assert sequences(path, "0") == [*range(20)]


def test_writes_under_way_bring_nothing_of_a_table_back_that_was_recreated(tmp_path: Path) -> None:
    """Two jobs at once, of which the one that began first ends last."""
    path = tmp_path / "table"
    sink = DeltaSink(path)
    write_first(sink)

    def meanwhile() -> None:
        recreate(path, 3 * OLD_COMMITS)
        plain(sink, "2", 0, 10)

    with pytest.raises(SinkUnavailable):
        plain(sink, "0", 30, 40, during=meanwhile)
    plain(sink, "0", 0, 10)
    plain(sink, "2", 10, 20)
    assert (sequences(path, "0"), sequences(path, "2")) == ([*range(10)], [*range(20)])


def test_a_log_that_is_tidied_up_between_two_writes_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "table"
    here, there = DeltaSink(path), DeltaSink(path)
    plain(here, "0", 0, 10)
    plain(there, "1", 0, 10)
    for n in range(1, 4):
        table = DeltaTable(str(path))
        table.create_checkpoint()
        for commit in (path / "_delta_log").glob("*.json"):
            if int(commit.stem) < table.version():
                commit.unlink()
        plain(here, "0", 10 * n, 10 * (n + 1))
        plain(there, "1", 10 * n, 10 * (n + 1))
    assert sequences(path, "0") == sequences(path, "1") == [*range(40)]


def older_table(world: DeltaWorld, *groups: str) -> None:
    """As a version wrote it whose rows did not say whose they are."""
    for name in groups:
        world.write(name, "i1", BOTH)
    rows = DeltaTable(world.url).to_pyarrow_table().drop_columns([WRITER])
    marks = MarkReader(world.url, {}).read(DeltaTable(world.url))
    write_deltalake(
        f"{world.url}-old",
        rows,
        commit_properties=CommitProperties(
            app_transactions=[Transaction(id, number) for id, number in marks.items()]
        ),
    )
    world.url += "-old"
    world.sinks.clear()


@pytest.mark.parametrize("written_since", [False, True])
def test_a_table_of_an_older_version_is_written_on_and_rewound(
    world: DeltaWorld, written_since: bool
) -> None:
    older_table(world, "one")
    if written_since:
        world.write("one", "i1", BOTH)
        assert DeltaTable(world.url).to_pyarrow_table().column(WRITER).null_count == 10
    world.rewind("one", 3, PARTITIONS, RewindJob())
    assert DeltaTable(world.url).count() == 0, "rows cannot be cut"
    world.finish()


def test_where_an_older_table_does_not_tell_whose_rows_they_are_nothing_is_removed(
    world: DeltaWorld,
) -> None:
    older_table(world, "one", "two")
    with pytest.raises(BadInput, match=r"cannot be told. Nothing was changed") as told:
        world.rewind("one", 0, PARTITIONS, RewindJob())
    assert Ids.of(world.reader("two").group, "feed0", "").writer in str(told.value)
    world.write("one", "i1", dict.fromkeys(PARTITIONS, EVENTS))
    world.check()
