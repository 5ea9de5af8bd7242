"""Reads the changes of a container's ranges, and finds positions in them."""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from leasehold.core.change import Change, Mode
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
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
from leasehold.errors import BadInput, Gone, PositionGone
from leasehold.feeds.arrow_events import to_datetime, to_unix_us
from leasehold.feeds.container.documents import decode, key_text
from leasehold.feeds.container.file import ContainerFile
from leasehold.feeds.container.ranges import SQL, KeyRange, line_of, read_line, read_ranges
from leasehold.local.sqlite import Mark, mark_of
from leasehold.ports import Batch

READ_CHARS_MAX = 64 << 20
GAPS_MAX = 1000
NO_TOKEN = ("", "-1")
OTHER_NAMES = {"now": "latest", "beginning": "earliest"}
"""What a change feed's users call the ends of a feed."""
_OFFSET = re.compile(r"([0-9a-f]+)-(\d{1,18})(?:-([0-9a-f]{8}))?", re.ASCII)


class ContainerReader:
    def __init__(self, file: ContainerFile, mode: Mode) -> None:
        self._file = file
        self._mode = mode
        self._identity = file.settings.identity[:16]
        self._gaps: dict[tuple[int, int], int] = {}
        """By range and LSN: up to where nothing lies from there on. What was written before a split
        may be long, and all of it in the other half."""
        self._generation: str | None = None
        """That the gaps are of."""
        self._ends: tuple[Mark | None, dict[str, Checkpoint]] = (None, {})
        """As last seen."""

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

    def read(
        self,
        range: int,
        position: Checkpoint,
        max_events: int,
        hashes: tuple[int, int] | None = None,
    ) -> Batch:
        """``hashes``: the lowest and the highest that are wanted, if not all of the range."""
        if max_events < 1:
            raise BadInput(f"max_events is {max_events}; at least 1 change must be allowed")
        if position.next_sequence < 0:
            raise BadInput(f"range {range}: LSN {position.next_sequence}; the first one is 1")
        with self._reading() as db:
            line = self._line(db, range)
            if reason := self._why_gone(db, line[-1], position):
                raise self._gone(db, line, position, reason)
            lsn = position.next_sequence
            if hashes is not None:
                line[-1] = _narrowed(line[-1], *hashes)
            rows = self._rows(db, line, self._gaps.get((range, lsn), lsn), max_events)
            if rows:
                changes = self._changes(db, line, rows)
                after = Checkpoint(next_sequence=changes[-1].lsn + 1, token=changes[-1].offset)
                return Batch(events=changes, next=after, size_bytes=sum(map(_chars, rows)))
            if hashes is None:
                self._remember_gap(line, lsn, line[-1].next_lsn)
            children = db.execute(SQL["children"], (range,)).fetchall()
            # Past what there is to pass over: deletes and older states, which this mode does not
            # have.
            end = self._at(db, line[-1].next_lsn)
        return Batch(next=end, children={str(child): end for (child,) in children})

    def locate(self, range: int, start: Any) -> Checkpoint:
        """The position that a start setting means right now."""
        try:
            wanted = parse(OTHER_NAMES.get(start, start) if isinstance(start, str) else start)
        except ValueError as error:
            raise BadInput(str(error)) from error
        with self._reading() as db:
            line = self._line(db, range)
            match wanted:
                case Earliest():
                    return self._first(db, line)
                case Latest():
                    return self._at(db, line[-1].next_lsn)
                case AtSequence(sequence=lsn):
                    return self._from(db, line, self._at(db, lsn))
                case AtOffset(offset=offset):
                    return self._from(db, line, self._at_offset(db, line, offset))
                case AtTime(time=time):
                    return self._first(db, line, self._lsn_at(db, to_unix_us(time)))
                case StockLeases():
                    raise BadInput(NO_STOCK_LEASES)
                case Committed(group=group):
                    raise BadInput(NOTHING_COMMITTED.format(group=group))

    def extents(self) -> list[Extent]:
        """Of split ranges, too: groups that have not read them to their end go on doing so."""
        with self._reading() as db:
            ranges = read_ranges(db)
            return [
                Extent(
                    partition=str(range.id),
                    first=self._first_lsn(db, line_of(ranges, range.id)),
                    end=range.next_lsn,
                    last_enqueued_at=None if range.last_us is None else range.last_us / 1e6,
                )
                for range in ranges.values()
            ]

    def ends(self) -> Mapping[str, Checkpoint]:
        """The same object as before, while nothing was written."""
        mark, known = self._ends
        with self._reading() as db:
            now = mark_of(db)
            if now == mark:
                return known
            ends = {r.id: max(r.next_lsn, 1) for r in read_ranges(db).values() if not r.is_split}
            name = self._namer(db, min(ends.values()) - 1, max(ends.values()) - 1)
        known = {
            str(id): Checkpoint(next_sequence=lsn, token=name(lsn - 1)) for id, lsn in ends.items()
        }
        self._ends = now, known
        return known

    def tokens(self, lsns: Mapping[int, int]) -> dict[int, str]:
        if not lsns:
            return {}
        before = {range: max(lsn, 1) - 1 for range, lsn in lsns.items()}
        with self._reading() as db:
            name = self._namer(db, min(before.values()), max(before.values()))
        return {range: name(lsn) for range, lsn in before.items()}

    def event_times(self, positions: Mapping[int, Checkpoint]) -> dict[int, float | PositionGone]:
        times: dict[int, float | PositionGone] = {}
        with self._reading() as db:
            for range, position in positions.items():
                line = self._line(db, range)
                if reason := self._why_gone(db, line[-1], position):
                    times[range] = self._gone(db, line, position, reason)
                elif found := self._next(db, line, position.next_sequence):
                    times[range] = found[1] / 1e6
        return times

    def remaining(self, positions: Mapping[int, Checkpoint]) -> dict[int, int]:
        """How many changes there are from these positions on. A position that is none of this
        container's has before it what a reader that is sent back goes through."""
        counts = {}
        with self._reading() as db:
            for range, position in positions.items():
                line, lsn = self._line(db, range), position.next_sequence
                if self._why_gone(db, line[-1], position) not in (None, "retention"):
                    shared = self._shared(db, line[-1], position)
                    lsn = 0 if shared is None else shared.next_sequence
                wanted = self._wanted(db, line[-1], lsn)
                counts[range] = sum(
                    db.execute(SQL[f"{self._mode}_count"], wanted | {"range": each.id}).fetchone()[
                        0
                    ]
                    for each in line
                    if each.next_lsn > lsn
                )
        return counts

    def _line(self, db: sqlite3.Connection, range: int) -> list[KeyRange]:
        line = read_line(db, range)
        if not line:
            raise self._file.unknown(range)
        return line

    def _changes(
        self, db: sqlite3.Connection, line: Sequence[KeyRange], rows: Sequence[Sequence[Any]]
    ) -> list[Change]:
        partition, name = str(line[-1].id), self._namer(db, rows[0][0], rows[-1][0])
        return [_change(partition, name(row[0]), row) for row in rows]

    def _rows(
        self, db: sqlite3.Connection, line: Sequence[KeyRange], lsn: int, limit: int
    ) -> list[Sequence[Any]]:
        """From the oldest ancestor to the range itself: that is the order of LSNs."""
        sql = SQL[f"{self._mode}_read"]
        found: list[Sequence[Any]] = []
        chars = 0
        for each in line:
            if each.next_lsn <= lsn:
                continue
            wanted = self._wanted(db, line[-1], lsn)
            wanted |= {"range": each.id, "limit": limit - len(found)}
            with closing(db.execute(sql, wanted)) as rows:
                for row in rows:
                    found.append(row)
                    chars += _chars(row)
                    if chars >= READ_CHARS_MAX:
                        return found
            if len(found) == limit:
                break
        return found

    def _namer(self, db: sqlite3.Connection, first: int, last: int) -> Callable[[int], str]:
        """Makes the offsets of changes between two LSNs: the container, the LSN, and the mark of
        its generation, which tells it from another change that had the same LSN before an older
        copy of the file was restored."""
        known = db.execute(SQL["marks"], {"first": first, "last": last}).fetchall()
        # What was written in format 1 has no mark.
        begins, ends = [begin for begin, _ in known], ["", *(f"-{mark}" for _, mark in known)]
        identity = self._identity
        return lambda lsn: f"{identity}-{lsn}{ends[bisect_right(begins, lsn)]}"

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._file.reading() as db:
            (generation,) = db.execute(SQL["newest_mark"]).fetchone() or (None,)
            if generation != self._generation:
                # LSNs may have been assigned again.
                self._gaps, self._generation = {}, generation
            yield db

    def _next(
        self, db: sqlite3.Connection, line: Sequence[KeyRange], lsn: int
    ) -> tuple[int, int] | None:
        """LSN and time of the first change from an LSN on."""
        start = self._gaps.get((line[-1].id, lsn), lsn)
        wanted, sql = self._wanted(db, line[-1], start), SQL[f"{self._mode}_next"]
        for each in line:
            if each.next_lsn > start:
                row = db.execute(sql, wanted | {"range": each.id}).fetchone()
                if row is not None:
                    self._remember_gap(line, lsn, row[0])
                    return row[0], row[1]
        self._remember_gap(line, lsn, line[-1].next_lsn)
        return None

    def _wanted(self, db: sqlite3.Connection, range: KeyRange, lsn: int) -> dict[str, int]:
        wanted = {"lsn": lsn, "low": range.low, "high": range.high}
        return wanted | {"own_us": self._file.own_us(db)} if self._mode == "latest" else wanted

    def _remember_gap(self, line: Sequence[KeyRange], lsn: int, until: int) -> None:
        """Nothing comes into a gap: changes have ever higher LSNs."""
        if len(line) > 1 and lsn < until:
            if len(self._gaps) >= GAPS_MAX:
                self._gaps.clear()
            self._gaps[line[-1].id, lsn] = until

    def _first(self, db: sqlite3.Connection, line: Sequence[KeyRange], lsn: int = 0) -> Checkpoint:
        return self._at(db, self._first_lsn(db, line, lsn))

    def _first_lsn(self, db: sqlite3.Connection, line: Sequence[KeyRange], lsn: int = 0) -> int:
        found = self._next(db, line, lsn)
        return max(line[-1].next_lsn if found is None else found[0], 1)

    def _from(
        self, db: sqlite3.Connection, line: Sequence[KeyRange], position: Checkpoint
    ) -> Checkpoint:
        if reason := self._why_gone(db, line[-1], position):
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

    def _at(self, db: sqlite3.Connection, lsn: int) -> Checkpoint:
        """The token is the offset that a change right before the position has."""
        lsn = max(lsn, 1)
        return Checkpoint(next_sequence=lsn, token=self._namer(db, lsn - 1, lsn - 1)(lsn - 1))

    def _at_offset(
        self, db: sqlite3.Connection, line: Sequence[KeyRange], offset: str
    ) -> Checkpoint:
        parts = _OFFSET.fullmatch(offset)
        if parts is None:
            raise BadInput(f"offset {offset!r}: this container's look like {self._identity}-41")
        lsn = max(int(parts[2]), 1)
        behind = Checkpoint(next_sequence=lsn + 1, token=offset)
        if reason := self._other(db, behind):
            raise self._gone(db, line, behind, reason)
        return self._at(db, lsn)

    def _other(self, db: sqlite3.Connection, position: Checkpoint) -> Gone | None:
        """Whether the token is one of this container's, as it is now."""
        token, known = position.token, self._at(db, position.next_sequence).token
        if token in NO_TOKEN or token == known:
            return None
        ours = token.rpartition("-")[0].startswith(self._identity) and _OFFSET.fullmatch(token)
        same_lsn = ours and int(ours[2]) == max(position.next_sequence, 1) - 1
        return "rolled back" if same_lsn else "other feed"

    def _why_gone(
        self, db: sqlite3.Connection, range: KeyRange, position: Checkpoint
    ) -> Gone | None:
        lsn, other = position.next_sequence, self._other(db, position)
        if lsn > range.next_lsn and other != "other feed":
            return "beyond end"
        if other is not None:
            return other
        return "retention" if self._mode == "all" and lsn < range.kept_from else None

    def _shared(
        self, db: sqlite3.Connection, range: KeyRange, position: Checkpoint
    ) -> Checkpoint | None:
        """Where the generation that the position is of ends in this file, if it has it."""
        parts = _OFFSET.fullmatch(position.token)
        if parts is None or parts[1] != self._identity or parts[3] is None:
            return None
        row = db.execute(SQL["end_of_generation"], (parts[3],)).fetchone()
        return None if row is None else self._at(db, min(row[0], range.next_lsn))

    def _gone(
        self, db: sqlite3.Connection, line: Sequence[KeyRange], position: Checkpoint, reason: Gone
    ) -> PositionGone:
        range = line[-1]
        earliest, latest = self._first(db, line), self._at(db, range.next_lsn)
        shared = None if reason == "retention" else self._shared(db, range, position)
        text = {
            "retention": f"is older than what is kept: changes from {earliest.next_sequence} on",
            "beyond end": f"is beyond the end, {range.next_lsn}; was the container recreated, or "
            "an older copy restored?",
            "other feed": f"with token {position.token!r} is a position of another container",
            "rolled back": "lies in changes that this container has lost: an older copy was "
            "restored, or power failed",
        }[reason]
        if shared is not None:
            text += f"; up to LSN {shared.next_sequence} it is what it was"
        return PositionGone(
            f"{self._file.path}, range {range.id}: LSN {position.next_sequence} {text}",
            partition=str(range.id),
            position=position,
            reason=reason,
            earliest=earliest,
            latest=latest,
            shared=shared,
        )


def history_of(token: str) -> int:
    """The mark of the generation that a token is of, as a number."""
    parts = _OFFSET.fullmatch(token)
    return int(parts[3], 16) if parts is not None and parts[3] else 0


def in_history(token: str, mark: int) -> str:
    """The token of the same position in the generation with this mark."""
    identity, lsn = token.split("-")[:2]
    return f"{identity}-{lsn}-{mark:08x}"


def _narrowed(range: KeyRange, low: int, high: int) -> KeyRange:
    return range._replace(low=max(range.low, low), high=min(range.high, high))


def _chars(row: Sequence[Any]) -> int:
    """Of a change's documents, the new and the former one."""
    return len(row[5] or "") + len(row[6] or "")


def _change(partition: str, offset: str, row: Sequence[Any]) -> Change:
    lsn, operation, expired, time_us, key, body, previous = row
    return Change(
        None if body is None else decode(body),
        operation,
        lsn,
        offset,
        to_datetime(time_us),
        partition,
        key_text(key),
        None if previous is None else decode(previous),
        bool(expired),
    )
