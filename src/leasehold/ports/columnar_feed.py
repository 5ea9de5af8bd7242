"""A feed that Spark can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from leasehold.core.ranges import Range
from leasehold.errors import PositionGone
from leasehold.ports.feed import Feed

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedColumns:
    """The columns that a feed can be read as, and which of them are what every feed has."""

    schema: pa.Schema
    partition: str
    sequence: str
    body: str
    """JSON, as bytes or as text; null where there is nothing to decode."""


class Chunk(Protocol):
    """Some events of one partition in order, as columns."""

    def __len__(self) -> int: ...

    def columns(self, names: Sequence[str]) -> pa.RecordBatch:
        """Those asked for, with the types that the feed's schema says. To be made only now: most
        jobs need few of them."""

    def events(self, rows: Sequence[int]) -> Sequence[Any]:
        """As a plain handler would be given them."""


@runtime_checkable
class ColumnarFeed(Feed, Protocol):
    """A feed that Spark can read: planned in one process, read as columns in many others.

    Positions are sequences alone here; a read from one needs no token.
    """

    @property
    def identity(self) -> str:
        """Which feed of that name: one that was recreated is another."""

    @property
    def address(self) -> str:
        """The URL by which ``open_feed`` opens this feed in another process, maybe on another
        machine. It is written into plans and logs, so it holds no secret: those are taken from the
        environment, there as well."""

    @property
    def columns(self) -> FeedColumns: ...

    @property
    def has_gaps(self) -> bool:
        """Whether some sequences hold no event. Their distance is then more than the number of
        events between them; a feed with ``CountsRemaining`` is asked for that."""

    def read_columns(self, ranges: Sequence[Range]) -> Iterator[Chunk]:
        """All events of these ranges, in chunks of bounded size; blocks. Each chunk is of one range
        and each range comes in order, but chunks of several ranges may alternate.

        Raises ``PositionGone`` where a range begins before what is kept, and ``FeedUnavailable``
        where some of it cannot be read although it was there when the range was planned.
        """


@runtime_checkable
class TellsHistory(ColumnarFeed, Protocol):
    """What a columnar feed does besides if its newest events can be lost and others come under
    their sequences, as when an older copy of its storage is restored. All of it blocks."""

    def tokens_of(self, sequences: Mapping[str, int]) -> Mapping[str, str]:
        """By partition: the token of the position before that sequence, where there is one."""

    def history_of(self, token: str) -> int:
        """A number that differs between the histories that a position may be of, for those who keep
        numbers only, as Delta tables do. 0: the token does not tell."""

    def lost(self, positions: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        """Which of these positions, each with the number of its history, the feed has lost. What
        retention removed is not lost: nothing else will ever be in its place."""
