"""Where the rows of a group's batches go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from leasehold.core.model import Checkpoint, Group
from leasehold.core.ranges import Range
from leasehold.errors import PositionGone, SinkUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMark:
    """How far a sink has one partition for one writer. It is kept beside the rows and changes in
    the same commit. A partition that was never written has an empty one."""

    next_sequence: int = 0
    """All effects of events before it are in the sink."""
    history: int = 0
    """Which history of the feed that position is of, as the batch tells it; 0: not known."""
    rewind: int = 0
    """The number of the last rewind: above 0 while it is under way, and nobody may write; below 0
    once it is finished."""


class SinkBatch(Protocol):
    """What a sink is told about the rows that it is to write."""

    @property
    def group(self) -> Group: ...

    @property
    def instance(self) -> str: ...

    @property
    def identity(self) -> str:
        """Which feed of that name: one that was recreated is another."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The events that the rows were computed from: one range for each partition."""

    def lost(self) -> frozenset[str]:
        """Partitions that another instance may have by now, and those left out. Ask before the
        commit."""

    def confirmed(self, partitions: Collection[str]) -> frozenset[str]:
        """Those of them whose lease is, as its store says now, the very one that the batch began
        with: nobody has taken or rewound it since. Raises ``SinkUnavailable`` if the store does not
        tell."""

    def leave_out(self, partitions: Mapping[str, SinkUnavailable | None]) -> None:
        """Nothing of these partitions is written, whatever else is. Each with the reason, or None
        if its lease is lost. Their events come again."""

    def put_letters(self) -> None:
        """Dead letters of events that do not decode, as far as the work has not come by them: once
        the marks are past these events, nobody does. Call it when the work is done, before the
        commit; ``leasehold.sinks.still_held`` does. Raises what the feed or the store of dead
        letters do."""

    def has_been_written(self) -> None:
        """The sink has all of it already, so this write does nothing. Its letters were put before
        that commit."""

    def numbers_at_end(self) -> Mapping[str, int]:
        """By partition: which history of the feed the end of the batch is of, as of now."""

    def lost_history(self, known: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        """Which of these positions, each with the number of its history, the feed has lost."""

    def collect(self, df: Any, function: Callable[..., Any]) -> list[Any]:
        """What ``function`` yields, for the rows of each task as Arrow batches, in the executors:
        where the events are read if it can be."""

    def took(self, part: str, seconds: float) -> None:
        """For the progress line: how long a part of the work took."""


class SinkRewind(Protocol):
    """Sends what one writer has in a sink back to older positions. Every verb may be repeated.

    It has a number of its own, drawn by chance: ``begin`` writes it into the marks, and ``finish``
    and ``cancel`` change only partitions that have it, and then write it negated.
    """

    def marks(self) -> Mapping[str, SinkMark]:
        """By partition, all that the writer has here."""

    def begin_at(self, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """By partition: where to go back to such that no row is cut, at most that far on."""

    def rows_after(self, positions: Mapping[str, int]) -> int:
        """How many rows ``finish`` would remove."""

    def begin(self, partitions: Sequence[str]) -> None:
        """From here on nobody writes these partitions; a write under way fails at its commit."""

    def finish(self, positions: Mapping[str, int], histories: Mapping[str, int]) -> int:
        """Remove the writer's rows past these positions and set its marks to them, in one commit;
        how many rows that were."""

    def cancel(self, partitions: Sequence[str]) -> None:
        """Let these partitions be written again, as they are."""


@runtime_checkable
class Sink(Protocol):
    """Where the rows of a group's batches go, each event's effect exactly once.

    ``leasehold.testing.check_sink`` says what that takes; ``leasehold.sinks`` helps.
    """

    def write(self, df: Any, batch: SinkBatch) -> None:
        """Write the rows of a Spark DataFrame and the marks of the batch's ranges, in one commit.
        Partitions whose lease is lost when the work is done are left out of it, and the batch is
        told so (``leave_out``): a lost partition costs itself only.

        Returns, having written nothing, if all of it is in the sink already: another sink may not
        have it yet. Raises ``StaleBatch``, having written nothing, if some of it is, or if all
        leases are lost; ``SinkUnavailable`` if the storage does not answer, after which the commit
        may or may not have happened. May be called from several threads at once.
        """

    def rewinding(self, group: Group, identity: str) -> SinkRewind:
        """A rewind of what this group of this feed has here."""


class FeedHistory(Protocol):
    """Tells apart positions of a feed that was rolled back, by numbers that a sink can keep."""

    def lost(self, positions: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        """Which of these positions, each with its number, the feed has lost."""

    def number_at(self, position: Checkpoint) -> int:
        """The number of this position; 0: not known."""
