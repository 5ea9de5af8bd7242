"""``SparkProcessor``: the user's Spark job on the partitions that this instance holds."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, Unpack, runtime_checkable
from uuid import uuid4
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leasehold.clock import within
from leasehold.core.model import Checkpoint, Snapshot
from leasehold.core.ranges import there
from leasehold.core.start import AtSequence
from leasehold.errors import (
    BadInput,
    FeedUnavailable,
    LetterRefused,
    SinkUnavailable,
    StaleBatch,
)
from leasehold.ports import ColumnarFeed, DeadLetters, LeaseStore
from leasehold.processor.handlers import Context, NotHandled
from leasehold.processor.keywords import SparkKeywords
from leasehold.processor.processor import Processor
from leasehold.processor.pump import Pump
from leasehold.processor.work import Hold
from leasehold.settings import JOBS, SPARK_PACE, JobSettings
from leasehold.sinks import History
from leasehold.spark.batch import Progress, SparkBatch
from leasehold.spark.executor_errors import Marks, trouble
from leasehold.spark.jobs import LOOK_S, Jobs, SparkGone, SparkJob, Void
from leasehold.spark.pacer import Pacer
from leasehold.spark.range_feed import LazyEvents, Limits, range_feed
from leasehold.spark.reading.columns import CORRUPT
from leasehold.spark.reading.frames import Cores, Source, arrow_schema, plan_reading, tasks_for
from leasehold.spark.reading.task import Address, AtSource, Letters, columnar
from leasehold.spark.watch import SparkPulse, Watch, forget
from leasehold.telemetry.cycle_metrics import CycleMetrics

log = logging.getLogger("leasehold.spark")
STOP_CYCLES = 2
"""How many cycles a job may still take once a stop was asked for, before it is cancelled."""
WARM_UP_S = 20.0
"""How long Spark may take to load what it needs; after that the work begins all the same."""
_warm: WeakSet[SparkSession] = WeakSet()
"""Sessions that have run a job of ours."""
CANCEL_ALL_S = 1.0
"""How long a second Ctrl-C waits for Spark to hear of it."""


@runtime_checkable
class HasFeed(Protocol):
    """What has a feed and is none, as a container."""

    def feed(self) -> ColumnarFeed: ...


class SparkProcessor(Processor):
    """One instance of a group, working as one Spark application.

    ``on_batch(df, batch)`` is called with the events of all partitions that have any. When it
    returned, the checkpoints are written; if it raises, the same events come again.
    """

    _handles_here = True

    def __init__(
        self,
        spark: SparkSession,
        feed: ColumnarFeed | HasFeed,
        *,
        group: str,
        store: LeaseStore,
        on_batch: Callable[[DataFrame, SparkBatch], Any],
        schema: Any = None,
        at_source: AtSource | None = None,
        dead_letters: DeadLetters | None = None,
        max_events: int = SPARK_PACE.max_events,
        cycle_s: float = JOBS.cycle_s,
        cycle_bytes: int = JOBS.cycle_bytes,
        overlap: bool = JOBS.overlap,
        tasks: int | None = JOBS.tasks,
        poll_interval_s: float = SPARK_PACE.poll_interval_s,
        gather_s: float = JOBS.gather_s,
        stall_s: float = JOBS.stall_s,
        on_progress: Callable[[Progress], Any] | None = None,
        **settings: Unpack[SparkKeywords],
    ) -> None:
        """
        Args:
            group: the name of the group
            store: where the group keeps its leases
            on_batch: called with a DataFrame and a batch that says which ranges it holds
            schema: columns to decode from JSON bodies, as text or as a `StructType`; none: the
                columns of the feed
            at_source: a function of a polars DataFrame, run where the events are read
            dead_letters: where bodies that do not decode and events that fail for good go
            max_events: the most events in one job, however quick it is; memory does not follow it,
                since events are handled 64,000 at a time
            poll_interval_s: the pause when there is nothing to read
            on_progress: told of each job that succeeded
            handler_timeout_s: how long one job may take, from when it begins; a job that takes
                longer is cancelled in Spark, and that is a failed try
            settings: those of `Processor`
        """
        if not callable(on_batch):
            raise BadInput(f"on_batch must be a function of a DataFrame and a batch: {on_batch!r}")
        JobSettings(
            tasks=tasks,
            cycle_s=cycle_s,
            cycle_bytes=cycle_bytes,
            overlap=overlap,
            gather_s=gather_s,
            stall_s=stall_s,
        ).check()
        source = columnar(feed.feed() if isinstance(feed, HasFeed) else feed)
        address = Address.of(source)
        self._ranges = range_feed(source, self._limits)
        self._cycle_bytes = cycle_bytes
        super().__init__(
            self._ranges,
            group=group,
            store=store,
            on_batch=self._handle,
            dead_letters=dead_letters,
            max_events=max_events,
            poll_interval_s=poll_interval_s,
            read_ahead=SPARK_PACE.read_ahead,
            **settings,
        )
        limit_s = self._pace.handler_timeout_s
        # A job's time is kept where it runs: a pump would count the time in the queue, too.
        self._pace = replace(self._pace, handler_timeout_s=None)
        self._spark, self._on_batch, self._on_progress = spark, on_batch, on_progress
        self._on_progress_fails = False
        self._source, self._identity = source, address.identity
        self._history = History(source)
        self._tasks, self._cores = tasks, Cores(spark)
        letters = None
        if dead_letters is not None and schema is not None:
            letters = Letters(store=dead_letters, group=self.group)
        self._reading = plan_reading(
            address,
            schema=None if schema is None else _with_place(schema, address, letters),
            at_source=at_source,
            letters=letters,
        )
        self._pulse = SparkPulse(spark)
        self._pacer = Pacer(target_s=cycle_s, max_events=max_events, overlap=overlap)
        self._cycles = CycleMetrics(self.group, self.instance, self.telemetry, cycle_s)
        self._tag = _tag(group, self.instance)
        self._warm_up_tag = f"{self._tag}-warm-up"  # of its own: it may be cancelled late
        self._jobs = Jobs(
            self._run_job,
            threads=self._threads,
            clock=self._clock,
            gather_s=gather_s,
            pacer=self._pacer,
            tag=self._tag,
            max_bytes=cycle_bytes,
            bytes_of=self._ranges.bytes_in,
            wants=self._wants,
            holder=self._holder,
            stopping=lambda: self._host.stopping_for_s is not None,
            watch=Watch(
                self._pulse,
                threads=self._threads,
                clock=self._clock,
                limit_s=limit_s,
                stall_s=stall_s,
                gone=self._stop_with,
                unwanted=self._unwanted,
                cancels=self._cycles.cancelled,
            ),
        )
        self._failing: set[str] = set()

    def _start_pump(self, hold: Hold) -> Pump:
        partition = hold.lease.partition
        self._ranges.forget(partition)
        self._failing.discard(partition)
        if hold.lease.attempts:  # it has failed, or killed, before
            self._failing.add(partition)
        return super()._start_pump(hold)

    async def _prepare(self) -> None:
        """Let Spark and its Python workers load what they need before any lease is taken: it takes
        seconds, in which another instance could do the work."""
        await super()._prepare()
        loop = asyncio.get_running_loop()
        warming = loop.run_in_executor(self._threads, self._warm_up)
        until = self._clock.monotonic() + WARM_UP_S
        while not self._stop_asked and self._clock.monotonic() < until:
            await asyncio.wait((warming,), timeout=LOOK_S)
            if warming.done():
                return
        # Nobody waits for the answer: Spark may give none at all.
        cancelling = loop.run_in_executor(self._threads, self._pulse.cancel, self._warm_up_tag)
        cancelling.add_done_callback(forget)

    def _warm_up(self) -> None:
        """Once for each session, a worker for each core: one that begins to load in the middle of a
        job holds it up. If it fails, the first job will tell."""
        if self._spark in _warm:
            return
        with suppress(Exception), self._pulse.tagged(self._tag, self._warm_up_tag):
            Source(self._spark, self._reading, [()] * self._cores()).collect(iter)
            _warm.add(self._spark)

    async def _handle(self, events: Any, context: Context) -> None:
        context._forget()  # Spark's handlers are given none, and its latest event is not read here
        partition = context.partition
        alone = partition in self._failing
        try:
            end = await self._jobs.handle(
                events.range, alone=alone, whole=not isinstance(events, LazyEvents)
            )
        except (SinkUnavailable, NotHandled):
            raise
        except Exception:
            self._failing.add(partition)
            raise
        self._failing.discard(partition)
        if end < events.range.end:
            raise NotHandled(
                "the rest is for the next job",
                done=end - events.range.first,
                behind=await self._position(partition, end),
            )

    async def _position(self, partition: str, sequence: int) -> Checkpoint:
        """As the feed says, without a read of the event before it, for which all leases would have
        to wait. Its number alone will do if the feed does not answer."""
        with suppress(Exception):
            asked = self._ranges.locate(partition, AtSequence(sequence))
            found = await within(self._clock, self._pace.request_timeout_s, asked)
            if found.next_sequence == sequence:
                return found
        return Checkpoint(next_sequence=sequence)

    def _limits(self) -> Limits:
        return Limits(
            events=self._pacer.claim_events,
            events_each=self._pacer.events,
            bytes=self._pacer.jobs_at_once * self._cycle_bytes,
            held=self._host.workers,
        )

    def _holder(self, partition: str) -> object:
        return self._host.workers.get(partition)

    def _wants(self, partition: str) -> bool:
        """Whether it still wants the job that it waits for, rather than to let its lease go."""
        pump = self._host.workers.get(partition)
        return isinstance(pump, Pump) and not pump.ending

    def _unwanted(self, job: SparkJob) -> str | None:
        """Why to cancel a job that is under way: nothing that it does would take effect, or a stop
        has waited for it long enough."""
        if all(self._lost(each.partition) for each in job.ranges):
            return "lost"
        stopping_s = self._host.stopping_for_s
        if stopping_s is not None and stopping_s >= STOP_CYCLES * self._pacer.target_s:
            return "stop"
        return None

    def _lost(self, partition: str) -> bool:
        pump = self._host.workers.get(partition)
        return not isinstance(pump, Pump) or pump.lost

    def _end(self) -> None:
        """Nobody will hear what becomes of the jobs under way, so they end, too."""
        asking = threading.Thread(target=self._pulse.cancel, args=(self._tag,), daemon=True)
        asking.start()
        asking.join(CANCEL_ALL_S)
        super()._end()

    def _run_job(self, job: SparkJob) -> Void:
        """In a thread of its own, while the loop goes on renewing the leases."""
        began, marks = time.perf_counter(), Marks()
        try:
            self._require_same_feed()
            tasks = tasks_for(job.ranges, self._tasks or self._cores())
            source = Source(self._spark, self._reading, tasks, marks)
            batch = self._batch(job, source)
            self._describe(job)
            with self._pulse.tagged(self._tag, job.tag):
                df = source.df
                batch.took("plan", time.perf_counter() - began)
                known_s = source.planned_s
                try:
                    self._on_batch(df, batch)
                except StaleBatch as stale:
                    if there(job.ranges, stale.begin_at) == list(job.ranges):
                        source.put_letters()  # it counts as done
                    raise
                finally:
                    batch.took("plan", source.planned_s - known_s)
                if not any(batch._sinks):  # whoever had it before put them before that commit
                    source.put_letters()
            if batch._had_before:
                ends = {each.partition: each.end for each in job.ranges}
                raise StaleBatch("it is written already", ends)
        except StaleBatch:
            raise
        except Exception as error:
            if self._pulse.was_cancelled(job.tag):
                raise
            self._require_spark(error)
            if (why := trouble(error, marks)) is not None:
                raise SinkUnavailable(why) from error
            if (met := marks.found(error)) is not None and met.kind is LetterRefused:
                raise LetterRefused(met.message) from error
            raise
        self._progress(batch, time.perf_counter() - began)
        return batch._left_out

    def _batch(self, job: SparkJob, source: Source) -> SparkBatch:
        pumps = {name: pump for name, pump in job.holders.items() if isinstance(pump, Pump)}
        workers = self._host.workers
        return SparkBatch(
            group=self.group,
            instance=self.instance,
            identity=self._identity,
            ranges=job.ranges,
            _held=lambda p: p in pumps and workers.get(p) is pumps[p] and pumps[p].held,
            _confirm=lambda some: self._confirmed({p: pumps[p] for p in some if p in pumps}),
            _source=source,
            _history=self._history,
        )

    def _confirmed(self, pumps: Mapping[str, Pump]) -> frozenset[str]:
        """In the thread of a job: whose leases are still theirs, by a look at the store."""
        assert self._loop is not None
        limit_s = self._pace.request_timeout_s

        async def look() -> Snapshot:
            return await within(self._clock, limit_s, self._store.snapshot(self.group))

        asked = asyncio.run_coroutine_threadsafe(look(), self._loop)
        try:
            leases = asked.result(2 * limit_s).leases
        except Exception as error:
            asked.cancel()
            raise SinkUnavailable(
                f"whether the leases of {', '.join(sorted(pumps))} are still held is not known: "
                f"{error or type(error).__name__}"
            ) from error
        now = {(each.partition, each.owner, each.epoch) for each in leases}
        mine = {name: pump.hold.lease for name, pump in pumps.items()}
        return frozenset(p for p, each in mine.items() if (p, each.owner, each.epoch) in now)

    def _require_same_feed(self) -> None:
        """Ranges are numbers: in a feed that was recreated, other events have them."""
        if self._source.identity != self._identity:
            raise FeedUnavailable(
                f"{self._source.address} was recreated meanwhile: start the processor again"
            )

    def _require_spark(self, error: Exception) -> None:
        """If Spark itself is gone, no event is to blame, and only a new process will do."""
        try:
            self._pulse.beat()
        except Exception as gone:
            lost = SparkGone(f"the Spark session is gone: {error}")
            self._stop_with(lost)
            raise lost from gone

    def _stop_with(self, gone: SparkGone) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._give_up, gone)

    def _describe(self, job: SparkJob) -> None:
        """What Spark's own pages show beside the job."""
        parts = ", ".join(f"{each.partition}[{each.first},{each.end})" for each in job.ranges)
        text = (
            f"{self.group} at {self.instance}: {job.events:,} events of {len(job.ranges)} "
            f"partitions, target {self._pacer.target_s:g} s: {parts}"
        )
        try:
            self._spark.sparkContext.setJobDescription(text)
        except Exception:  # Spark Connect has no context
            return

    def _progress(self, batch: SparkBatch, seconds: float) -> None:
        done = batch._done
        behind = {each.partition: each.first for each in batch.ranges}
        behind |= {each.partition: each.end for each in done}
        progress = Progress(
            events=sum(map(len, done)),
            seconds=seconds,
            partitions=len(done),
            owned=len(self._host.workers),
            lag_events=self._ranges.behind(behind),
            target_s=self._pacer.target_s,
            next_events=self._pacer.events,
            size_bytes=self._ranges.bytes_in(done),
            parts=dict(batch._seconds),
        )
        self._cycles.ended(
            events=progress.events,
            seconds=seconds,
            size_bytes=progress.size_bytes,
            next_events=progress.next_events,
            parts=progress.parts,
        )
        log.info("%s: %s", self.instance, progress)
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
            self._on_progress_fails = False
        except Exception:  # the job is done, whatever becomes of the news of it
            if not self._on_progress_fails:
                log.exception("%s: on_progress failed; said once, until it works", self.instance)
            self._on_progress_fails = True


def _tag(group: str, instance: str) -> str:
    """By which an instance's jobs are found in Spark, and are no other's."""
    names = (re.sub(r"[^\w.-]", "_", name) for name in (group, instance))
    return "-".join(("leasehold", *names, uuid4().hex[:8]))


def _with_place(schema: Any, address: Address, letters: Letters | None) -> Any:
    """Where each row is from comes first; what did not decode, if nobody else takes it, last."""
    wanted = arrow_schema(schema)
    columns = address.columns
    for name in (columns.sequence, columns.partition):
        if name not in wanted.names:
            wanted = wanted.insert(0, columns.schema.field(name))
    if letters is None and CORRUPT not in wanted.names:
        wanted = wanted.append(pa.field(CORRUPT, pa.string()))
    return wanted
