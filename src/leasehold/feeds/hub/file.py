"""What the hub does with its file: append, read and remove rows, each in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from leasehold.feeds.hub.batches import BatchRow, Frame
from leasehold.feeds.hub.offsets import STEP, begin_generation, first_offset
from leasehold.local.own_clock import Clocks, keep, with_clock
from leasehold.local.sql import load_queries
from leasehold.local.sqlite import Connections, Kind, Mark, create_file, mark_of
from leasehold.ports import Appended

SQL = load_queries(__package__)
HUB = Kind(noun="hub", application_id=0x4C484842, format=2, queries=with_clock(SQL))
TRIM_ROWS = 256
"""Removed per transaction, so that trimming never keeps producers waiting for long."""


class HubSettings(NamedTuple):
    """What is fixed when a hub is made, except for retention and a growing number of partitions."""

    identity: str
    namespace: str
    name: str
    partitions: int
    batch_bytes_max: int
    retention_s: float | None
    retention_bytes: int | None
    created_us: int


class State(NamedTuple):
    """One partition's ends. ``first_offset`` is the offset of the event before the first one."""

    partition: int
    first_sequence: int
    next_sequence: int
    first_offset: int
    last_offset: int
    last_enqueued_us: int | None
    stored_bytes: int
    body_bytes: int


class RowPlace(NamedTuple):
    """Where the row that holds a sequence begins and ends."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    """The offset of the event before the first one."""
    last_offset: int
    counts_bytes: bool
    """As ``BatchRow`` has it."""
    enqueued_us: int


class RemovedEvents(NamedTuple):
    events: int = 0
    stored_bytes: int = 0


class HubFile:
    def __init__(self, path: Path, *, fsync: bool, clocks: Clocks) -> None:
        self.path = path
        self._clocks = clocks
        self._left: dict[int, int] = {}
        """By partition: the offset at which the last append of this object ended."""
        self._connections = Connections(path, HUB, fsync=fsync)
        self._reading = self._connections.reading
        self._writing = self._connections.writing
        self.close = self._connections.close

    @staticmethod
    def create(path: Path, settings: HubSettings) -> None:
        begin = {"first_offset": first_offset(settings.identity)}

        def fill(db: sqlite3.Connection) -> None:
            db.execute(SQL["add_hub"], settings._asdict() | begin)
            _add_partitions(db, settings.partitions)

        create_file(path, HUB, fill)

    def settings(self) -> HubSettings:
        with self._reading() as db:
            return HubSettings(*db.execute(SQL["settings"]).fetchone())

    def set_retention(self, retention_s: float | None, retention_bytes: int | None) -> None:
        with self._writing() as db:
            db.execute(SQL["set_retention"], (retention_s, retention_bytes))

    def count_partitions(self) -> int:
        with self._reading() as db:
            return _count_partitions(db)

    def raise_partitions(self, to: int) -> int:
        """How many there are now: never fewer than before."""
        with self._writing() as db:
            _add_partitions(db, to)
            return _count_partitions(db)

    def append(self, frames: Sequence[Frame], partitions: int) -> list[Appended] | None:
        """Store all frames or none. None: there are not ``partitions`` partitions any more, so
        that keys may belong elsewhere."""
        with self._writing() as db:
            if _count_partitions(db) != partitions:
                return None
            only = frames[0].partition if len(frames) == 1 else None
            found = db.execute(SQL["ends"]) if only is None else db.execute(SQL["end"], (only,))
            ends = {partition: end for partition, *end in found}
            now = keep(db, self._clocks())
            rows, appended, more = [], [], {frame.partition: [0, 0] for frame in frames}
            # A generation goes on only where nothing came in between, and no older file.
            left = {p: ends[p][1] for p in more if self._left.get(p) == ends[p][1]}
            for frame in frames:
                partition = frame.partition
                first, before, last_us = ends[partition]
                base = left.get(partition)
                base = begin_generation(before) if base is None else base
                end, end_offset = first + frame.events, base + frame.events * STEP
                # Time does not run back within a partition, whatever the clock does.
                at_us = max(now.wall_us, last_us or 0)
                place = (partition, first, end - 1, before, end_offset, at_us)
                what = (frame.columns, frame.message_bytes, frame.body_bytes, now.own_us)
                rows.append((*place, *what, frame.data))
                appended.append(Appended(str(partition), first, frame.events))
                ends[partition] = [end, end_offset, at_us]
                left[partition] = end_offset
                more[partition][0] += len(frame.data)
                more[partition][1] += frame.body_bytes
            db.executemany(SQL["add_batch"], rows)
            db.executemany(SQL["move_end"], [(*ends[p], *added, p) for p, added in more.items()])
        self._left |= left
        return appended

    def read(
        self, partition: int, sequence: int, known: int, max_events: int, max_bytes: int
    ) -> tuple[list[BatchRow], State | None]:
        """The rows from the one that holds ``sequence`` on, until there are enough events.

        ``known`` is the last offset of a row whose data the caller has. Where the file has no
        such sequence there are no rows, and the partition's state at the same moment instead (None:
        there is no such partition).
        """
        rows: list[BatchRow] = []
        total_bytes = 0
        wanted = {"partition": partition, "sequence": sequence, "known": known}
        with self._reading() as db:
            with closing(db.execute(SQL["read"], wanted)) as found:
                for values in found:
                    row = BatchRow._make(values)
                    if not rows and not row.first_sequence <= sequence <= row.last_sequence:
                        break
                    rows.append(row)
                    total_bytes += row.message_bytes
                    if row.last_sequence - sequence + 1 >= max_events or total_bytes >= max_bytes:
                        break
            return rows, None if rows else _state(db, partition)

    def state(self, partition: int) -> State | None:
        with self._reading() as db:
            return _state(db, partition)

    def states_since(self, mark: Mark | None) -> tuple[Mark, list[State] | None]:
        """All states, and the mark of this look. None: nothing was written since the other one."""
        with self._reading() as db:
            now = mark_of(db)
            return now, None if now == mark else _states(db)

    def states(self) -> list[State]:
        with self._reading() as db:
            return _states(db)

    def places(
        self, sequences: Mapping[int, int]
    ) -> dict[int, tuple[State | None, RowPlace | None]]:
        """By partition: its state, and the row that holds the sequence, if there is one."""
        found = {}
        with self._reading() as db:
            for partition, sequence in sequences.items():
                row = db.execute(SQL["place"], (partition, sequence)).fetchone()
                place = RowPlace._make(row) if row and sequence <= row[1] else None
                found[partition] = _state(db, partition), place
        return found

    def first_row(self, partition: int, wanted: Callable[[RowPlace], bool]) -> RowPlace | None:
        """The first row that is wanted, by bisection: none is up to some row, and all are from
        there on."""
        with self._reading() as db:
            state = _state(db, partition)
            low, high = (state.first_sequence, state.next_sequence) if state else (0, 0)
            result = None
            while low < high:
                place = RowPlace._make(
                    db.execute(SQL["place"], (partition, (low + high) // 2)).fetchone()
                )
                if wanted(place):
                    high, result = place.first_sequence, place
                else:
                    low = place.last_sequence + 1
            return result

    def own_us(self) -> int:
        """What the hub's own clock says."""
        with self._writing() as db:
            return keep(db, self._clocks()).own_us

    def remove_before(self, partition: int, *, own_us: int = 0, sequence: int = 0) -> RemovedEvents:
        """Remove the partition's rows that arrived before that time of the hub's own clock, or end
        before the sequence."""
        removed = RemovedEvents()
        while True:
            with self._writing() as db:
                rows = []
                for *row, us, last in db.execute(SQL["oldest_of"], (partition, TRIM_ROWS)):
                    if us >= own_us and last >= sequence:
                        break
                    rows.append(row)
                removed = _remove(db, rows, removed)
            if len(rows) < TRIM_ROWS:
                return removed

    def remove_beyond(self, stored_bytes: int) -> RemovedEvents:
        """Remove what was sent first, until no more than ``stored_bytes`` are left."""
        removed = RemovedEvents()
        while True:
            with self._writing() as db:
                excess = db.execute(SQL["stored_bytes"]).fetchone()[0] - stored_bytes
                rows = []
                for row in db.execute(SQL["oldest"], (TRIM_ROWS,)):
                    if excess <= 0:
                        break
                    rows.append(row)
                    excess -= row[3]
                removed = _remove(db, rows, removed)
            if excess <= 0 or not rows:
                return removed

    def shrink(self) -> None:
        """Give free pages back to the file system."""
        self._connections.shrink()

    def file_bytes(self) -> int:
        """What the hub takes up on disk, with the part that is not merged into the file yet."""
        parts = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal"))
        return sum(part.stat().st_size for part in parts if part.exists())


def _states(db: sqlite3.Connection) -> list[State]:
    return [State._make(row) for row in db.execute(SQL["state"], (0, 1 << 62))]


def _count_partitions(db: sqlite3.Connection) -> int:
    return int(db.execute(SQL["count_partitions"]).fetchone()[0])


def _add_partitions(db: sqlite3.Connection, to: int) -> None:
    db.executemany(SQL["add_partition"], [(n,) for n in range(_count_partitions(db), to)])
    db.execute(SQL["raise_partitions"], {"to": to})


def _state(db: sqlite3.Connection, partition: int) -> State | None:
    row = db.execute(SQL["state"], (partition, partition)).fetchone()
    return State._make(row) if row else None


def _remove(
    db: sqlite3.Connection, rows: Sequence[Sequence[Any]], before: RemovedEvents
) -> RemovedEvents:
    """Rows are (id, partition, events, stored bytes, bytes of bodies)."""
    db.executemany(SQL["remove"], [(row[0],) for row in rows])
    db.executemany(SQL["less_stored"], [(row[3], row[4], row[1]) for row in rows])
    return RemovedEvents(
        before.events + sum(row[2] for row in rows),
        before.stored_bytes + sum(row[3] for row in rows),
    )
