"""A hub's events as columns, for Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from leasehold.core.ranges import Range
from leasehold.errors import FeedUnavailable
from leasehold.feeds.arrow_events import EventChunk

CHUNK_EVENTS = 64_000
"""Decoded at once: large enough to be worth it, small enough for the processor's caches."""
CHUNK_BYTES = 64 << 20


def chunks(
    read_arrow: Callable[..., pa.RecordBatch], path: Path, wanted: Range
) -> Iterator[EventChunk]:
    at = wanted.first
    while at < wanted.end:
        most = min(wanted.end - at, CHUNK_EVENTS)
        raw = read_arrow(wanted.partition, at, most, max_bytes=CHUNK_BYTES)
        if not raw.num_rows:
            raise FeedUnavailable(
                f"{path}, partition {wanted.partition}: sequence {at} cannot be read, although "
                f"it was there when the range up to {wanted.end} was planned"
            )
        yield EventChunk(raw, wanted.partition)
        at += raw.num_rows
