"""A sink without Spark, the groups that write to it, and what may go wrong around them.

The event at a sequence is a row with that sequence, so the sink tells by itself what is missing and
what counts twice. The model learns of a commit at the moment it is made, whatever the writer gets
to know of it.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol, cast

import pyarrow as pa

from leasehold.core.model import Group, Lease
from leasehold.core.ranges import Range, without
from leasehold.core.start import AtSequence
from leasehold.errors import PositionGone, SinkUnavailable, StaleBatch
from leasehold.operations.rewind import plan
from leasehold.operations.sink_rewind import RewindWithSink
from leasehold.ports import Feed, Sink, SinkRewind
from leasehold.stores.memory import MemoryStore
from leasehold.testing.number_line import EVENTS, PARTITIONS, NumberLine

CRASHES = ("crash before", "crash after")
Commit = Callable[[], bool]
"""Makes the commit. False: there was nothing to commit, and nothing changed."""


class SinkUnderTest(Protocol):
    """What the suite needs to know of a sink: one place to write to, empty at first."""

    lost_answers: Mapping[str, Exception]
    """By any name: what the storage raises when a commit was made and its answer lost."""

    def open(self) -> Sink:
        """The sink, opened once more on the same data, as another process would."""

    def frame(self, rows: pa.Table) -> Any:
        """The rows as ``Sink.write`` takes them: a Spark DataFrame, or what a sink uses of one."""

    def rows(self) -> Iterable[Mapping[str, Any]]:
        """What a reader finds in the sink: at least the columns of the rows that were written."""

    def commits(self, around: Callable[[Commit], None]) -> AbstractContextManager[None]:
        """While it lasts, each commit of any opened sink is made by calling ``around`` with it.
        The commit must be refused if the marks changed since the sink looked at them. May be
        entered once more in the middle of ``around``: the innermost is called."""


class Crash(BaseException):
    """The process is gone."""


@dataclass(frozen=True, kw_only=True)
class ScriptedBatch:
    """A batch whose answers are laid down."""

    group: Group
    instance: str
    identity: str
    ranges: tuple[Range, ...]
    history: NumberLine
    answers: list[bool] = field(default_factory=list)
    """Whether its last partition is lost, at each time of asking; then it is not."""
    asked: list[bool] = field(default_factory=list)
    letters_put: list[bool] = field(default_factory=list)
    left_out: dict[str, SinkUnavailable | None] = field(default_factory=dict)
    when_asked: Callable[[], None] = lambda: None
    leases: Mapping[str, Lease]
    """Those that it began with."""
    leases_now: Callable[[], Mapping[str, Lease]]

    def confirmed(self, partitions: Collection[str]) -> frozenset[str]:
        now = self.leases_now()
        return frozenset(p for p in partitions if _whose(now[p]) == _whose(self.leases[p]))

    def lost(self) -> frozenset[str]:
        self.asked.append(True)
        if len(self.asked) == 1:
            self.when_asked()
        lost = self.answers.pop(0) if self.answers else False
        return frozenset({self.ranges[-1].partition} if lost else ()) | self.left_out.keys()

    def leave_out(self, partitions: Mapping[str, SinkUnavailable | None]) -> None:
        assert partitions.keys() <= {each.partition for each in self.ranges}
        self.left_out.update(partitions)

    def put_letters(self) -> None:
        self.letters_put.append(True)

    def has_been_written(self) -> None:
        """Nobody here asks how much work a write was."""

    def numbers_at_end(self) -> Mapping[str, int]:
        return self.history.numbers({each.partition: each.end for each in self.ranges})

    def lost_history(self, known: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        return self.history.lost(known)

    def collect(self, df: Any, function: Callable[..., Any]) -> list[Any]:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = pa.array([pickle.dumps(each) for each in function(batches)], pa.binary())
            yield pa.RecordBatch.from_arrays([found], ["found"])

        return [pickle.loads(row.found) for row in df.mapInArrow(run, "found binary").collect()]

    def took(self, part: str, seconds: float) -> None:
        pass


@dataclass
class Stream:
    """One partition as the sink should have it for one group of one feed."""

    batches: list[tuple[int, int]] = field(default_factory=list)
    lives: list[int] = field(default_factory=list)
    """By sequence: which writing of the event is in the sink."""
    marked: bool = False
    """A rewind of it is not finished."""

    @property
    def done(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def go_back(self, to: int) -> None:
        self.batches = [(first, min(end, to)) for first, end in self.batches if first < to]
        del self.lives[to:]
        self.marked = False


class SinkReader:
    """One group of one feed: its leases, and what the sink should hold for it."""

    def __init__(self, feed: NumberLine, name: str) -> None:
        self.feed, self.store = feed, MemoryStore()
        self.group = Group(namespace=feed.namespace, feed=feed.name, name=name)
        self.who = f"{feed.identity}/{name}"
        self.streams = {partition: Stream() for partition in PARTITIONS}
        starts = {p: run(feed.locate(p, AtSequence(0))) for p in PARTITIONS}
        run(self.store.create(self.group, starts))

    def leases(self) -> dict[str, Lease]:
        return {each.partition: each for each in run(self.store.snapshot(self.group)).leases}

    def rows(self, wanted: Range) -> pa.Table:
        numbers = range(wanted.first, wanted.end)
        return pa.table(
            {
                "partition": pa.array([wanted.partition] * len(numbers), pa.string()),
                "who": pa.array([self.who] * len(numbers), pa.string()),
                "sequence": pa.array(numbers, pa.int64()),
                "life": pa.array([self.feed.life(wanted.partition, n) for n in numbers]),
            }
        )

    def kept(self, partition: str) -> int:
        """Up to where the sink has what the feed has."""
        lives = self.streams[partition].lives
        same = takewhile(lambda n: lives[n] == self.feed.life(partition, n), range(len(lives)))
        return len(list(same))

    def is_lost(self, partition: str) -> bool:
        """Whether the sink has something that the feed has lost."""
        return self.kept(partition) < self.streams[partition].done

    def added(self, wanted: Sequence[Range]) -> None:
        """A commit was made."""
        for each in wanted:
            stream = self.streams[each.partition]
            assert not stream.marked, "nobody writes before a rewind is finished"
            assert stream.done == each.first, "each event counts once, and none is left out"
            assert not self.is_lost(each.partition), "nothing is added to what the feed has lost"
            stream.batches.append((each.first, each.end))
            numbers = range(each.first, each.end)
            stream.lives += [self.feed.life(each.partition, n) for n in numbers]

    async def go_back(self) -> None:
        """As pumps do, where the feed was rolled back behind them."""
        for partition, lease in self.leases().items():
            at = lease.checkpoint
            gone = self.feed.lost({partition: (at.next_sequence, int(at.token))})
            if gone:
                await self.store.rewind([replace(lease, checkpoint=gone[partition].resume)])


@dataclass
class Job:
    """What happens around one write."""

    lost: list[bool] = field(default_factory=list)
    before_write: Callable[[], None] = lambda: None
    """When the leases are taken, and the sink has not been asked for anything yet."""
    after_job: Callable[[], None] = lambda: None
    """When the sink asks whether its leases are held."""
    before_commit: Callable[[], None] = lambda: None
    at_commit: str = ""
    """One of ``World.faults``, at the first commit."""


@dataclass
class RewindJob:
    """What happens around one rewind."""

    at: str = ""
    """One of ``World.faults`` ..."""
    stage: str = "finish"
    """... at the first commit of this stage."""
    since: Callable[[], None] = lambda: None
    """Between that commit and its lost answer."""


class World:
    def __init__(self, under_test: SinkUnderTest) -> None:
        self.under_test = under_test
        self.faults = (*CRASHES, *under_test.lost_answers)
        self.generation = 0
        """How often the feed was recreated."""
        self.readers: dict[tuple[int, str], SinkReader] = {}
        self.sinks: dict[str, Sink] = {}

    def sink(self, instance: str) -> Sink:
        if instance not in self.sinks:
            self.sinks[instance] = self.under_test.open()
        return self.sinks[instance]

    def reader(self, name: str) -> SinkReader:
        key = (self.generation, name)
        if key not in self.readers:
            self.readers[key] = SinkReader(NumberLine(f"feed{self.generation}"), name)
        return self.readers[key]

    def batch(
        self,
        name: str,
        instance: str,
        ranges: Sequence[Range],
        leases: Mapping[str, Lease] | None = None,
        **more: Any,
    ) -> Any:
        """``leases``: those that it begins with; none: as they are now."""
        reader = self.reader(name)
        return ScriptedBatch(
            leases=leases or reader.leases(),
            leases_now=reader.leases,
            group=reader.group,
            instance=instance,
            identity=reader.feed.identity,
            ranges=tuple(ranges),
            history=reader.feed,
            **more,
        )

    def write_once(
        self,
        name: str,
        instance: str,
        ranges: Sequence[Range],
        job: Job,
        leases: Mapping[str, Lease] | None = None,
    ) -> Mapping[str, SinkUnavailable | None]:
        """One call of ``Sink.write``; what was left out of it."""
        reader = self.reader(name)
        after, job.after_job = job.after_job, lambda: None
        batch = self.batch(name, instance, ranges, leases, answers=job.lost, when_asked=after)

        def around(commit: Commit) -> None:
            assert batch.asked, "a sink asks batch.lost() before it commits"
            assert batch.letters_put, "a sink calls batch.put_letters() before it commits"
            before, job.before_commit = job.before_commit, lambda: None
            before()
            fault, job.at_commit = job.at_commit, ""
            if fault == "crash before":
                raise Crash
            if commit():
                reader.added([each for each in ranges if each.partition not in batch.left_out])
            self._fail(fault)

        rows = pa.concat_tables([reader.rows(each) for each in ranges])
        with self.under_test.commits(around):
            self.sink(instance).write(self.under_test.frame(rows), batch)
        left_out: Mapping[str, SinkUnavailable | None] = batch.left_out
        return left_out

    def write(
        self, name: str, instance: str, sizes: Mapping[str, int], job: Job | None = None
    ) -> None:
        """As a pump does it: from the checkpoint on, and with a checkpoint afterwards."""
        job, reader = job or Job(), self.reader(name)
        run(reader.go_back())
        stored = reader.leases()
        leases = run(reader.store.acquire([stored[p] for p in sizes], instance, 60.0))
        left = [
            Range(partition=p, first=at, end=min(at + sizes[p], EVENTS))
            for p, at in ((each.partition, each.checkpoint.next_sequence) for each in leases)
            if at < EVENTS
        ]
        ends = {each.partition: each.end for each in left}
        refused: list[SinkUnavailable] = []
        mine = {each.partition: each for each in leases}
        job.before_write()
        while left:
            try:
                for partition, why in self.write_once(name, instance, left, job, mine).items():
                    ends.pop(partition, None)
                    if why is not None:
                        refused.append(why)
                break
            except StaleBatch as found:
                for partition, to in found.begin_at.items():
                    if not isinstance(to, int):
                        ends.pop(partition, None)
                    if isinstance(to, SinkUnavailable):
                        refused.append(to)
                fewer = without(left, found.begin_at)
                assert fewer != left, "what is refused has to change"
                left = fewer
        for partition, end in ends.items():
            told = [reader.feed.life(partition, n) for n in range(end)]
            assert reader.streams[partition].lives[:end] == told, "what was handled is in the sink"
            at = run(reader.feed.locate(partition, AtSequence(end)))
            moved = [replace(each, checkpoint=at) for each in leases if each.partition == partition]
            run(reader.store.checkpoint(moved))
        if refused:
            raise refused[0]

    def rewind(
        self, name: str, to: int, partitions: Sequence[str], job: RewindJob | None = None
    ) -> None:
        """As the command line does it."""
        job, reader = job or RewindJob(), self.reader(name)
        sink = self.under_test.open().rewinding(reader.group, reader.feed.identity)
        staged = _Staged(sink)
        rewinding = RewindWithSink(cast(SinkRewind, staged), reader.group, reader.feed)

        async def carry_out() -> None:
            feed = cast(Feed, reader.feed)
            leases = reader.leases()
            at = min(to, *(leases[each].checkpoint.next_sequence for each in partitions))
            moves = await plan(
                feed, reader.store, reader.group, AtSequence(at), partitions, all_chosen=True
            )
            moves, ends = await rewinding.plan(feed, reader.store, moves)
            with self._rewinds(reader, staged, ends, job):
                await rewinding.carry_out(reader.store, moves, ends, fence=True)
            stuck = [partition for partition in ends if reader.is_lost(partition)]
            assert not stuck, "a rewind does not end in what the feed has lost"

        run(carry_out())

    @contextmanager
    def _rewinds(
        self, reader: SinkReader, staged: _Staged, ends: Mapping[str, int], job: RewindJob
    ) -> Iterator[None]:
        def around(commit: Commit) -> None:
            here = staged.stage == job.stage
            fault, job.at = (job.at, "") if here else ("", job.at)
            if fault == "crash before":
                raise Crash
            if not commit():
                job.at = fault or job.at
                return
            for partition, at in ends.items():
                stream = reader.streams[partition]
                if staged.stage == "begin":
                    stream.marked = True
                elif stream.marked:
                    stream.go_back(at)
            if fault in self.under_test.lost_answers:
                job.since()
            self._fail(fault)

        with self.under_test.commits(around):
            yield

    def _fail(self, fault: str) -> None:
        if fault == "crash after":
            raise Crash
        if fault:
            raise self.under_test.lost_answers[fault]

    def check(self) -> None:
        """The sink can be read and holds what it should, and no lease is ahead of it."""
        found = defaultdict(list)
        for row in self.under_test.rows():
            found[row["who"], row["partition"]].append((row["sequence"], row["life"]))
        wanted = {}
        for reader in self.readers.values():
            for partition, stream in reader.streams.items():
                wanted[reader.who, partition] = list(enumerate(stream.lives))
            for partition, lease in reader.leases().items():
                stream = reader.streams[partition]
                assert stream.marked or lease.checkpoint.next_sequence <= stream.done
        assert {who: sorted(rows) for who, rows in found.items()} == {
            who: rows for who, rows in wanted.items() if rows
        }, "each event of each writer is in the sink once, up to what was committed"

    def finish(self) -> None:
        """Nothing is refused forever: all of every feed gets into the sink."""
        for (generation, name), reader in self.readers.items():
            self.generation = generation
            lost = any(reader.is_lost(partition) for partition in PARTITIONS)
            if lost or any(stream.marked for stream in reader.streams.values()):
                self.rewind(name, 0, PARTITIONS)
            self.write(name, "last", dict.fromkeys(PARTITIONS, EVENTS))
            assert all(stream.done == EVENTS for stream in reader.streams.values())
            assert not any(reader.is_lost(partition) for partition in PARTITIONS)
        self.check()


class _Staged:
    """A rewind that says how far it is."""

    def __init__(self, sink: SinkRewind) -> None:
        self._sink, self.stage = sink, "begin"

    def __getattr__(self, name: str) -> Any:
        if name in ("finish", "cancel"):
            self.stage = "finish"
        return getattr(self._sink, name)


def _whose(lease: Lease) -> tuple[str | None, int]:
    return lease.owner, lease.epoch


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Nothing here ever waits, so no loop is needed, and one call may be made during another."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("something waits")
