"""``SparkProcessor``: the user's Spark job on the partitions that this instance holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, FeedUnavailable, SinkUnavailable, StoreUnavailable
from leasehold.feeds.container import Container
from leasehold.feeds.container_feed import ChangeFeed
from leasehold.feeds.hub import Hub
from leasehold.ports import DeadLetters, LeaseStore
from leasehold.processor.handlers import Context
from leasehold.processor.processor import Processor
from leasehold.processor.pump import Hold, Pump
from leasehold.spark.columns import CORRUPT
from leasehold.spark.frames import arrow_schema, cores_of, frame_of, plan_reading, tasks_for
from leasehold.spark.jobs import Jobs, NotAsPlanned
from leasehold.spark.lazy import LazyChanges, LazyHub
from leasehold.spark.reading import Address, AtSource, Letters

log = logging.getLogger("leasehold.spark")
TROUBLES = tuple(
    f"{kind.__module__}.{kind.__name__}:" for kind in (FeedUnavailable, StoreUnavailable)
)
"""How errors that blame no event look like when they come from an executor: as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkBatch:
    """What one job is about: a range of events of each partition."""

    group: Group
    instance: str
    identity: str
    """Which feed of that name: one that was made anew is another."""
    ranges: tuple[Range, ...]
    _held: Callable[[str], bool] = field(repr=False)
    _seconds: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def events(self) -> int:
        return sum(len(each) for each in self.ranges)

    def lost(self) -> frozenset[str]:
        """Partitions that another instance may have by now; whatever this batch has of them must
        not take effect. Ask before you write."""
        found = (each.partition for each in self.ranges if not self._held(each.partition))
        return frozenset(found)

    def took(self, part: str, seconds: float) -> None:
        """For the progress line: how long a part of the work took."""
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def __str__(self) -> str:
        return f"{self.group}: " + ", ".join(
            f"{each.partition}[{each.first},{each.end})" for each in self.ranges
        )


class SparkProcessor(Processor):
    """One instance of a group, working as one Spark application.

    ``on_batch(df, batch)`` is called with the events of all partitions that have any. When it
    returned, the checkpoints are written; if it raises, the same events come again.
    """

    def __init__(
        self,
        spark: SparkSession,
        feed: Hub | Container | ChangeFeed,
        *,
        group: str,
        store: LeaseStore,
        on_batch: Callable[[DataFrame, SparkBatch], Any],
        schema: Any = None,
        at_source: AtSource | None = None,
        dead_letters: DeadLetters | None = None,
        max_events: int = 4_000_000,
        tasks: int | None = None,
        poll_interval_s: float = 0.2,
        gather_s: float = 0.05,
        on_progress: Callable[[Progress], Any] | None = None,
        **settings: Any,
    ) -> None:
        """``schema``: columns to decode from JSON bodies. ``at_source``: a function from a polars
        DataFrame to another, run where a chunk of one partition is read. ``tasks``: into how many a
        large batch is cut. ``settings``: those of ``Processor``."""
        if not callable(on_batch):
            raise BadInput(f"on_batch must be a function of a DataFrame and a batch: {on_batch!r}")
        if tasks is not None and tasks < 1:
            raise BadInput(f"tasks must be 1 or more, not {tasks!r}")
        if not 0 <= gather_s < inf:
            raise BadInput(f"gather_s must be 0 or more, not {gather_s!r}")
        source = feed.feed() if isinstance(feed, Container) else feed
        address = Address.of(source)
        self._lazy = LazyHub(source) if isinstance(source, Hub) else LazyChanges(source)
        super().__init__(
            self._lazy,
            group=group,
            store=store,
            on_batch=self._handle,
            dead_letters=dead_letters,
            max_events=max_events,
            poll_interval_s=poll_interval_s,
            **settings,
        )
        self._pace = replace(self._pace, read_ahead=False)
        self._spark, self._on_batch, self._on_progress = spark, on_batch, on_progress
        self._identity = address.identity
        self._tasks = tasks or cores_of(spark)
        letters = None
        if dead_letters is not None and schema is not None:
            letters = Letters(store=dead_letters, group=self.group)
        self._reading = plan_reading(
            address,
            schema=None if schema is None else _with_place(schema, address, letters),
            at_source=at_source,
            letters=letters,
        )
        self._jobs = Jobs(
            self._run_job,
            threads=self._threads,
            clock=self._clock,
            gather_s=gather_s,
            max_events=max_events,
        )
        self._failing: set[str] = set()

    def _start_pump(self, hold: Hold) -> Pump:
        partition = hold.lease.partition
        self._lazy.forget(partition)
        self._failing.discard(partition)
        if hold.lease.attempts:  # it has failed, or killed, before
            self._failing.add(partition)
        return super()._start_pump(hold)

    async def _handle(self, events: Any, context: Context) -> None:
        partition = context.partition
        alone = partition in self._failing
        try:
            await self._jobs.handle(events.range, alone=alone)
        except SinkUnavailable:
            raise
        except Exception:
            self._failing.add(partition)
            raise
        self._failing.discard(partition)

    def _held(self, partition: str) -> bool:
        pump = self._host.workers.get(partition)
        return isinstance(pump, Pump) and pump.held

    def _run_job(self, ranges: Sequence[Range]) -> None:
        """In a thread of its own, while the loop goes on renewing the leases."""
        began = time.perf_counter()
        batch = SparkBatch(
            group=self.group,
            instance=self.instance,
            identity=self._identity,
            ranges=tuple(ranges),
            _held=self._held,
        )
        self._describe(batch)
        try:
            df = frame_of(self._spark, self._reading, tasks_for(ranges, self._tasks))
            batch.took("plan", time.perf_counter() - began)
            self._on_batch(df, batch)
        except NotAsPlanned:
            raise
        except Exception as error:
            self._require_spark(error)
            for line in str(error).splitlines():
                if any(trouble in line for trouble in TROUBLES):
                    raise SinkUnavailable(f"an executor met trouble: {line}") from error
            raise
        self._progress(batch, time.perf_counter() - began)

    def _require_spark(self, error: Exception) -> None:
        """If Spark itself is gone, no event is to blame, and only a new process will do."""
        try:
            self._spark.range(1).collect()
        except Exception as gone:
            lost = SinkUnavailable(f"the Spark session is gone: {error}")
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._give_up, lost)
            raise lost from gone

    def _describe(self, batch: SparkBatch) -> None:
        """What Spark's own pages show beside the job."""
        try:
            self._spark.sparkContext.setJobDescription(str(batch))
        except Exception:  # Spark Connect has no context
            return

    def _progress(self, batch: SparkBatch, seconds: float) -> None:
        progress = Progress(
            events=batch.events,
            seconds=seconds,
            partitions=len(batch.ranges),
            owned=len(self._host.workers),
            lag_events=self._lazy.behind({each.partition: each.end for each in batch.ranges}),
            parts=dict(batch._seconds),
        )
        log.info("%s: %s", self.instance, progress)
        if self._on_progress is not None:
            self._on_progress(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One job that succeeded."""

    events: int
    seconds: float
    partitions: int
    owned: int
    lag_events: int
    """Events behind this job in the partitions that it was about, when they were last looked at."""
    parts: dict[str, float]
    """Seconds by part of the work: ``plan``, and from a ``DeltaSink`` ``job`` and ``commit``. A job
    reads the feed, works and writes files, all at once."""

    def __str__(self) -> str:
        rate = self.events / max(self.seconds, 1e-9)
        parts = "".join(f", {name} {seconds:.2f} s" for name, seconds in self.parts.items())
        return (
            f"{self.events:,} events of {self.partitions} partitions (of {self.owned} owned) in "
            f"{self.seconds:.2f} s, {rate:,.0f}/s, {self.lag_events:,} behind{parts}"
        )


def _with_place(schema: Any, address: Address, letters: Letters | None) -> Any:
    """Where each row is from comes first; what did not decode, if nobody else takes it, last."""
    wanted = arrow_schema(schema)
    own = ("partition", "sequence") if address.mode is None else ("range", "lsn")
    for name in reversed(own):
        if name not in wanted.names:
            wanted = wanted.insert(0, address.columns.field(name))
    if letters is None and CORRUPT not in wanted.names:
        wanted = wanted.append(pa.field(CORRUPT, pa.string()))
    return wanted
