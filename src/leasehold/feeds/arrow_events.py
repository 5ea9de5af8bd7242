"""Events as Arrow columns, for Spark, and as ``Event`` for those who want them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, overload

import numpy as np
import pyarrow as pa

from leasehold.core import strict_json
from leasehold.core.event import Event, Properties
from leasehold.ports import FeedColumns

EVENT_SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("enqueued_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("partition_key", pa.string()),
        pa.field("properties", pa.string()),
    ]
)
"""How a feed of events holds them. ``properties`` is a JSON object as text; null means none. The
``offset`` may be text as well."""
EVENT_COLUMNS = FeedColumns(
    schema=pa.schema(
        [
            ("body", pa.binary()),
            ("partition", pa.string()),
            ("sequence", pa.int64()),
            ("offset", pa.string()),
            ("enqueued_at", pa.timestamp("us", tz="UTC")),
            ("partition_key", pa.string()),
            ("properties", pa.string()),
        ]
    ),
    partition="partition",
    sequence="sequence",
    body="body",
)
"""How Spark sees them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ArrowEvents(Sequence[Event]):
    """Events of one partition. ``arrow`` has the columns; an ``Event`` is made only when asked for.

    Slices share the columns, so cutting a batch in two copies nothing.
    """

    __slots__ = ("arrow", "partition")

    def __init__(self, arrow: pa.RecordBatch, partition: str) -> None:
        self.arrow = arrow
        self.partition = partition

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> ArrowEvents: ...

    def __getitem__(self, index: int | slice) -> Event | ArrowEvents:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"events can only be cut in order, not with a step of {step}")
            return ArrowEvents(self.arrow.slice(start, max(0, stop - start)), self.partition)
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"event {index} of a batch of {len(self)}")
        return _events(self.arrow.slice(place, 1), self.partition)[0]

    def __iter__(self) -> Iterator[Event]:
        return iter(_events(self.arrow, self.partition))

    def __repr__(self) -> str:
        return f"ArrowEvents({len(self)} events of partition {self.partition})"


@dataclass(frozen=True, slots=True)
class EventChunk:
    """A ``Chunk`` of events that are held as ``EVENT_SCHEMA`` says."""

    arrow: pa.RecordBatch
    partition: str

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def columns(self, names: Sequence[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._column(name) for name in names], list(names))

    def events(self, rows: Sequence[int]) -> Sequence[Event]:
        return list(ArrowEvents(self.arrow.take(pa.array(rows, pa.int64())), self.partition))

    def _column(self, name: str) -> pa.Array:
        if name == EVENT_COLUMNS.partition:
            return _repeated(self.partition, len(self))
        return self.arrow.column(name).cast(EVENT_COLUMNS.schema.field(name).type)


def _repeated(text: str, rows: int) -> pa.Array:
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([text]))
    return values.cast(pa.string())


def to_datetime(unix_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=unix_us)


def to_unix_us(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)


def _events(arrow: pa.RecordBatch, partition: str) -> list[Event]:
    """All events at once: column by column is several times faster than row by row."""
    enqueued = arrow.column(3).view(pa.int64()).to_pylist()
    times = {unix_us: to_datetime(unix_us) for unix_us in set(enqueued)}
    bodies = arrow.column(0).to_pylist()
    if arrow.column(0).null_count:  # what is deleted by a key, as in a compacted topic
        bodies = [b"" if body is None else body for body in bodies]
    columns = zip(
        bodies,
        arrow.column(1).to_pylist(),
        map(str, arrow.column(2).to_pylist()),
        map(times.__getitem__, enqueued),
        repeat(partition),
        _or_nones(arrow.column(4)),
        _properties(arrow.column(5)),
        strict=False,
    )
    return list(map(Event._make, columns))


def _or_nones(column: pa.Array) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    values: list[Any] = column.to_pylist()
    return values


def _properties(column: pa.Array) -> list[Properties]:
    return [strict_json.loads(text) if text else {} for text in _or_nones(column)]
