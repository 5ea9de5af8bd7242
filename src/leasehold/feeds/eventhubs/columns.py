"""Events as Arrow columns, for Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from leasehold.core.event import Event
from leasehold.feeds.arrow_events import EVENT_SCHEMA, to_unix_us

_OFFSET = EVENT_SCHEMA.get_field_index("offset")
TEXT_OFFSETS = EVENT_SCHEMA.set(_OFFSET, pa.field("offset", pa.string(), nullable=False))


def as_arrow(events: Sequence[Event]) -> pa.RecordBatch:
    bodies, sequences, offsets, times, _, keys, properties = zip(*events, strict=True)
    columns = [
        pa.array(bodies, pa.binary()),
        pa.array(sequences, pa.int64()),
        pa.array(offsets, pa.string()),
        pa.array(list(map(to_unix_us, times)), pa.int64()).cast(TEXT_OFFSETS.field(3).type),
        pa.array(keys, pa.string()),
        pa.array([json.dumps(each) if each else None for each in properties], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TEXT_OFFSETS)
