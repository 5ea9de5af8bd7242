"""What runs where the events are read: in an executor's Python, one call per task.

Nothing here knows leases or instances. A task is a list of ranges and says all there is to know.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from leasehold.core.event import Event
from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.feeds import open_feed
from leasehold.ports import Chunk, ColumnarFeed, DeadLetters, FeedColumns
from leasehold.processor.letters import letter_for
from leasehold.spark.reading.columns import CORRUPT
from leasehold.spark.reading.decode import Decoder
from leasehold.stores.dead_letters.memory import MemoryDeadLetters

NO_FIT = "the body is not JSON that fits the schema"

AtSource = Callable[[pl.DataFrame], pl.DataFrame]
Put = Callable[[Sequence[Event]], None]


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

    @contextmanager
    def opened(self) -> Iterator[Put]:
        """For one task. The store is opened for its first letters and stays open: to open and close
        it for each chunk costs more than the letters do, and tasks would wait for one another."""
        put_any = False
        with asyncio.Runner() as runner:

            def put(events: Sequence[Event]) -> None:
                nonlocal put_any
                put_any = True
                runner.run(
                    self.store.put([letter_for(self.group, each, NO_FIT) for each in events])
                )

            try:
                yield put
            finally:
                if put_any:
                    runner.run(self.store.close())


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

    def read(self, ranges: Sequence[Range]) -> Generator[pa.RecordBatch]:
        feed = self.address.open()
        with nullcontext() if self.letters is None else self.letters.opened() as put:
            for chunk in feed.read_columns(ranges):
                yield from self._prepared(chunk, put)

    def _prepared(self, chunk: Chunk, put: Put | None) -> Sequence[pa.RecordBatch]:
        if self.decoder is None and self.at_source is None:
            return [chunk.columns(self.schema.names)]
        if self.decoder is None:
            frame = _frame(chunk.columns(self.schema.names))
        else:
            frame = self._decoded(chunk, self.decoder, put)
        if self.at_source is not None:
            frame = applied(self.at_source, frame)
        batches: list[pa.RecordBatch] = _table(frame, self.result).to_batches()
        return batches

    def _decoded(self, chunk: Chunk, decoder: Decoder, put: Put | None) -> pl.DataFrame:
        columns = self.address.columns
        bodies = chunk.columns([columns.body]).column(0).cast(pa.binary())
        typed, bad = decoder.decode(bodies)
        if bodies.null_count:  # a deleted document has nothing to decode
            bad &= bodies.is_valid().to_numpy(zero_copy_only=False)
        own = [name for name in self.schema.names if name in columns.schema.names]
        frame = _frame(chunk.columns(own)).hstack(typed) if own else typed
        rows = np.flatnonzero(bad)
        if len(rows) and put is not None:
            put(chunk.events(rows.tolist()))
            frame = frame.filter(pl.Series(~bad))
        if CORRUPT in self.schema.names:
            raw: list[str | None] = [None] * frame.height
            if put is None:
                for row in rows:
                    raw[row] = bodies[row].as_py().decode("utf-8", "backslashreplace")
            frame = frame.with_columns(pl.Series(CORRUPT, raw, pl.String))
        return frame.select(self.schema.names)


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
