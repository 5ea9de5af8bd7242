"""What one Spark job is about, and what it came to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, PositionGone, SinkUnavailable
from leasehold.sinks import History
from leasehold.spark.reading.frames import Source, collected


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkBatch:
    """What one job is about: a range of events of each partition."""

    group: Group
    instance: str
    identity: str
    """Which feed of that name: one that was recreated is another."""
    ranges: tuple[Range, ...]
    _held: Callable[[str], bool] = field(repr=False)
    _confirm: Callable[[Collection[str]], frozenset[str]] = field(default=frozenset, repr=False)
    _source: Source | None = field(default=None, repr=False)
    _history: History | None = field(default=None, repr=False)
    """Of the feed as it is now; None: nobody will notice that it was rolled back."""
    _seconds: dict[str, float] = field(default_factory=dict, repr=False)
    _left_out: dict[str, SinkUnavailable | None] = field(default_factory=dict, repr=False)
    _sinks: list[bool] = field(default_factory=list, repr=False)
    """As each sink begins to commit, or has nothing to do: whether it had all of it before."""

    @property
    def events(self) -> int:
        return sum(len(each) for each in self.ranges)

    @property
    def df(self) -> DataFrame | None:
        """The DataFrame that ``on_batch`` is given beside this batch."""
        return None if self._source is None else self._source.df

    def collect(
        self, df: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterable[Any]]
    ) -> list[Any]:
        """Runs a job and returns all that the function yields, for sinks that write in the
        executors: there it gets the rows of each task, as Arrow batches. Of the DataFrame as
        ``on_batch`` was given it (``df is batch.df``) it gets them where the events are read, so
        that none of them goes through Java and back."""
        if self._source is None:
            return collected(df, function)
        if df is self._source.df:
            return self._source.collect(function)
        return collected(df, self._source.marks.over(function))

    def put_letters(self) -> None:
        """Dead letters of events that do not decode and that no job has read, as after ``limit`` or
        a join with an empty table. The processor does it when ``on_batch`` has returned; whoever
        commits where the batch ends does it before that, or a crash in between would lose them."""
        self._sinks.append(False)
        if self._source is not None:
            self._source.put_letters()

    def has_been_written(self) -> None:
        """A sink has all of it already, and does nothing."""
        self._sinks.append(True)

    @property
    def _had_before(self) -> bool:
        """Every sink had all of it: no job was needed, so how long it took says nothing."""
        return bool(self._sinks) and all(self._sinks) and not self._left_out

    def lost(self) -> frozenset[str]:
        """Partitions that another instance may have by now; whatever this batch has of them must
        not take effect. Ask before you write, and leave them out."""
        found = (each.partition for each in self.ranges if not self._held(each.partition))
        return frozenset(found) | self._left_out.keys()

    def confirmed(self, partitions: Collection[str]) -> frozenset[str]:
        """Those of them whose lease is, as its store says now, the very one that this batch began
        with: nobody has taken or rewound it since. Raises ``SinkUnavailable`` if the store does not
        tell."""
        return self._confirm(partitions)

    @property
    def _done(self) -> tuple[Range, ...]:
        """Without what was left out."""
        return tuple(each for each in self.ranges if each.partition not in self._left_out)

    def leave_out(self, partitions: Mapping[str, SinkUnavailable | None]) -> None:
        """Whatever else is written of this batch, nothing of these partitions is: their events come
        again, here or elsewhere. Each with the reason, or None if its lease is lost."""
        for why in partitions.values():
            if why is not None and not isinstance(why, SinkUnavailable):
                raise BadInput(f"leave_out takes None or a SinkUnavailable as the reason: {why!r}")
        self._left_out.update(partitions)

    def numbers_at_end(self) -> Mapping[str, int]:
        """By partition: which history of the feed the end of the batch is of, as of now."""
        ends = {each.partition: each.end for each in self.ranges}
        return {} if self._history is None else self._history.numbers(ends)

    def lost_history(self, known: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        """Which of these positions, each with its number, the feed does not have any more."""
        return {} if self._history is None else self._history.lost(known)

    def took(self, part: str, seconds: float) -> None:
        """For the progress line: how long a part of the work took."""
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def __str__(self) -> str:
        return f"{self.group}: " + ", ".join(
            f"{each.partition}[{each.first},{each.end})" for each in self.ranges
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One job that succeeded."""

    events: int
    seconds: float
    partitions: int
    owned: int
    lag_events: int
    """Events behind this job in the partitions that it was about, when they were last looked at."""
    target_s: float
    """How long it should have taken: ``cycle_s``."""
    next_events: int
    """How many events the next job may take."""
    size_bytes: int
    """About how many bytes the events were."""
    parts: dict[str, float]
    """Seconds by part of the work: ``plan``, and from a ``DeltaSink`` ``job`` and ``commit``. A job
    reads the feed, works and writes files, all at once."""

    @property
    def events_per_s(self) -> float:
        return self.events / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        parts = "".join(f", {name} {seconds:.2f} s" for name, seconds in self.parts.items())
        return (
            f"{self.events:,} events of {self.partitions} partitions (of {self.owned} owned) in "
            f"{self.seconds:.2f} s (target {self.target_s:g} s), {self.events_per_s:,.0f}/s, "
            f"{self.lag_events:,} behind{parts}"
        )
