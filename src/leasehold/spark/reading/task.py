"""What runs where the events are read: in an executor's Python, one call per task.

Nothing here knows leases or instances. A task is a list of ranges and says all there is to know.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from leasehold.core.event import Event
from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, FeedUnavailable, LetterRefused
from leasehold.feeds import open_feed
from leasehold.ports import (
    Chunk,
    ColumnarFeed,
    DeadLetter,
    DeadLetters,
    FeedColumns,
    LetterFilter,
)
from leasehold.processor.letters import letter_for
from leasehold.spark.reading.columns import CORRUPT
from leasehold.spark.reading.decode import Decoder
from leasehold.stores.dead_letters.memory import MemoryDeadLetters

NO_FIT = "the body is not JSON that fits the schema"
PUT_LETTERS = 1_000
HELD_BYTES = 32_000_000
"""Letters of several chunks are put at once, as long as no more than this waits for them. To put
a few of each chunk costs more than the letters do, and tasks that share a file would wait for one
another."""
PUT_MAX = 5_000
"""Of a chunk with nothing but bad rows: more at once would keep others from a file for seconds."""
LETTER_BYTES = 1_000
"""Of a letter beside what it holds."""

AtSource = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where another process finds the feed, and how it knows that it is still the same one."""

    url: str
    identity: str = ""
    columns: FeedColumns

    @classmethod
    def of(cls, feed: ColumnarFeed) -> Address:
        return cls(url=feed.address, identity=feed.identity, columns=feed.columns)

    def open(self) -> ColumnarFeed:
        feed = _opened(self.url, self.identity)
        if self.identity and feed.identity != self.identity:
            _opened.cache_clear()
            raise FeedUnavailable(f"{self.url} was recreated meanwhile")
        return feed


def columnar(feed: Any) -> ColumnarFeed:
    """A feed that Spark can read, or the error that says so."""
    if not isinstance(feed, ColumnarFeed):
        raise BadInput(
            f"{feed!r} cannot be read by Spark: give a feed that has columns (ColumnarFeed in "
            "leasehold.ports), such as a Hub, a Container or its feed"
        )
    return feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Where rows that do not decode go, so that nothing vanishes and nothing stands still."""

    store: DeadLetters
    group: Group

    def __post_init__(self) -> None:
        if isinstance(self.store, MemoryDeadLetters):
            raise BadInput(
                "dead letters in memory are out of the reach of Spark's executors: keep them in a "
                "file, like sqlite:///data/dead.db"
            )

    def made_of(self, events: Sequence[Event]) -> list[DeadLetter]:
        return [letter_for(self.group, event, NO_FIT) for event in events]

    def put(self, letters: Sequence[DeadLetter]) -> None:
        async def put() -> None:
            try:
                for at in range(0, len(letters), PUT_MAX):
                    await self.store.put(letters[at : at + PUT_MAX])
            except BadInput as error:
                # If the store takes nothing, it says so here, and no event is to blame.
                await self.store.list(LetterFilter(), limit=1)
                # Not from it: a job that fails with bad input is no event's fault either.
                raise LetterRefused(str(error)) from None
            finally:
                await self.store.close()

        asyncio.run(put())


@dataclass(slots=True)
class _Prepared:
    """What became of a chunk, or of several."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    size: int = 0
    """Of all that may stay in memory with these. Rows that ``at_source`` cut out keep all of the
    chunk's columns."""

    def has_room_for(self, more: _Prepared) -> bool:
        return len(self.letters) < PUT_LETTERS and self.size + more.size <= HELD_BYTES

    def add(self, more: _Prepared) -> None:
        self.batches += more.batches
        self.letters += more.letters
        self.size += more.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read: the same for all tasks of a job."""

    address: Address
    schema: pa.Schema
    """The columns before ``at_source``."""
    decoder: Decoder | None = None
    letters: Letters | None = None
    at_source: AtSource | None = None
    result: pa.Schema
    """The columns after it."""

    def read(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """Rows leave when all letters so far are put, not before: a query that has enough rows ends
        the task without a word."""
        held = _Prepared()
        for chunk in self.address.open().read_columns(ranges):
            more = self._prepared(chunk)
            if held.letters and not held.has_room_for(more):
                yield from self._released(held)
                held = _Prepared()
            held.add(more)
            if not held.letters:
                yield from held.batches
                held = _Prepared()
        yield from self._released(held)

    def _released(self, held: _Prepared) -> Sequence[pa.RecordBatch]:
        if held.letters and self.letters is not None:
            self.letters.put(held.letters)
        return held.batches

    def _prepared(self, chunk: Chunk) -> _Prepared:
        if self.decoder is None and self.at_source is None:
            return _Prepared([chunk.columns(self.schema.names)])
        letters: list[DeadLetter] = []
        if self.decoder is None:
            frame = _frame(chunk.columns(self.schema.names))
        else:
            frame, letters = self._decoded(chunk, self.decoder)
        size = frame.estimated_size() + sum(map(_size, letters))
        if self.at_source is not None:
            frame = applied(self.at_source, frame)
        table = _table(frame, self.result)
        return _Prepared(table.to_batches(), letters, size + table.get_total_buffer_size())

    def _decoded(self, chunk: Chunk, decoder: Decoder) -> tuple[pl.DataFrame, list[DeadLetter]]:
        columns = self.address.columns
        bodies = chunk.columns([columns.body]).column(0).cast(pa.binary())
        typed, bad = decoder.decode(bodies)
        if bodies.null_count:  # a deleted document has nothing to decode
            bad &= bodies.is_valid().to_numpy(zero_copy_only=False)
        own = [name for name in self.schema.names if name in columns.schema.names]
        frame = _frame(chunk.columns(own)).hstack(typed) if own else typed
        rows = np.flatnonzero(bad)
        letters: list[DeadLetter] = []
        if len(rows) and self.letters is not None:
            letters = self.letters.made_of(chunk.events(rows.tolist()))
            frame = frame.filter(pl.Series(~bad))
        if CORRUPT in self.schema.names:
            raw: list[str | None] = [None] * frame.height
            if self.letters is None:
                for row in rows:
                    raw[row] = bodies[row].as_py().decode("utf-8", "backslashreplace")
            frame = frame.with_columns(pl.Series(CORRUPT, raw, pl.String))
        return frame.select(self.schema.names), letters


def applied(at_source: AtSource, frame: pl.DataFrame) -> pl.DataFrame:
    found: Any = at_source(frame)
    if not isinstance(found, pl.DataFrame):
        raise BadInput(f"at_source must return a polars DataFrame, not a {type(found).__name__}")
    return found


def schema_after(at_source: AtSource, schema: pa.Schema) -> pa.Schema:
    """What the user's function makes of these columns: found out with no rows."""
    frame = applied(at_source, _frame(schema.empty_table()))
    return pa.schema([(field.name, _plain(field.type)) for field in frame.to_arrow().schema])


def keep_what_is_loaded() -> None:
    """Spark's workers collect garbage after every task, and most of the 20 to 60 ms that this takes
    is spent on what packages have loaded, which is none. Later collections pass it over."""
    _keep(len(sys.modules))


@cache
def _keep(modules: int) -> None:
    gc.collect()
    gc.freeze()


@lru_cache(maxsize=4)
def _opened(url: str, identity: str) -> ColumnarFeed:
    """Once for each identity. A worker process serves many tasks; opening the feed for each would
    cost more than a small task itself."""
    return columnar(open_feed(url))


def _size(letter: DeadLetter) -> int:
    texts = [letter.partition_key or "", letter.token, letter.error]
    for name, value in letter.properties.items():
        texts += name, str(value)
    return LETTER_BYTES + len(letter.body) + sum(map(len, texts))


def _frame(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _table(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    if frame.columns != schema.names:
        frame = frame.select(schema.names)
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)


def _plain(kind: Any) -> Any:
    """The type as Spark knows it: polars makes strings large and counts without sign."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.int64() if pa.types.is_unsigned_integer(kind) else kind
