"""One test for each thing that once broke the table; ``test_delta_model`` looks for more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from support.sink_world import EVENTS, LOST, PARTITIONS, Crash, DeltaWorld, Job, RewindJob

from leasehold.errors import BadInput, SinkUnavailable
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
    assert len(reads) == 1, "the one commit since the last look"
    reads.clear()
    world.write("one", "i2", BOTH)
    assert len(reads) == len(set(reads)) == DeltaTable(world.url).version(), "each once"


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
    reader = MarkReader(world.url, {})
    reader.read(DeltaTable(world.url))
    (tmp_path / "table").rename(tmp_path / "old")
    write_deltalake(world.url, DeltaTable(str(tmp_path / "old")).to_pyarrow_table())
    assert reader.read(DeltaTable(world.url)) == {}


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
