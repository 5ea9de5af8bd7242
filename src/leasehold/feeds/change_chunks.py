"""Changes of documents as columns, for Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from leasehold.core.change import Change
from leasehold.core.model import Checkpoint
from leasehold.core.ranges import Range
from leasehold.errors import FeedUnavailable
from leasehold.ports import Batch, FeedColumns

CHUNK_CHANGES = 10_000
TRANSACTION_CHANGES = 100
"""As many as a transactional batch may have: less is never asked for, or the last one of a range
would be read change by change, and from its first one each time."""
CHANGE_COLUMNS = FeedColumns(
    schema=pa.schema(
        [
            ("document", pa.string()),
            ("operation", pa.string()),
            ("range", pa.string()),
            ("lsn", pa.int64()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("partition_key", pa.string()),
            ("previous", pa.string()),
        ]
    ),
    partition="range",
    sequence="lsn",
    body="document",
)
"""``document`` and ``previous`` are JSON; null: deleted, or there was none."""

Read = Callable[[str, Checkpoint, int], Batch]


@dataclass(frozen=True, slots=True)
class ChangeChunk:
    changes: Sequence[Change]

    def __len__(self) -> int:
        return len(self.changes)

    def columns(self, names: Sequence[str]) -> pa.RecordBatch:
        schema = pa.schema([CHANGE_COLUMNS.schema.field(name) for name in names])
        return pa.RecordBatch.from_arrays([self._column(name) for name in names], schema=schema)

    def events(self, rows: Sequence[int]) -> Sequence[Change]:
        return [self.changes[row] for row in rows]

    def _column(self, name: str) -> pa.Array:
        values = [getattr(change, name) for change in self.changes]
        if name in ("document", "previous"):
            values = [None if value is None else _json(value) for value in values]
        return pa.array(values, CHANGE_COLUMNS.schema.field(name).type)


def chunks(read: Read, wanted: Range, *, may_lag: bool = False) -> Iterator[ChangeChunk]:
    """The changes of a transaction share an LSN: there may be more of them than LSNs, and a read
    may end between them. So the end is known only by the first change behind it, or where the feed
    says that it has nothing up to there. ``may_lag``: who answers here may know less than who
    planned it, and nothing does not mean that there is nothing."""
    at = Checkpoint(next_sequence=wanted.first)
    while wanted.first < wanted.end:
        most = min(CHUNK_CHANGES, max(wanted.end - at.next_sequence, TRANSACTION_CHANGES) + 1)
        batch = read(wanted.partition, at, most)
        found = [change for change in batch.events if change.lsn < wanted.end]
        if found:
            yield ChangeChunk(found)
        is_end = len(batch.events) < most and batch.next.next_sequence >= wanted.end
        if len(found) < len(batch.events) or is_end:
            return
        if not len(batch.events) and not may_lag:
            return
        if not len(batch.events):
            raise FeedUnavailable(
                f"range {wanted.partition}: changes up to LSN {wanted.end - 1} are wanted; only "
                f"those below {batch.next.next_sequence} are known here yet"
            )
        at = batch.next


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
