"""The embedded hub: partitions of events in one SQLite file, for one machine, with no server.

Producers and readers may be threads and processes, any number of each. Sequence numbers have no
gaps within a partition. A send that returned survives the death of the process.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from leasehold.core.event import EventData
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, PositionGone, only_lost
from leasehold.feeds.arrow_events import EVENT_COLUMNS, ArrowEvents, EventChunk
from leasehold.feeds.hub.chunks import chunks
from leasehold.feeds.hub.file import HubFile, HubSettings, RemovedEvents
from leasehold.feeds.hub.intake import EventBatch
from leasehold.feeds.hub.offsets import number_of
from leasehold.feeds.hub.properties import (
    HubProperties,
    PartitionProperties,
    extent,
    hub_properties,
    partition_properties,
)
from leasehold.feeds.hub.reader import READ_BYTES_MAX, HubReader
from leasehold.feeds.hub.writer import HubWriter
from leasehold.local.open_or_create import open_or_create, require_names
from leasehold.local.own_clock import Clocks, read_clocks
from leasehold.local.threads import OwnThreads
from leasehold.ports import Appended, Batch

PARTITIONS_MAX = 10_000
BATCH_BYTES_MAX = 1 << 20
READ_EVENTS_MAX = 10_000
_BATCH_BYTES_LIMIT = 1 << 28
Sendable = EventData | str | bytes | Mapping[str, Any]


class Hub:
    """A ``ColumnarFeed``: its async methods work in the hub's own threads.

    ``fsync=True`` makes a send wait for the disk, so that it survives a power cut, too.
    """

    unit = "event"
    columns = EVENT_COLUMNS
    has_gaps = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        clocks: Clocks = read_clocks,
    ) -> None:
        self.path = Path(path)
        self.address = self.path.resolve().as_uri()
        self.requests: Counter[str] = Counter()
        self._file = HubFile(self.path, fsync=fsync, clocks=clocks)
        settings = self._file.settings()
        self.namespace = settings.namespace
        self.name = settings.name
        self.identity = settings.identity
        self.batch_bytes_max = settings.batch_bytes_max
        self._reader = HubReader(self._file)
        self._writer = HubWriter(self._file, settings.batch_bytes_max)
        self._options = (fsync, clocks)
        self._threads = OwnThreads(f"hub-{self.name}")

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
        clocks: Clocks = read_clocks,
    ) -> Self:
        """Make a new hub and open it. Only the number of partitions (upwards) and the retention
        can be changed later."""
        require_names(name=name, namespace=namespace)
        _require_partitions(partitions)
        _require_retention(retention_s, retention_bytes)
        if not 1 <= batch_bytes_max <= _BATCH_BYTES_LIMIT:
            raise BadInput(f"batch_bytes_max is {batch_bytes_max}; it is 1 to {_BATCH_BYTES_LIMIT}")
        settings = HubSettings(
            identity=secrets.token_hex(16),
            namespace=namespace,
            name=name,
            partitions=partitions,
            batch_bytes_max=batch_bytes_max,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
            created_us=clocks().wall_us,
        )
        HubFile.create(Path(path), settings)
        return cls(path, fsync=fsync, clocks=clocks)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        clocks: Clocks = read_clocks,
    ) -> Self:
        return cls(path, fsync=fsync, clocks=clocks)

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        namespace: str,
        partitions: int,
        fsync: bool = False,
        **settings: Any,
    ) -> Self:
        """The hub in that file, which is made if there is none; any number of processes may do so
        at once. It must be the one that is meant; what ``settings`` say counts for a new one only.
        """
        return open_or_create(
            path,
            create=cls.create,
            open=cls.open,
            namespace=namespace,
            name=name,
            fsync=fsync,
            partitions=partitions,
            **settings,
        )

    def send(
        self,
        events: Sendable | EventBatch | Iterable[Sendable],
        *,
        partition_key: str | None = None,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        """Store one batch in one partition: the key's, the given one, or the next in turn.

        Text and bytes are bodies; a mapping becomes a JSON body.
        """
        if isinstance(events, EventBatch):
            if partition_key is not None or partition_id is not None:
                raise BadInput("the batch has its partition already; give it to hub.batch() only")
            events, partition_key, partition_id = events.target()
        elif isinstance(events, EventData | str | bytes | Mapping):
            events = [events]
        if partition_key is not None and partition_id is not None:
            raise BadInput("give a partition_key or a partition_id, not both")
        self.requests["send"] += 1
        return self._writer.send(
            list(map(event_data, events)), partition_key, self._known(partition_id)
        )

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
        """``read`` for callers with a thread of their own: it blocks."""
        self.requests["read"] += 1
        arrow, after = self._reader.read(self._number(partition), position, max_events)
        # Whole buffers: a part of one keeps all of it in memory.
        size_bytes = int(arrow.get_total_buffer_size()) if arrow.num_rows else 0
        events = ArrowEvents(arrow, str(partition))
        return Batch(events=events, next=after, size_bytes=size_bytes)

    def position_of(self, partition: str | int, start: Any) -> Checkpoint:
        """``locate`` for callers with a thread of their own: it blocks."""
        self.requests["locate"] += 1
        return self._reader.locate(self._number(partition), start)

    def read_columns(self, ranges: Sequence[Range]) -> Iterator[EventChunk]:
        for each in ranges:
            yield from chunks(self.read_arrow, self.path, each)

    def tokens_of(self, sequences: Mapping[str, int]) -> Mapping[str, str]:
        """By partition: the token of the position before that sequence, where there is one."""
        self.requests["tokens"] += 1
        numbered = {self._number(partition): at for partition, at in sequences.items()}
        return {str(p): token for p, token in self._reader.tokens(numbered).items()}

    def history_of(self, token: str) -> int:
        """An offset is of one history only."""
        return number_of(token) or 0

    def lost(self, positions: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        known = {
            partition: Checkpoint(next_sequence=at, token=str(offset))
            for partition, (at, offset) in positions.items()
        }
        return only_lost(self._event_times(known))

    def properties(self) -> HubProperties:
        return hub_properties(self._file.settings(), self._file.states(), self._file.file_bytes())

    def partition_properties(self, partition: str | int) -> PartitionProperties:
        return partition_properties(self._reader.state(self._number(partition)))

    @property
    def partition_ids(self) -> Sequence[str]:
        """As they are now; ``properties`` tells more of them, and takes longer."""
        return [each.id for each in self._partitions()]

    def raise_partitions(self, to: int) -> None:
        """Add partitions. Keys are assigned again, so a key's later events may go elsewhere."""
        _require_partitions(to)
        if self._file.raise_partitions(to) > to:
            raise BadInput(f"the hub {self.path} has more than {to} partitions; never fewer")

    def set_retention(
        self, *, retention_s: float | None = None, retention_bytes: int | None = None
    ) -> None:
        """How long, and how many (compressed) bytes to keep. Producers see to it as they send."""
        _require_retention(retention_s, retention_bytes)
        self._file.set_retention(retention_s, retention_bytes)

    def trim(
        self, *, max_age_s: float | None = None, max_bytes: int | None = None
    ) -> RemovedEvents:
        """Remove the oldest batches now; by the hub's own retention if nothing else is said."""
        _require_retention(max_age_s, max_bytes)
        if max_age_s is None and max_bytes is None:
            settings = self._file.settings()
            max_age_s, max_bytes = settings.retention_s, settings.retention_bytes
        removed = self._writer.trim(max_age_s, max_bytes)
        self._file.shrink()
        return removed

    def trim_before(self, partition: str | int, sequence: int) -> RemovedEvents:
        """Remove the partition's batches that end before a sequence number."""
        number = self._reader.state(self._number(partition)).partition
        removed = self._file.remove_before(number, sequence=sequence)
        self._file.shrink()
        return removed

    async def partitions(self) -> Sequence[Partition]:
        return await self._threads.run(self._partitions)

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._threads.run(self.position_of, partition, start)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        return await self._threads.run(self.read_batch, partition, position, max_events)

    async def extents(self) -> Sequence[Extent]:
        return await self._threads.run(self._extents)

    async def ends(self) -> Mapping[str, Checkpoint]:
        return await self._threads.run(self._ends)

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return await self._threads.run(self._event_times, positions)

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

    def _partitions(self) -> Sequence[Partition]:
        self.requests["partitions"] += 1
        return [Partition(id=str(number)) for number in range(self._file.count_partitions())]

    def _extents(self) -> Sequence[Extent]:
        self.requests["extents"] += 1
        return [extent(state) for state in self._file.states()]

    def _ends(self) -> Mapping[str, Checkpoint]:
        self.requests["ends"] += 1
        return self._reader.ends()

    def _event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        self.requests["event_times"] += 1
        numbered = {self._number(partition): position for partition, position in positions.items()}
        return {str(p): time for p, time in self._reader.event_times(numbered).items()}

    def _number(self, partition: str | int) -> int:
        return self._reader.number(partition)

    def _known(self, partition: str | int | None) -> int | None:
        if partition is None:
            return None
        number = self._number(partition)
        # Partitions are never removed, so the file is asked only about those not known yet.
        return number if number < self._writer.partitions else self._reader.state(number).partition


def _reopen(kind: type[Hub], path: str, fsync: bool, clocks: Clocks) -> Hub:
    return kind(path, fsync=fsync, clocks=clocks)


def event_data(given: Any) -> EventData:
    """What was meant."""
    if isinstance(given, EventData):
        return given
    if isinstance(given, str | bytes):
        return EventData(given)
    if not isinstance(given, Mapping):
        raise BadInput(
            f"this cannot be sent: {given!r}. Give text, bytes, a mapping (it becomes JSON), or "
            "EventData(body, properties), one or several"
        )
    try:
        return EventData(json.dumps(given, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"this is no JSON: {error}. Give EventData with a body of your own"
        ) from error


def _require_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise BadInput(f"partitions is {count}; a hub has 1 to {PARTITIONS_MAX}")


def _require_retention(age_s: float | None, stored_bytes: int | None) -> None:
    if age_s is not None and not age_s >= 0:
        raise BadInput(f"an age to keep of {age_s} s: give 0 or more")
    if stored_bytes is not None and stored_bytes < 0:
        raise BadInput(f"{stored_bytes} bytes to keep: give 0 or more")
