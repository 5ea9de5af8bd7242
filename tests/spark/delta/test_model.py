"""Whatever crashes, answers late or not at all, goes back or comes between: the table holds each
event of each feed, group and partition once, up to what was committed, and can be read."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.sink_world import EVENTS, FAULTS, LOST, PARTITIONS, Crash, DeltaWorld, Job, RewindJob

from leasehold.errors import SinkUnavailable
from leasehold.operations.sink_rewind import RewindWithSink
from leasehold.sinks import Fence
from leasehold.spark import DeltaSink
from leasehold.spark.delta.rewind import DeltaRewind
from leasehold.testing.check_sink import CHECKS
from leasehold.testing.sink_world import ScriptedBatch

pytestmark = pytest.mark.takes_s(45)

GROUPS, INSTANCES = ("one", "two"), ("i1", "i2")
AFTER_JOB = ("nothing", "crash", "read", "overtake", "compact", "foreign", "tidy the log", "rewind")
sizes = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(1, 9), min_size=1)
faults = st.just("") | st.sampled_from(FAULTS)
groups = st.sampled_from(GROUPS)


class Sink(RuleBasedStateMachine):
    @initialize(partition_by=st.sampled_from([(), ("ten",), ("partition",)]))
    def begin(self, partition_by: tuple[str, ...]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.world = DeltaWorld(Path(self.folder.name), partition_by)

    @rule(
        group=groups,
        instance=st.sampled_from(INSTANCES),
        sizes=sizes,
        lost=st.just([]) | st.lists(st.booleans(), max_size=3),
        after=st.just("nothing") | st.sampled_from(AFTER_JOB),
        late=st.booleans(),
        at_commit=faults,
        to=st.integers(0, 20),
    )
    def write(
        self,
        *,
        group: str,
        instance: str,
        sizes: dict[str, int],
        lost: list[bool],
        after: str,
        late: bool,
        at_commit: str,
        to: int,
    ) -> None:
        """``late``: what happens meanwhile happens before the sink is asked for anything."""

        def between() -> None:
            match after if self.world.exists else "nothing":
                case "crash":
                    raise Crash
                case "read":
                    self.world.sink(instance).rows().count_rows()
                case "overtake":
                    self.attempt(group, "i3", dict.fromkeys(PARTITIONS, 3), Job())
                case "compact":
                    DeltaTable(self.world.url).optimize.compact()
                case "foreign":
                    self.world.append_foreign()
                case "tidy the log":
                    self.tidy()
                case "rewind":
                    self.world.rewind(group, to, PARTITIONS, RewindJob())

        job = Job(lost=lost, at_commit=at_commit)
        setattr(job, "before_write" if late else "after_job", between)
        self.attempt(group, instance, sizes, job)

    def attempt(self, group: str, instance: str, sizes: dict[str, int], job: Job) -> None:
        streams = self.world.reader(group).streams
        faulty = job.at_commit.startswith("answer lost")
        try:
            self.world.write(group, instance, sizes, job)
        except Crash:
            self.world.sinks.pop(instance, None)
        except SinkUnavailable:
            marked = any(streams[partition].marked for partition in sizes)
            lost = any(self.world.reader(group).is_lost(partition) for partition in sizes)
            if not (faulty or marked or lost):
                raise

    @precondition(lambda self: self.world.exists)
    @rule(
        group=groups,
        to=st.integers(0, 30),
        partitions=st.sampled_from([PARTITIONS, ("0",), ("1",)]),
        stage=st.sampled_from(["begin", "finish"]),
        at=st.sampled_from(FAULTS),
    )
    def rewind(self, *, group: str, to: int, partitions: Any, stage: str, at: str) -> None:
        def written_since() -> None:
            self.attempt(group, "i3", dict.fromkeys(PARTITIONS, 3), Job())

        with contextlib.suppress(Crash):
            self.world.rewind(
                group, to, partitions, RewindJob(at=at, stage=stage, since=written_since)
            )

    @precondition(lambda self: self.world.exists)
    @rule(group=groups, to=st.integers(0, 30), at=st.sampled_from(sorted(LOST)))
    def rewind_without_an_answer(self, group: str, to: int, at: str) -> None:
        self.rewind(group=group, to=to, partitions=PARTITIONS, stage="finish", at=at)

    @precondition(lambda self: self.world.generation < 1)
    @rule()
    def make_the_feed_anew(self) -> None:
        self.world.generation += 1

    @rule(group=groups, partition=st.sampled_from(PARTITIONS), to=st.integers(0, 20))
    def roll_the_feed_back(self, group: str, partition: str, to: int) -> None:
        self.world.reader(group).feed.roll_back(partition, to)

    @precondition(lambda self: self.world.exists)
    @rule(group=groups, partition=st.sampled_from(PARTITIONS), to=st.integers(0, 8))
    def roll_the_feed_back_and_rewind_less(self, group: str, partition: str, to: int) -> None:
        """Before any pump has noticed."""
        reader = self.world.reader(group)
        ends = [end for _, end in reader.streams[partition].batches if end > to]
        reader.feed.roll_back(partition, to)
        self.world.rewind(group, min(ends, default=EVENTS), [partition])

    @rule(instance=st.sampled_from(INSTANCES))
    def start_again(self, instance: str) -> None:
        self.world.sinks.pop(instance, None)

    @precondition(lambda self: self.world.exists)
    @rule()
    def append_foreign(self) -> None:
        self.world.append_foreign()

    @precondition(lambda self: self.world.exists)
    @rule()
    def compact(self) -> None:
        """With no job under way, whatever the table does not name may go."""
        table = DeltaTable(self.world.url)
        table.optimize.compact()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    @precondition(lambda self: self.world.exists)
    @rule()
    def tidy(self) -> None:
        """What is in the log becomes a checkpoint, and the commits are removed."""
        table = DeltaTable(self.world.url)
        table.create_checkpoint()
        log = Path(self.world.url) / "_delta_log"
        for commit in log.glob("*.json"):
            if int(commit.stem) < table.version():
                commit.unlink()

    @invariant()
    def the_table_is_as_it_should_be(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()
            self.folder.cleanup()


def removes_what_it_could_not_commit(commit: Any) -> Any:
    def broken(sink: DeltaSink, *rest: Any) -> None:
        try:
            commit(sink, *rest)
        except Exception:
            for row in rest[-1]:
                (Path(sink.url) / row.path).unlink(missing_ok=True)
            raise

    return broken


def looks_again_before_it_commits(commit: Any) -> Any:
    def broken(sink: DeltaSink, table: DeltaTable, *rest: Any) -> None:
        table.update_incremental()
        commit(sink, table, *rest)

    return broken


BROKEN: dict[str, tuple[Any, str, Any]] = {
    "files of a commit whose answer was lost go": (
        DeltaSink,
        "_commit",
        removes_what_it_could_not_commit(DeltaSink._commit),
    ),
    "the table is brought up to date in mid-write": (
        DeltaSink,
        "_commit",
        looks_again_before_it_commits(DeltaSink._commit),
    ),
    "a rewind takes all rows of the partition": (DeltaRewind, "_ours", lambda *_: "TRUE"),
    "a rewind is finished twice": (DeltaRewind, "_under_way", lambda *_: True),
    "a rollback is not noticed": (Fence, "_rolled_back", lambda *_: {}),
    "what was before a rewind leaves a gap": (
        ScriptedBatch,
        "confirmed",
        lambda _, partitions: frozenset(partitions),
    ),
    "a rewind ends in what the feed has lost": (
        RewindWithSink,
        "_kept",
        lambda _, marks, ends: ends,
    ),
    "a table stays marked for nobody": (DeltaRewind, "begin", lambda *_: None),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_sink_is_noticed(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the rules of the suite, which take a moment, or else by the model."""
    monkeypatch.setattr(*BROKEN[what])
    few = settings(
        max_examples=200,
        stateful_step_count=20,
        report_multiple_bugs=False,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )

    def look() -> None:
        for each in CHECKS:
            each(DeltaWorld(tmp_path / each.__name__))
        run_state_machine_as_test(Sink, settings=few)

    with pytest.raises((AssertionError, SinkUnavailable, DeltaError, OSError)):
        look()


TestSink = Sink.TestCase
TestSink.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
)
