"""A folder of text files as a feed: a file is a partition, a line is an event."""

import base64
import secrets
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from leasehold import BadInput, Checkpoint, Event, Partition, PositionGone
from leasehold.core.lag import Extent
from leasehold.core.start import (
    NO_STOCK_LEASES,
    NOTHING_COMMITTED,
    AtOffset,
    AtSequence,
    AtTime,
    Committed,
    Earliest,
    Latest,
    StockLeases,
    parse,
)
from leasehold.feeds.arrow_events import EVENT_COLUMNS, EVENT_SCHEMA, EventChunk
from leasehold.ports import Batch

CHUNK_EVENTS = 10_000


class LinesFeed:
    unit = "event"
    columns = EVENT_COLUMNS
    has_gaps = True  # an event's sequence is where its line begins

    def __init__(self, folder):
        self._folder = Path(folder)
        try:
            self.identity = (self._folder / "identity").read_text()
        except OSError as error:
            raise BadInput(f"there is no feed of lines in {folder}: {error}") from error
        self.namespace, self.name = "files", self._folder.name
        self.address = f"lines://{self._folder.resolve()}"
        self.requests = Counter()
        self._closed = False

    @classmethod
    def from_url(cls, url):
        return cls(url.partition("://")[2])

    @classmethod
    def create(cls, folder, partitions):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "identity").write_text(secrets.token_hex(8))
        for number in range(partitions):
            (Path(folder) / f"{number}.lines").touch()
        return cls(folder)

    def send_lines(self, partition, bodies):
        now_us = time.time_ns() // 1000
        lines = [b"%d %s\n" % (now_us, base64.b64encode(body)) for body in bodies]
        with self._path(partition).open("ab") as file:
            file.write(b"".join(lines))

    # What every feed does

    async def partitions(self):
        self.requests["partitions"] += 1
        return [Partition(id=path.stem) for path in sorted(self._open().glob("*.lines"))]

    async def locate(self, partition, start):
        self.requests["locate"] += 1
        try:
            wanted = parse(start)
        except ValueError as error:
            raise BadInput(str(error)) from error
        end = self._end(partition)
        match wanted:
            case Earliest():
                return _position(0)
            case Latest():
                return _position(end)
            case AtSequence(sequence=sequence):
                return self._require(partition, _position(sequence), end)
            case AtOffset(offset=offset):
                if not offset.isdigit():
                    raise BadInput(f"offset {offset!r}: the offsets of lines are whole numbers")
                return self._require(partition, _position(int(offset)), end)
            case AtTime(time=wanted_time):
                for event in self._events(partition, 0, end):
                    if event.enqueued_at >= wanted_time:
                        return _position(event.sequence)
                return _position(end)
            case Committed(group=group):
                raise BadInput(NOTHING_COMMITTED.format(group=group))
            case StockLeases():
                raise BadInput(NO_STOCK_LEASES)

    async def read(self, partition, position, max_events):
        self.requests["read"] += 1
        if max_events < 1:
            raise BadInput(f"max_events is {max_events}; at least 1 event must be allowed")
        end = self._end(partition)
        self._require(partition, position, end)
        events = []
        for event in self._events(partition, position.next_sequence, end):
            events.append(event)
            if len(events) == max_events:
                break
        after = _position(events[-1].sequence + 1) if events else _position(end)
        size_bytes = sum(len(event.body) for event in events)
        return Batch(events=events, next=after, size_bytes=size_bytes)

    async def extents(self):
        self.requests["extents"] += 1
        return [self._extent(partition.id) for partition in await self.partitions()]

    async def event_times(self, positions):
        self.requests["event_times"] += 1
        times = {}
        for partition, position in positions.items():
            end = self._end(partition)
            try:
                self._require(partition, position, end)
            except PositionGone as gone:
                times[partition] = gone
                continue
            for event in self._events(partition, position.next_sequence, end):
                times[partition] = event.enqueued_at.timestamp()
                break
        return times

    def close(self):
        self._closed = True

    # What Spark needs besides

    def read_columns(self, ranges):
        self.requests["read"] += 1
        for wanted in ranges:
            events = list(self._events(wanted.partition, wanted.first, wanted.end))
            for first in range(0, len(events), CHUNK_EVENTS):
                some = events[first : first + CHUNK_EVENTS]
                yield EventChunk(_as_arrow(some), wanted.partition)

    def __repr__(self):
        return f"LinesFeed({self._folder})"

    def _open(self):
        if self._closed:
            raise BadInput(f"{self!r} was closed")
        return self._folder

    def _path(self, partition):
        path = self._open() / f"{partition}.lines"
        if not path.exists():
            raise BadInput(f"{self!r} has no partition {partition!r}")
        return path

    def _end(self, partition):
        """Behind the first byte of the last whole line: no event has that sequence yet."""
        data = self._path(partition).read_bytes()
        last = data.rfind(b"\n")
        return 0 if last < 0 else data.rfind(b"\n", 0, last) + 2

    def _extent(self, partition):
        end = self._end(partition)
        newest = None
        for event in self._events(partition, max(0, end - 1), end):
            newest = event.enqueued_at.timestamp()
        return Extent(partition=partition, first=0, end=end, last_enqueued_at=newest)

    def _events(self, partition, first, end):
        """The lines that begin from ``first`` on and before ``end``."""
        data = self._path(partition).read_bytes()
        at = data.find(b"\n", first - 1) + 1 if first else 0
        if first and not at:
            return
        while at < end and (stop := data.find(b"\n", at)) >= 0:
            unix_us, body = data[at:stop].split(b" ")
            time = datetime.fromtimestamp(int(unix_us) / 1e6, UTC)
            yield Event(base64.b64decode(body), at, str(at), time, partition)
            at = stop + 1

    def _require(self, partition, position, end):
        if position.next_sequence <= end:
            return position
        raise PositionGone(
            f"{self!r}, partition {partition}: {position.next_sequence} is beyond the end, {end}",
            partition=partition,
            position=position,
            reason="beyond end",
            earliest=_position(0),
            latest=_position(end),
        )


def _position(sequence):
    return Checkpoint(next_sequence=sequence, token=str(sequence - 1))


def _as_arrow(events):
    columns = {
        "body": [event.body for event in events],
        "sequence": [event.sequence for event in events],
        "offset": [event.sequence for event in events],
        "enqueued_at": [event.enqueued_at for event in events],
        "partition_key": [None] * len(events),
        "properties": [None] * len(events),
    }
    return pa.RecordBatch.from_pydict(columns, schema=EVENT_SCHEMA)
