"""Checks what producers hand in, and turns it into the columns that the hub stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.core.event import EventData
from leasehold.errors import BadInput
from leasehold.feeds import sent_columns
from leasehold.feeds.hub.batches import EVENT_OVERHEAD_BYTES
from leasehold.feeds.sent_columns import bodies_column, properties_text

KEY_BYTES_MAX = 256


def keys_column(values: Any) -> pa.StringArray:
    keys = sent_columns.keys_column(values)
    longest = pc.max(pc.binary_length(keys)).as_py() or 0
    if longest > KEY_BYTES_MAX:
        raise BadInput(f"a partition key has {longest} bytes; at most {KEY_BYTES_MAX} are allowed")
    return keys


def columns_of_events(
    events: Sequence[EventData], key: str | None
) -> tuple[pa.BinaryArray, pa.StringArray | None, pa.StringArray | None]:
    bodies = bodies_column([event.body for event in events])
    keys = None if key is None else pa.repeat(keys_column([key])[0], len(events))
    if not any(event.properties for event in events):
        return bodies, keys, None
    return (
        bodies,
        keys,
        pa.array([properties_text(event.properties) for event in events], pa.string()),
    )


def size_of(event: EventData, key: str | None) -> int:
    """What one event counts towards ``batch_bytes_max``: ``event_bytes`` without columns."""
    if not isinstance(event.body, str | bytes | bytearray | memoryview):
        raise BadInput(f"a body is bytes or text, not {event.body!r:.80}")
    parts = (event.body, key or "", properties_text(event.properties) or "")
    sizes = (len(part.encode() if isinstance(part, str) else part) for part in parts)
    return sum(sizes) + EVENT_OVERHEAD_BYTES


def require_fit(sizes: npt.NDArray[np.int64], bytes_max: int) -> None:
    """No event alone may exceed the bound of a batch."""
    largest = int(np.argmax(sizes)) if len(sizes) else 0
    if len(sizes) and sizes[largest] > bytes_max:
        raise BadInput(
            f"event {largest} of this send takes {sizes[largest]} bytes; "
            f"batch_bytes_max is {bytes_max}"
        )


def spread(
    batch: pa.RecordBatch,
    sizes: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.intp],
    bytes_max: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The events of each chosen partition, in order, in batches that fit."""
    # Stable, so that the events of one key stay in order; narrow, because that sorts by radix.
    order = np.argsort(chosen.astype(np.uint16), kind="stable")
    batch, sizes = batch.take(pa.array(order)), sizes[order]
    counts = np.bincount(chosen)
    stops = np.cumsum(counts)
    total_bytes = np.diff(np.cumsum(sizes)[stops - 1], prepend=0)
    for partition in np.flatnonzero(counts):
        stop, start = int(stops[partition]), int(stops[partition] - counts[partition])
        if total_bytes[partition] <= bytes_max:
            yield int(partition), batch.slice(start, stop - start)
            continue
        for first, end in cut(sizes[start:stop], bytes_max):
            yield int(partition), batch.slice(start + first, end - first)


def cut(sizes: npt.NDArray[np.int64], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Split a run of events, none of them over the bound, into runs that each keep to it."""
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, before + bytes_max, side="right"))
        yield start, stop
        start, before = stop, int(ends[stop - 1])


class EventBatch:
    """Events for one partition, up to ``batch_bytes_max``."""

    def __init__(
        self, bytes_max: int, partition_key: str | None, partition_id: str | int | None
    ) -> None:
        self._target = (partition_key, partition_id)
        self._bytes_max = bytes_max
        self._events: list[EventData] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: EventData) -> bool:
        """False: it does not fit any more; send this batch and begin another."""
        size = size_of(event, self._target[0])
        require_fit(np.array([size]), self._bytes_max)
        if self.bytes + size > self._bytes_max:
            return False
        self._events.append(event)
        self.bytes += size
        return True

    def target(self) -> tuple[list[EventData], str | None, str | int | None]:
        return self._events, *self._target
