"""Reads the changes of a container's ranges, and finds positions in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from leasehold.core.change import Change
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.start import AtOffset, AtSequence, AtTime, Earliest, Latest, parse
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.arrow_events import to_datetime, to_unix_us
from leasehold.feeds.container_documents import decode
from leasehold.feeds.container_file import ContainerFile
from leasehold.feeds.container_ranges import SQL, Range, line_of, read_line, read_ranges
from leasehold.ports import Batch

READ_CHARS_MAX = 64 << 20
GAPS_MAX = 1000
NO_TOKEN = ("", "-1")
OTHER_NAMES = {"now": "latest", "beginning": "earliest"}
"""What a change feed's users call the ends of a feed."""
Mode = Literal["latest", "all"]
Gone = Literal["retention", "beyond end", "other feed"]


class ContainerReader:
    def __init__(self, file: ContainerFile, mode: Mode) -> None:
        self._file = file
        self._mode = mode
        self._identity = file.settings.identity[:16]
        self._gaps: dict[tuple[int, int], int] = {}
        """By range and LSN: up to where nothing lies from there on. What was written before a split
        may be long, and all of it in the other half."""

    def partitions(self) -> list[Partition]:
        """The ranges that are not split, with what they were split from."""
        ranges = self._file.ranges()
        return [
            Partition(
                id=str(range.id),
                ancestors=tuple(str(each.id) for each in reversed(line_of(ranges, range.id)[:-1])),
            )
            for range in ranges.values()
            if not range.is_split
        ]

    def read(self, range: int, position: Checkpoint, max_events: int) -> Batch:
        if max_events < 1:
            raise BadInput(f"max_events is {max_events}; at least 1 change must be allowed")
        if position.next_sequence < 0:
            raise BadInput(f"range {range}: LSN {position.next_sequence}; the first one is 1")
        with self._file.reading() as db:
            line = self._line(db, range)
            if reason := self._why_gone(line[-1], position):
                raise self._gone(db, line, position, reason)
            lsn = position.next_sequence
            changes = self._changes(db, line, self._gaps.get((range, lsn), lsn), max_events)
            if changes:
                return Batch(events=changes, next=self._at(changes[-1].lsn + 1))
            self._remember_gap(line, lsn, line[-1].next_lsn)
            children = db.execute(SQL["children"], (range,)).fetchall()
        # Past what there is to pass over: deletes and older states, which this mode does not have.
        end = self._at(line[-1].next_lsn)
        return Batch(next=end, children={str(child): end for (child,) in children})

    def locate(self, range: int, start: Any) -> Checkpoint:
        """The position that a start setting means right now."""
        try:
            wanted = parse(OTHER_NAMES.get(start, start) if isinstance(start, str) else start)
        except ValueError as error:
            raise BadInput(str(error)) from error
        with self._file.reading() as db:
            line = self._line(db, range)
            match wanted:
                case Earliest():
                    return self._first(db, line)
                case Latest():
                    return self._at(line[-1].next_lsn)
                case AtSequence(sequence=lsn):
                    return self._from(db, line, self._at(lsn))
                case AtOffset(offset=offset):
                    return self._from(db, line, self._at_offset(offset))
                case AtTime(time=time):
                    return self._first(db, line, self._lsn_at(db, to_unix_us(time)))

    def extents(self) -> list[Extent]:
        """Of split ranges, too: groups that have not read them to their end go on doing so."""
        with self._file.reading() as db:
            ranges = read_ranges(db)
            return [
                Extent(
                    partition=str(range.id),
                    first=self._first(db, line_of(ranges, range.id)).next_sequence,
                    end=range.next_lsn,
                    last_enqueued_at=None if range.last_us is None else range.last_us / 1e6,
                )
                for range in ranges.values()
            ]

    def event_times(self, positions: Mapping[int, Checkpoint]) -> dict[int, float | PositionGone]:
        times: dict[int, float | PositionGone] = {}
        with self._file.reading() as db:
            for range, position in positions.items():
                line = self._line(db, range)
                if reason := self._why_gone(line[-1], position):
                    times[range] = self._gone(db, line, position, reason)
                elif found := self._next(db, line, position.next_sequence):
                    times[range] = found[1] / 1e6
        return times

    def remaining(self, positions: Mapping[int, Checkpoint]) -> dict[int, int]:
        """How many changes there are from these positions on. A position that is none of this
        container's has the whole backlog before it."""
        counts = {}
        with self._file.reading() as db:
            for range, position in positions.items():
                line = self._line(db, range)
                reason = self._why_gone(line[-1], position)
                lsn = 0 if reason in ("beyond end", "other feed") else position.next_sequence
                wanted = self._wanted(line[-1], lsn)
                counts[range] = sum(
                    db.execute(SQL[f"{self._mode}_count"], wanted | {"range": each.id}).fetchone()[
                        0
                    ]
                    for each in line
                    if each.next_lsn > lsn
                )
        return counts

    def _line(self, db: sqlite3.Connection, range: int) -> list[Range]:
        line = read_line(db, range)
        if not line:
            raise self._file.unknown(range)
        return line

    def _changes(
        self, db: sqlite3.Connection, line: Sequence[Range], lsn: int, limit: int
    ) -> list[Change]:
        """From the oldest ancestor to the range itself: that is the order of LSNs."""
        partition, sql = str(line[-1].id), SQL[f"{self._mode}_read"]
        found: list[Change] = []
        chars = 0
        for each in line:
            if each.next_lsn <= lsn:
                continue
            wanted = self._wanted(line[-1], lsn) | {"range": each.id, "limit": limit - len(found)}
            with closing(db.execute(sql, wanted)) as rows:
                for row in rows:
                    found.append(self._change(partition, row))
                    chars += len(row[5] or "") + len(row[6] or "")
                    if chars >= READ_CHARS_MAX:
                        return found
            if len(found) == limit:
                break
        return found

    def _change(self, partition: str, row: Sequence[Any]) -> Change:
        lsn, operation, expired, time_us, key, body, previous = row
        return Change(
            None if body is None else decode(body),
            operation,
            lsn,
            f"{self._identity}-{lsn}",
            to_datetime(time_us),
            partition,
            str(key),
            None if previous is None else decode(previous),
            bool(expired),
        )

    def _next(
        self, db: sqlite3.Connection, line: Sequence[Range], lsn: int
    ) -> tuple[int, int] | None:
        """LSN and time of the first change from an LSN on."""
        start = self._gaps.get((line[-1].id, lsn), lsn)
        wanted, sql = self._wanted(line[-1], start), SQL[f"{self._mode}_next"]
        for each in line:
            if each.next_lsn > start:
                row = db.execute(sql, wanted | {"range": each.id}).fetchone()
                if row is not None:
                    self._remember_gap(line, lsn, row[0])
                    return row[0], row[1]
        self._remember_gap(line, lsn, line[-1].next_lsn)
        return None

    def _wanted(self, range: Range, lsn: int) -> dict[str, int]:
        wanted = {"lsn": lsn, "low": range.low, "high": range.high}
        return wanted | {"now_us": self._file.now_us()} if self._mode == "latest" else wanted

    def _remember_gap(self, line: Sequence[Range], lsn: int, until: int) -> None:
        """Nothing comes into a gap: changes have ever higher LSNs."""
        if len(line) > 1 and lsn < until:
            if len(self._gaps) >= GAPS_MAX:
                self._gaps.clear()
            self._gaps[line[-1].id, lsn] = until

    def _first(self, db: sqlite3.Connection, line: Sequence[Range], lsn: int = 0) -> Checkpoint:
        found = self._next(db, line, lsn)
        return self._at(line[-1].next_lsn if found is None else found[0])

    def _from(
        self, db: sqlite3.Connection, line: Sequence[Range], position: Checkpoint
    ) -> Checkpoint:
        if reason := self._why_gone(line[-1], position):
            raise self._gone(db, line, position, reason)
        return self._first(db, line, position.next_sequence)

    def _lsn_at(self, db: sqlite3.Connection, time_us: int) -> int:
        """The lowest LSN from which on nothing is older; times never fall as LSNs rise."""
        low, high = 0, int(db.execute(SQL["head"]).fetchone()[0])
        while low < high:
            middle = (low + high) // 2
            row = db.execute(SQL[f"{self._mode}_time"], (middle,)).fetchone()
            if row is None or row[1] >= time_us:
                high = middle
            else:
                low = row[0] + 1
        return low

    def _at(self, lsn: int) -> Checkpoint:
        """The token says which container, and the last LSN that lies before the position."""
        lsn = max(lsn, 1)
        return Checkpoint(next_sequence=lsn, token=f"{self._identity}-{lsn - 1}")

    def _at_offset(self, offset: str) -> Checkpoint:
        identity, _, lsn = offset.rpartition("-")
        if not (identity and lsn.isascii() and lsn.isdigit() and len(lsn) < 19):
            raise BadInput(f"offset {offset!r}: this container's look like {self._identity}-41")
        place = max(int(lsn), 1)
        return Checkpoint(next_sequence=place, token=f"{identity}-{place - 1}")

    def _why_gone(self, range: Range, position: Checkpoint) -> Gone | None:
        lsn, token = position.next_sequence, position.token
        if token not in NO_TOKEN and token != self._at(lsn).token:
            return "other feed"
        if lsn > range.next_lsn:
            return "beyond end"
        return "retention" if self._mode == "all" and lsn < range.kept_from else None

    def _gone(
        self, db: sqlite3.Connection, line: Sequence[Range], position: Checkpoint, reason: Gone
    ) -> PositionGone:
        range = line[-1]
        earliest, latest = self._first(db, line), self._at(range.next_lsn)
        text = {
            "retention": f"is older than what is kept: changes from {earliest.next_sequence} on",
            "beyond end": f"is beyond the end, {range.next_lsn}; was the container made anew?",
            "other feed": f"with token {position.token!r} is a position of another container",
        }[reason]
        return PositionGone(
            f"{self._file.path}, range {range.id}: LSN {position.next_sequence} {text}",
            partition=str(range.id),
            position=position,
            reason=reason,
            earliest=earliest,
            latest=latest,
        )
