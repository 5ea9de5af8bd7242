"""Pieces of a range as they come from the feed, with each column made only when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from leasehold.core.change import Change
from leasehold.core.model import Checkpoint
from leasehold.core.ranges import Range
from leasehold.errors import FeedUnavailable
from leasehold.feeds.arrow_events import ArrowEvents
from leasehold.feeds.container_feed import ChangeFeed
from leasehold.feeds.hub import Hub
from leasehold.spark.columns import CHANGE_COLUMNS, EVENT_COLUMNS

CHUNK_EVENTS = 64_000
"""Decoded at once: large enough to be worth it, small enough for the processor's caches."""
CHUNK_BYTES = 64 << 20
CHANGES_EVENTS = 10_000


class Chunk(Protocol):
    def __len__(self) -> int: ...

    def bodies(self) -> pa.Array:
        """JSON as bytes; null where there is nothing to decode."""

    def columns(self, names: Sequence[str]) -> pa.Table: ...

    def events(self, rows: Sequence[int]) -> Sequence[Any]:
        """As a plain handler would be given them."""


@dataclass(frozen=True, slots=True)
class HubChunk:
    raw: pa.RecordBatch
    partition: str

    def __len__(self) -> int:
        return int(self.raw.num_rows)

    def bodies(self) -> pa.Array:
        return self.raw.column("body")

    def columns(self, names: Sequence[str]) -> pa.Table:
        return pa.table([self._column(name) for name in names], names=list(names))

    def _column(self, name: str) -> pa.Array:
        if name == "partition":
            return _repeated(self.partition, len(self))
        return self.raw.column(name).cast(EVENT_COLUMNS.field(name).type)

    def events(self, rows: Sequence[int]) -> Sequence[Any]:
        return list(ArrowEvents(self.raw.take(pa.array(rows, pa.int64())), self.partition))


@dataclass(frozen=True, slots=True)
class ChangeChunk:
    changes: Sequence[Change]

    def __len__(self) -> int:
        return len(self.changes)

    def bodies(self) -> pa.Array:
        return self.columns(["document"]).column(0).combine_chunks().cast(pa.binary())

    def columns(self, names: Sequence[str]) -> pa.Table:
        schema = pa.schema([CHANGE_COLUMNS.field(name) for name in names])
        return pa.table([self._column(name) for name in names], schema=schema)

    def _column(self, name: str) -> pa.Array:
        values = [getattr(change, name) for change in self.changes]
        if name in ("document", "previous"):
            values = [None if value is None else _json(value) for value in values]
        return pa.array(values, CHANGE_COLUMNS.field(name).type)

    def events(self, rows: Sequence[int]) -> Sequence[Any]:
        return [self.changes[row] for row in rows]


def chunks(feed: Hub | ChangeFeed, wanted: Range) -> Iterator[Chunk]:
    if isinstance(feed, Hub):
        return _of_hub(feed, wanted)
    return _of_changes(feed, wanted)


def _of_hub(hub: Hub, wanted: Range) -> Iterator[Chunk]:
    at = wanted.first
    while at < wanted.end:
        most = min(wanted.end - at, CHUNK_EVENTS)
        raw = hub.read_arrow(wanted.partition, at, most, max_bytes=CHUNK_BYTES)
        if not raw.num_rows:
            raise FeedUnavailable(
                f"{hub.path}, partition {wanted.partition}: sequence {at} cannot be read, although "
                f"it was there when the range up to {wanted.end} was planned"
            )
        yield HubChunk(raw, wanted.partition)
        at += raw.num_rows


def _of_changes(feed: ChangeFeed, wanted: Range) -> Iterator[Chunk]:
    at = wanted.first
    while at < wanted.end:
        most = min(CHANGES_EVENTS, wanted.end - at)
        batch = feed.read_batch(wanted.partition, Checkpoint(next_sequence=at), most)
        found = [change for change in batch.events if change.lsn < wanted.end]
        if found:
            yield ChangeChunk(found)
        if len(found) < len(batch.events) or not len(batch.events):
            return
        at = batch.next.next_sequence


def _repeated(text: str, rows: int) -> pa.Array:
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([text]))
    return values.cast(pa.string())


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
