"""Several sinks in one ``on_batch`` while everything fails by chance: storages before, in and after
a commit, letters, events, leases. Each sink has every event once, and what counts as done is in all
of them, or a dead letter.

Jobs, the processor's part in them, batch and fence are real; Spark and storages are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from support.at_once import AtOnce

from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import SinkUnavailable, StaleBatch, StoreUnavailable
from leasehold.ports import SinkMark
from leasehold.processor.handlers import NotHandled
from leasehold.sinks import Fence, still_held
from leasehold.spark import processor
from leasehold.spark.batch import SparkBatch
from leasehold.spark.jobs import Jobs, SparkJob
from leasehold.spark.pacer import Pacer
from leasehold.testing.sim_time import SimClock, run_virtual

Event = tuple[str, int]
TRIALS, BLOCKS = 400, 4
JOBS_MAX = 20_000
GROUP = Group(namespace="t", feed="sensors", name="g")


class World:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.partitions = [str(n) for n in range(self.chance.randint(1, 3))]
        self.end = self.chance.randint(1, 30)
        self.fails = self.chance.choice([0.0, 0.1, 0.3])
        self.overtakes = self.chance.choice([0.0, 0.0, 0.2])
        self.loses = self.chance.choice([0.0, 0.1, 0.3])
        self.leaves_out = self.chance.choice([0.0, 0.0, 0.15])
        self.bad = self.some(0.2)
        self.alerts = self.some(0.15)
        self.poison = {event: self.chance.randint(0, 3) for event in self.some(0.04)}
        """By event: the sink before which it raises."""
        self.letters: set[Event] = set()
        self.dead: set[Event] = set()
        self.sinks = [Table(self) for _ in range(self.chance.randint(1, 3))]
        self.for_alerts = self.chance.choice([None, *self.sinks])
        """Written to only if there are any."""

    def some(self, part: float) -> set[Event]:
        every = ((name, n) for name in self.partitions for n in range(self.end))
        return {event for event in every if self.chance.random() < part}

    def may_fail(self, error: Exception) -> None:
        if self.chance.random() < self.fails:
            raise error

    def wanted(self, table: Table, event: Event) -> bool:
        return table is not self.for_alerts or event in self.alerts

    def on_batch(self, df: Rows, batch: SparkBatch) -> None:
        events = set(events_of(batch.ranges))
        for number, table in enumerate(self.sinks):
            if any(self.poison.get(event) == number for event in events):
                raise ValueError("poison")
            if self.chance.random() < self.leaves_out:
                name = self.chance.choice(batch.ranges).partition
                batch.leave_out({name: SinkUnavailable("its own target does not answer")})
            if any(self.wanted(table, event) for event in events):
                table.write(df, batch)
        if self.chance.random() < 0.2:
            df.read()


class Rows:
    """What a batch's DataFrame and its source are: whoever reads them has put the bad ones."""

    planned_s = 0.0

    def __init__(self, world: World, _reading: None, ranges: list[Range], *_: object) -> None:
        self.world, self.ranges, self.was_read = world, ranges, False

    @property
    def df(self) -> Rows:
        return self

    def read(self) -> None:
        self.world.may_fail(StoreUnavailable("the dead letters"))
        self.world.letters |= self.world.bad & set(events_of(self.ranges))
        self.was_read = True

    def put_letters(self) -> None:
        if not self.was_read:
            self.read()


class Table:
    def __init__(self, world: World) -> None:
        self.world, self.fence = world, Fence("memory")
        self.marks: dict[str, SinkMark] = {}
        self.rows: list[Event] = []
        self.reads = world.chance.random() < 0.7
        """Else its rows are of something else, such as the ranges."""
        self.raises = world.chance.random() < 0.2
        """Of what it has as a whole, too, as a user's own may."""

    def write(self, df: Rows, batch: SparkBatch) -> None:
        self.world.may_fail(SinkUnavailable("before"))
        if not self.fence.check(batch, self.marks):
            if self.raises and self is self.world.sinks[-1]:
                raise StaleBatch("it is there", {each.partition: each.end for each in batch.ranges})
            return
        if self.reads:
            df.read()
        self.world.may_fail(SinkUnavailable("in the middle"))
        held = still_held(batch)
        if self.world.chance.random() < self.world.overtakes:
            self.another_commits(held)
            try:
                if not self.fence.check(batch, self.marks, held):
                    return
            except StaleBatch as stale:
                if stale.begin_at.keys() >= {each.partition for each in held}:
                    lost = dict.fromkeys(batch.lost(), None)
                    raise StaleBatch(str(stale), lost | stale.begin_at) from stale
                batch.leave_out({name: SinkUnavailable("overtaken") for name in stale.begin_at})
            held = still_held(batch)
        self.commit(held)
        self.world.may_fail(SinkUnavailable("and the answer is lost"))

    def another_commits(self, held: tuple[Range, ...]) -> None:
        """A part of it: one that lost the lease before, or has it next."""
        each = self.world.chance.choice(held)
        end = self.world.chance.randint(each.first + 1, each.end)
        theirs = Range(partition=each.partition, first=each.first, end=end)
        self.world.letters |= self.world.bad & set(events_of([theirs]))
        self.commit([theirs])

    def commit(self, ranges: Any) -> None:
        for each in ranges:
            done = self.marks.get(each.partition, SinkMark()).next_sequence
            assert done <= each.first, "twice"
            for event in events_of([Range(partition=each.partition, first=done, end=each.first)]):
                assert event in self.world.dead or not self.world.wanted(self, event), "a gap"
            self.rows += events_of([each])
            self.marks[each.partition] = SinkMark(next_sequence=each.end)


def events_of(ranges: Any) -> Iterator[Event]:
    return ((each.partition, n) for each in ranges for n in range(each.first, each.end))


class Trial:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.ran = 0
        self.jobs = Jobs(
            self.run_job,
            threads=AtOnce(),
            clock=SimClock(),
            gather_s=0.01,
            pacer=Pacer(target_s=2.0, max_events=1_000_000, overlap=False),
            watch=lambda running, job: running,
        )

    def run_job(self, job: SparkJob) -> Any:
        self.ran += 1
        assert self.ran < JOBS_MAX, "no end"
        pulse = SimpleNamespace(tagged=untagged, was_cancelled=lambda tag: False)
        stub = SimpleNamespace(
            _require_same_feed=lambda: None,
            _tasks=1,
            _spark=self.world,
            _reading=None,
            _describe=lambda job: None,
            _pulse=pulse,
            _tag="t",
            _on_batch=self.world.on_batch,
            _require_spark=lambda error: None,
            _progress=lambda batch, seconds: None,
            _batch=self.batch,
        )
        return processor.SparkProcessor._run_job(stub, job)  # type: ignore[arg-type]

    def batch(self, job: SparkJob, source: Any) -> SparkBatch:
        return SparkBatch(
            group=GROUP,
            instance="i",
            identity="",
            ranges=job.ranges,
            _held=lambda partition: self.world.chance.random() >= self.world.loses,
            _confirm=frozenset,
            _source=source,
        )

    async def main(self) -> None:
        await asyncio.gather(*map(self.pump, self.world.partitions))

    async def pump(self, partition: str) -> None:
        """In ranges of any size, tried again; in parts, and then a dead letter, if it fails."""
        world, at, failed, size = self.world, 0, 0, 0
        while at < world.end:
            left = world.end - at
            size = min(size or world.chance.randint(1, left), left)
            asked = Range(partition=partition, first=at, end=at + size)
            try:
                await self.jobs.handle(asked, alone=failed > 0)
            except (SinkUnavailable, NotHandled, StoreUnavailable):
                size = world.chance.choice([0, size])
                continue
            except ValueError:
                failed += 1
                if size > 1:
                    size //= 2
                    continue
                if failed < 8:
                    continue
                world.dead.add((partition, at))
            else:
                self.check(asked)
            at, failed, size = asked.end, 0, 0

    def check(self, done: Range) -> None:
        for event in events_of([done]):
            assert event not in self.world.bad or event in self.world.letters, f"{event}: no letter"
            for table in self.world.sinks:
                assert event in table.rows or not self.world.wanted(table, event), f"{event}: lost"


@contextmanager
def untagged(*tags: str) -> Iterator[None]:
    yield


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_sink_has_everything_once_whatever_fails(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "Source", Rows)
    monkeypatch.setattr(processor, "tasks_for", lambda ranges, tasks: ranges)
    size = TRIALS // BLOCKS
    for seed in range(block * size, (block + 1) * size):
        try:
            trial = Trial(seed)
            run_virtual(trial.main())
            for table in trial.world.sinks:
                assert len(table.rows) == len(set(table.rows)), "twice"
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
