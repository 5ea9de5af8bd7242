"""How the hub keeps a batch: an Arrow IPC record batch message, compressed with zstd.

Sequence, offset and time are not kept per event: they follow from the row's own, because both
numbers have no gaps within a row and one send has one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.errors import BadInput
from leasehold.feeds.arrow_events import EVENT_SCHEMA
from leasehold.feeds.hub.offsets import MARK_BITS

HAS_KEYS, HAS_PROPERTIES = 1, 2
EVENT_OVERHEAD_BYTES = 8
"""Counted for every event on top of its own bytes, so that empty ones are bounded, too."""

_ZSTD = pa.Codec("zstd", compression_level=1)
_SCHEMAS = [
    pa.schema(
        [EVENT_SCHEMA.field("body")]
        + [EVENT_SCHEMA.field("partition_key")] * bool(flags & HAS_KEYS)
        + [EVENT_SCHEMA.field("properties")] * bool(flags & HAS_PROPERTIES)
    )
    for flags in range(4)
]


class Frame(NamedTuple):
    """A batch of one partition, ready to be stored."""

    partition: int
    events: int
    body_bytes: int
    columns: int
    message_bytes: int
    data: bytes


class BatchRow(NamedTuple):
    """A stored batch. ``data`` is None where the caller has the decoded batch already."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    """The offset of the event before the first one."""
    last_offset: int
    counts_bytes: bool
    """A row of format 1: from an event to the next, the offset rises by its bytes and one more."""
    enqueued_us: int
    columns: int
    message_bytes: int
    data: bytes | None


def columns_of(
    bodies: pa.BinaryArray, keys: pa.StringArray | None, properties: pa.StringArray | None
) -> tuple[int, pa.RecordBatch]:
    """The columns to store, leaving out what is absent, and the flags that say which there are."""
    arrays, flags = [bodies], 0
    if keys is not None and keys.null_count < len(keys):
        arrays.append(keys)
        flags |= HAS_KEYS
    if properties is not None and properties.null_count < len(properties):
        arrays.append(properties)
        flags |= HAS_PROPERTIES
    return flags, pa.RecordBatch.from_arrays(arrays, schema=_SCHEMAS[flags])


def event_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """What each event counts towards ``batch_bytes_max``."""
    sizes = np.full(batch.num_rows, EVENT_OVERHEAD_BYTES, dtype=np.int64)
    for column in batch.columns:
        lengths = pc.binary_length(column)
        sizes += (lengths.fill_null(0) if column.null_count else lengths).to_numpy()
    return sizes


def encode(partition: int, flags: int, batch: pa.RecordBatch) -> Frame:
    message = batch.serialize()
    return Frame(
        partition,
        batch.num_rows,
        _body_bytes(batch.column(0)),
        flags,
        message.size,
        _ZSTD.compress(message, asbytes=True),
    )


def decode(rows: Sequence[BatchRow]) -> list[tuple[int, pa.RecordBatch]]:
    """The stored columns of each row, with their flags.

    All rows are decompressed in one call (zstd frames may follow one another), because setting up
    the decompressor costs more than a small row itself.
    """
    if not rows:
        return []
    sizes = [row.message_bytes for row in rows]
    try:
        joined = b"".join(row.data or b"" for row in rows)
        plain = _ZSTD.decompress(joined, decompressed_size=sum(sizes))
        batches, start = [], 0
        for row, size in zip(rows, sizes, strict=True):
            message = plain.slice(start, size)
            batch = pa.ipc.read_record_batch(message, _SCHEMAS[row.columns])
            if batch.num_rows != row.last_sequence - row.first_sequence + 1:
                raise ValueError(f"{batch.num_rows} events")
            batches.append((row.columns, batch))
            start += size
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise BadInput(
            f"the batches from sequence {rows[0].first_sequence} to {rows[-1].last_sequence} "
            f"are damaged: {error}"
        ) from error
    return batches


def assemble(
    rows: Sequence[BatchRow], stored: Sequence[tuple[int, pa.RecordBatch]], start: int, count: int
) -> pa.RecordBatch:
    """One record batch of ``EVENT_SCHEMA`` from consecutive rows: ``count`` events from the
    sequence ``start`` on, which is in the first row."""
    whole = _joined(stored)
    skipped = start - rows[0].first_sequence
    part = whole.slice(skipped, count)
    sizes = [row.last_sequence - row.first_sequence + 1 for row in rows]
    times, bases = (
        np.repeat(np.array(each, dtype=np.int64), sizes)[skipped : skipped + count]
        for each in (
            [row.enqueued_us for row in rows],
            [row.last_offset - (row.last_sequence << MARK_BITS) for row in rows],
        )
    )
    sequences = np.arange(start, start + part.num_rows)
    offsets = bases + (sequences << MARK_BITS)
    if any(row.counts_bytes for row in rows):
        offsets = _with_bytes_counted(rows, stored, start, offsets)
    return pa.RecordBatch.from_arrays(
        [
            part.column(0),
            pa.array(sequences),
            pa.array(offsets),
            pa.array(times).view(EVENT_SCHEMA.field("enqueued_at").type),
            part.column(1),
            part.column(2),
        ],
        schema=EVENT_SCHEMA,
    )


def _joined(stored: Sequence[tuple[int, pa.RecordBatch]]) -> pa.RecordBatch:
    """All rows' columns as one batch of body, key and properties."""
    flags = {columns for columns, _ in stored}
    if len(flags) > 1:
        return pa.concat_batches([_complete(columns, batch) for columns, batch in stored])
    batches = [batch for _, batch in stored]
    joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return _complete(flags.pop(), joined)


def _complete(flags: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    if flags == HAS_KEYS | HAS_PROPERTIES:
        return batch
    absent = pa.nulls(batch.num_rows, pa.string())
    keys = batch.column(1) if flags & HAS_KEYS else absent
    properties = batch.column(1) if flags & HAS_PROPERTIES else absent
    return pa.RecordBatch.from_arrays([batch.column(0), keys, properties], schema=_SCHEMAS[3])


def _with_bytes_counted(
    rows: Sequence[BatchRow],
    stored: Sequence[tuple[int, pa.RecordBatch]],
    start: int,
    offsets: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The offsets, with those of format 1 put right."""
    for row, (_, batch) in zip(rows, stored, strict=True):
        if row.counts_bytes:
            ends = _body_ends(batch.column(0)) + row.first_offset
            mine = ends + np.arange(1, len(ends) + 1)
            first = row.first_sequence - start
            kept = mine[max(0, -first) : max(0, len(offsets) - first)]
            offsets[max(0, first) : max(0, first) + len(kept)] = kept
    return offsets


def _body_ends(bodies: pa.BinaryArray) -> Any:
    """Where bodies end, counted from the first one's start."""
    offsets = np.frombuffer(bodies.buffers()[1], dtype=np.int32)
    offsets = offsets[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
    return offsets[1:] - offsets[0]


def _body_bytes(bodies: pa.BinaryArray) -> int:
    offsets = np.frombuffer(bodies.buffers()[1], dtype=np.int32)
    return int(offsets[bodies.offset + len(bodies)]) - int(offsets[bodies.offset])
