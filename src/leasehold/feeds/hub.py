"""The embedded hub: partitions of events in one SQLite file, for one machine, with no server.

Producers and readers may be threads and processes, any number of each. Sequence numbers have no
gaps within a partition. A send that returned survives the death of the process.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from leasehold.core.event import EventData
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.arrow_events import ArrowEvents
from leasehold.feeds.hub_file import Appended, HubFile, Removed, Settings
from leasehold.feeds.hub_intake import EventBatch
from leasehold.feeds.hub_properties import (
    HubProperties,
    PartitionProperties,
    extent,
    hub_properties,
    partition_properties,
)
from leasehold.feeds.hub_reader import READ_BYTES_MAX, HubReader
from leasehold.feeds.hub_writer import HubWriter
from leasehold.feeds.sqlite_file import Threads
from leasehold.ports import Batch

PARTITIONS_MAX = 10_000
BATCH_BYTES_MAX = 1 << 20
READ_EVENTS_MAX = 10_000
_BATCH_BYTES_LIMIT = 1 << 28
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")


class Hub:
    """A ``Feed``: the async methods run the plain ones in the hub's own threads.

    ``fsync=True`` makes a send wait for the disk, so that it survives a power cut, too.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.requests: Counter[str] = Counter()
        self._file = HubFile(self.path, fsync=fsync)
        settings = self._file.settings()
        self.namespace = settings.namespace
        self.name = settings.name
        self.identity = settings.identity
        self.batch_bytes_max = settings.batch_bytes_max
        self._reader = HubReader(self._file)
        self._writer = HubWriter(self._file, settings.batch_bytes_max, wall)
        self._options = (fsync, wall)
        self._threads = Threads(f"hub-{self.name}")

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        namespace: str,
        partitions: int,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        fsync: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> Self:
        """Make a new hub and open it. Only the number of partitions (upwards) and the retention
        can be changed later."""
        for what, text in (("name", name), ("namespace", namespace)):
            if not _NAME.fullmatch(text):
                raise BadInput(
                    f"{what} {text!r}: letters, digits, dots, dashes and underscores are allowed"
                )
        _require_partitions(partitions)
        _require_retention(retention_s, retention_bytes)
        if not 1 <= batch_bytes_max <= _BATCH_BYTES_LIMIT:
            raise BadInput(f"batch_bytes_max is {batch_bytes_max}; it is 1 to {_BATCH_BYTES_LIMIT}")
        settings = Settings(
            identity=secrets.token_hex(16),
            namespace=namespace,
            name=name,
            partitions=partitions,
            batch_bytes_max=batch_bytes_max,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
            created_us=int(wall() * 1e6),
        )
        HubFile.create(Path(path), settings)
        return cls(path, fsync=fsync, wall=wall)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> Self:
        return cls(path, fsync=fsync, wall=wall)

    def send(
        self,
        events: EventData | EventBatch | Iterable[EventData],
        *,
        partition_key: str | None = None,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        """Store one batch in one partition: the key's, the given one, or the next in turn."""
        if isinstance(events, EventBatch):
            if partition_key is not None or partition_id is not None:
                raise BadInput("the batch has its partition already; give it to hub.batch() only")
            events, partition_key, partition_id = events.target()
        elif isinstance(events, EventData):
            events = [events]
        if partition_key is not None and partition_id is not None:
            raise BadInput("give a partition_key or a partition_id, not both")
        self.requests["send"] += 1
        return self._writer.send(list(events), partition_key, self._known(partition_id))

    def send_columns(
        self,
        keys: Any,
        bodies: Any,
        properties: Any = None,
        *,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        """Store whole columns at once, all or nothing: Arrow arrays, or what makes them.

        Every event goes to its key's partition. With ``keys=None`` batches go to the partitions in
        turn. ``properties`` are JSON objects as text, or null.
        """
        self.requests["send"] += 1
        return self._writer.send_columns(keys, bodies, properties, self._known(partition_id))

    def batch(
        self, *, partition_key: str | None = None, partition_id: str | int | None = None
    ) -> EventBatch:
        """An empty batch that knows when it is full."""
        return EventBatch(self.batch_bytes_max, partition_key, partition_id)

    def read_arrow(
        self,
        partition: str | int,
        next_sequence: int,
        max_events: int = READ_EVENTS_MAX,
        *,
        max_bytes: int = READ_BYTES_MAX,
    ) -> pa.RecordBatch:
        """Events from a sequence number on, as columns (``EVENT_SCHEMA``); empty at the end.

        Raises ``PositionGone`` before the first and beyond the last event.
        """
        position = Checkpoint(next_sequence=next_sequence)
        self.requests["read"] += 1
        return self._reader.read(self._number(partition), position, max_events, max_bytes)[0]

    def read_batch(self, partition: str | int, position: Checkpoint, max_events: int) -> Batch:
        """``read`` without waiting for a loop."""
        self.requests["read"] += 1
        arrow, after = self._reader.read(self._number(partition), position, max_events)
        return Batch(events=ArrowEvents(arrow, str(partition)), next=after)

    def position_of(self, partition: str | int, start: Any) -> Checkpoint:
        """``locate`` without waiting for a loop."""
        self.requests["locate"] += 1
        return self._reader.locate(self._number(partition), start)

    def partition_ids(self) -> Sequence[str]:
        self.requests["partitions"] += 1
        return [str(number) for number in range(self._file.count_partitions())]

    def kept(self) -> Sequence[Extent]:
        """``extents`` without waiting for a loop."""
        self.requests["extents"] += 1
        return [extent(state) for state in self._file.states()]

    def times_at(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, float | PositionGone]:
        """``event_times`` without waiting for a loop."""
        self.requests["event_times"] += 1
        numbered = {self._number(partition): position for partition, position in positions.items()}
        return {str(p): time for p, time in self._reader.event_times(numbered).items()}

    def properties(self) -> HubProperties:
        return hub_properties(self._file.settings(), self._file.states(), self._file.file_bytes())

    def partition_properties(self, partition: str | int) -> PartitionProperties:
        return partition_properties(self._reader.state(self._number(partition)))

    def raise_partitions(self, to: int) -> None:
        """Add partitions. Keys are dealt out anew, so a key's later events may go elsewhere."""
        _require_partitions(to)
        if self._file.raise_partitions(to) > to:
            raise BadInput(f"the hub {self.path} has more than {to} partitions; never fewer")

    def set_retention(
        self, *, retention_s: float | None = None, retention_bytes: int | None = None
    ) -> None:
        """How long, and how many (compressed) bytes to keep. Producers see to it as they send."""
        _require_retention(retention_s, retention_bytes)
        self._file.set_retention(retention_s, retention_bytes)

    def trim(self, *, max_age_s: float | None = None, max_bytes: int | None = None) -> Removed:
        """Remove the oldest batches now; by the hub's own retention if nothing else is said."""
        _require_retention(max_age_s, max_bytes)
        if max_age_s is None and max_bytes is None:
            settings = self._file.settings()
            max_age_s, max_bytes = settings.retention_s, settings.retention_bytes
        removed = self._writer.trim(max_age_s, max_bytes)
        self._file.shrink()
        return removed

    def trim_before(self, partition: str | int, sequence: int) -> Removed:
        """Remove the partition's batches that end before a sequence number."""
        number = self._reader.state(self._number(partition)).partition
        removed = self._file.remove_before(number, sequence=sequence)
        self._file.shrink()
        return removed

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(id=number) for number in await self._threads.run(self.partition_ids)]

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._threads.run(self.position_of, partition, start)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        return await self._threads.run(self.read_batch, partition, position, max_events)

    async def extents(self) -> Sequence[Extent]:
        return await self._threads.run(self.kept)

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return await self._threads.run(self.times_at, positions)

    def close(self) -> None:
        """Events are safe without it; it frees the file and the threads."""
        self._threads.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the file for itself."""
        return _reopen, (type(self), str(self.path), *self._options)

    def __repr__(self) -> str:
        return f"Hub({self.namespace}/{self.name} at {self.path})"

    def _number(self, partition: str | int) -> int:
        return self._reader.number(partition)

    def _known(self, partition: str | int | None) -> int | None:
        if partition is None:
            return None
        number = self._number(partition)
        # Partitions are never removed, so the file is asked only about those not known yet.
        return number if number < self._writer.partitions else self._reader.state(number).partition


def _reopen(kind: type[Hub], path: str, fsync: bool, wall: Callable[[], float]) -> Hub:
    return kind(path, fsync=fsync, wall=wall)


def _require_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise BadInput(f"partitions is {count}; a hub has 1 to {PARTITIONS_MAX}")


def _require_retention(age_s: float | None, stored_bytes: int | None) -> None:
    if age_s is not None and not age_s >= 0:
        raise BadInput(f"an age to keep of {age_s} s: give 0 or more")
    if stored_bytes is not None and stored_bytes < 0:
        raise BadInput(f"{stored_bytes} bytes to keep: give 0 or more")
