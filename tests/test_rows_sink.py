"""A sink of another package, found by its entry point: the one that the how-to page writes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rows_sink
from check_rows_sink import RowsUnderTest
from pyspark.sql import SparkSession
from rows_sink import RowsRewind, RowsSink
from support.command_line import leasehold

import leasehold as lh
from leasehold.sinks import Fence
from leasehold.spark import SparkProcessor
from leasehold.testing.check_sink import CHECKS, Check
from leasehold.testing.sink_world import World

HERE = Path(rows_sink.__file__).parent
PAGE = Path(__file__).parents[1] / "docs/how-to/write-a-sink.md"


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_it_does_what_every_sink_must_do(rule: Check, tmp_path: Path) -> None:
    rule(World(RowsUnderTest(tmp_path)))


@pytest.mark.parametrize("name", ["rows_sink.py", "check_rows_sink.py"])
def test_the_how_to_page_shows_it_as_it_is(name: str) -> None:
    shown = re.findall(rf"```python\n(# {name}\n.*?)```", PAGE.read_text(), re.S)
    assert shown == [(HERE / name).read_text()]


def make_hub(folder: Path, events: int) -> lh.Hub:
    hub = lh.Hub.create(folder / "hub.db", name="sensors", namespace="n", partitions=2)
    for number in range(events):
        hub.send([lh.EventData(f'{{"n": {number}}}')], partition_id=number % 2)
    return hub


def processed(spark: SparkSession, folder: Path, hub: lh.Hub, sink: lh.Sink) -> str:
    """What it reported, as a registry of its own shows it."""
    registry = lh.Registry()
    SparkProcessor(
        spark,
        hub,
        group="activity",
        store=lh.open_store(f"sqlite:///{folder}/leases.db"),
        schema="n bigint",
        on_batch=sink.write,
        balance_interval_s=0.2,
        lease_ttl_s=30.0,
        telemetry=registry,
    ).run(until_drained=True)
    return registry.render()


def test_spark_writes_to_it_and_the_command_line_rewinds_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub, url = make_hub(tmp_path, 20), f"rows://{tmp_path}/rows.db"
    sink = lh.open_sink(url)
    assert isinstance(sink, lh.Sink)
    told = processed(spark, tmp_path, hub, sink)
    handled = re.findall(r"^leasehold_events_handled_total.* (\d+)$", told, re.M)
    assert sum(map(int, handled)) == 20
    assert isinstance(sink, RowsSink)
    assert sorted(row["n"] for row in sink.rows()) == list(range(20))
    store = f"sqlite:///{tmp_path}/leases.db"
    done = leasehold(
        *("rewind", tmp_path / "hub.db", "--group", "activity", "--store", store),
        *("--to", "earliest", "--partition", "1", "--sink", url, "--yes", "--fence"),
    )
    assert "10 rows removed from the sink" in done.stderr
    assert sorted(row["n"] for row in sink.rows()) == list(range(0, 20, 2))
    processed(spark, tmp_path, hub, sink)
    assert sorted(row["n"] for row in sink.rows()) == list(range(20))


def test_an_unknown_scheme_is_answered_with_what_there_is_and_what_would_do() -> None:
    with pytest.raises(lh.BadInput) as told:
        lh.open_sink("iceberg://warehouse/activity")
    text = str(told.value)
    assert "unknown sink scheme iceberg://" in text
    assert "data/activity" in text
    assert "rows://" in text
    assert "'leasehold.sinks'" in text


def test_a_setting_that_a_sink_does_not_have_is_named() -> None:
    with pytest.raises(lh.BadInput, match="column"):
        lh.open_sink("rows:///tmp/rows.db", column="range")


class Broken(RowsSink):
    """Each test breaks it in one way."""


def writes_all_twice(sink: Any, writer: str, seen: Any, change: Any) -> bool:
    return COMMIT(sink, writer, seen, lambda db: change(db) and change(db))


def forgets_its_marks(sink: Any, writer: str, seen: Any, change: Any) -> bool:
    return COMMIT(sink, writer, seen, lambda db: change(db) and {})


def commits_whatever_came_between(sink: Any, writer: str, seen: Any, change: Any) -> bool:
    return COMMIT(sink, writer, {}, change)


def forgets_the_history(sink: Any, writer: str, seen: Any, change: Any) -> bool:
    def without_history(db: Any) -> Any:
        return {p: replace(mark, history=0) for p, mark in change(db).items()}

    return COMMIT(sink, writer, seen, without_history)


def takes_one_partition_only(sink: Any, writer: str, seen: Any, change: Any) -> bool:
    if sink.marks(writer).keys() - seen.keys():
        raise lh.SinkUnavailable("somebody else was here")
    return COMMIT(sink, writer, seen, change)


def takes_what_is_there(self: Fence, batch: Any, marks: Any, ranges: Any = None) -> Any:
    """It does not look, and adds to whatever there is."""
    ends = {each.partition: each.end for each in batch.ranges}
    histories = batch.numbers_at_end()
    return {
        p: replace(marks.get(p, lh.SinkMark()), next_sequence=end, history=histories[p])
        for p, end in ends.items()
    }


def refuses_what_is_there(self: Fence, batch: Any, marks: Any, ranges: Any = None) -> Any:
    """All of it, too."""
    if not (found := CHECK_MARKS(self, batch, marks, ranges)):
        raise lh.StaleBatch("it is there", {each.partition: each.end for each in batch.ranges})
    return found


def refuses_gaps(self: Fence, batch: Any, marks: Any, ranges: Any = None) -> Any:
    for each in batch.ranges:
        if marks.get(each.partition, lh.SinkMark()).next_sequence < each.first:
            raise lh.SinkUnavailable("some is missing")
    return CHECK_MARKS(self, batch, marks, ranges)


def names_all_partitions(self: Fence, batch: Any, marks: Any, ranges: Any = None) -> Any:
    try:
        return CHECK_MARKS(self, batch, marks, ranges)
    except lh.StaleBatch as stale:
        all_of_them = dict.fromkeys((each.partition for each in batch.ranges), None)
        raise lh.StaleBatch("some is there", all_of_them | stale.begin_at) from stale


def forgets_rewinds(self: Fence, batch: Any, marks: Any, ranges: Any = None) -> Any:
    """Those that are over."""
    without = {p: replace(mark, rewind=max(0, mark.rewind)) for p, mark in marks.items()}
    found = CHECK_MARKS(self, batch, without, ranges)
    rewinds = {p: mark.rewind for p, mark in marks.items()}
    return {p: replace(mark, rewind=rewinds.get(p, 0)) for p, mark in found.items()}


def refuses_gaps_after_rewinds(self: Fence, batch: Any, marks: Any, ranges: Any = None) -> Any:
    for each in batch.ranges:
        mark = marks.get(each.partition, lh.SinkMark())
        if mark.rewind and mark.next_sequence < each.first:
            raise lh.StaleBatch("of before the rewind", {each.partition: None})
    return CHECK_MARKS(self, batch, marks, ranges)


def writes_rows_before_the_commit(self: Any, df: Any, batch: Any) -> None:
    with self.database() as db:
        for row in df.toArrow().to_pylist():
            db.execute("INSERT INTO rows VALUES ('', '', 0, 0, ?)", (rows_sink.json.dumps(row),))
    WRITE(self, df, batch)


def tries_again_without_looking(self: Any, df: Any, batch: Any) -> None:
    try:
        WRITE(self, df, batch)
    except lh.SinkUnavailable as error:
        if "no answer" not in str(error):
            raise
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fence, "check", takes_what_is_there)
            WRITE(self, df, batch)


def refuses_all_if_some_is_lost(batch: Any) -> Any:
    if lost := batch.lost():
        raise lh.StaleBatch("some is lost", dict.fromkeys(lost, None))
    return batch.ranges


def refuses_marked_partitions(self: Any, partitions: Any) -> None:
    if any(self.marks()[each].rewind > 0 for each in partitions if each in self.marks()):
        raise lh.SinkUnavailable("another rewind is under way")
    BEGIN(self, partitions)


def finishes_again_without_looking(self: Any, positions: Any, histories: Any) -> int:
    try:
        return FINISH(self, positions, histories)
    except lh.SinkUnavailable:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows_sink, "under_way", lambda *_: True)
            return FINISH(self, positions, histories)


FINISH = RowsRewind.finish
COMMIT, WRITE, CHECK_MARKS, BEGIN = RowsSink.commit, RowsSink.write, Fence.check, RowsRewind.begin
NOTICED: dict[str, tuple[Any, str, Any]] = {
    "each_event_is_there_once": (Broken, "commit", writes_all_twice),
    "a_batch_that_is_there_is_not_written_again_and_not_refused": (
        Fence,
        "check",
        refuses_what_is_there,
    ),
    "a_batch_that_is_there_in_part_is_refused_and_says_where_to_continue": (
        Fence,
        "check",
        takes_what_is_there,
    ),
    "of_a_batch_that_is_there_in_part_nothing_is_written": (Fence, "check", names_all_partitions),
    "a_gap_is_no_error_because_dead_letters_and_retention_leave_some": (
        Fence,
        "check",
        refuses_gaps,
    ),
    "what_crashed_before_its_commit_is_not_there": (
        Broken,
        "write",
        writes_rows_before_the_commit,
    ),
    "what_crashed_between_commit_and_checkpoint_is_not_written_again": (
        Broken,
        "commit",
        forgets_its_marks,
    ),
    "a_commit_whose_answer_was_lost_counts_once": (Broken, "write", tries_again_without_looking),
    "a_zombie_writes_nothing_that_the_new_owner_has_written": (
        Broken,
        "commit",
        commits_whatever_came_between,
    ),
    "reading_in_the_middle_of_a_write_lets_no_zombie_commit": (
        Broken,
        "commit",
        commits_whatever_came_between,
    ),
    "a_partition_whose_lease_is_lost_is_left_out_and_stays_so": (
        rows_sink,
        "still_held",
        lambda batch: (batch.lost() and batch.ranges) or batch.ranges,
    ),
    "a_partition_whose_lease_is_lost_costs_itself_only": (
        rows_sink,
        "still_held",
        refuses_all_if_some_is_lost,
    ),
    "letters_of_what_was_not_read_are_put_before_the_commit": (
        rows_sink,
        "still_held",
        lambda batch: tuple(each for each in batch.ranges if each.partition not in batch.lost()),
    ),
    "writers_of_other_partitions_do_not_disturb_one_another": (
        Broken,
        "commit",
        takes_one_partition_only,
    ),
    "groups_and_recreated_feeds_share_a_sink": (
        rows_sink,
        "writer_of",
        lambda group, identity: group.feed,
    ),
    "what_was_rewound_is_gone_and_can_be_written_again": (
        RowsRewind,
        "begin_at",
        lambda _, wanted: wanted,
    ),
    "a_rewind_touches_its_own_feed_and_group_alone": (
        rows_sink,
        "writer_of",
        lambda group, identity: group.name,
    ),
    "nobody_writes_before_a_rewind_is_finished": (RowsRewind, "begin", lambda *_: None),
    "a_crash_anywhere_in_a_rewind_is_mended_by_doing_it_again": (
        RowsRewind,
        "begin",
        refuses_marked_partitions,
    ),
    "a_rewind_whose_answer_was_lost_removes_nothing_that_came_since": (
        RowsRewind,
        "finish",
        finishes_again_without_looking,
    ),
    "a_write_under_way_while_its_sink_is_rewound_writes_nothing": (
        Fence,
        "check",
        forgets_rewinds,
    ),
    "a_batch_of_before_a_rewind_leaves_no_gap_however_new_its_process_is": (
        Fence,
        "check",
        forgets_rewinds,
    ),
    "a_batch_of_before_a_rewind_leaves_no_gap_although_its_process_has_written_since": (
        Fence,
        "check",
        forgets_rewinds,
    ),
    "a_gap_is_no_error_after_a_rewind_and_not_after_one_that_was_cancelled_either": (
        Fence,
        "check",
        refuses_gaps_after_rewinds,
    ),
    "a_write_under_way_while_a_rewind_begins_writes_nothing": (
        Broken,
        "commit",
        commits_whatever_came_between,
    ),
    "events_with_the_sequences_of_lost_ones_wait_for_a_rewind": (
        Broken,
        "commit",
        forgets_the_history,
    ),
    "a_rewind_does_not_end_in_what_the_feed_has_lost": (Broken, "commit", forgets_the_history),
    "whatever_happens_in_whatever_order_each_event_counts_once": (
        Broken,
        "commit",
        commits_whatever_came_between,
    ),
}


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_each_rule_notices_a_sink_that_breaks_it(
    rule: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*NOTICED[rule.__name__], raising=False)
    with pytest.raises((AssertionError, lh.LeaseholdError)):
        rule(World(RowsUnderTest(tmp_path, Broken)))
