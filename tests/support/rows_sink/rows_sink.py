# rows_sink.py
"""Rows as JSON in a SQLite file, each event's effect exactly once."""

import json
import secrets
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import astuple, replace

from leasehold import SinkMark, SinkUnavailable
from leasehold.sinks import Fence, still_held, under_way, writer_of

TABLES = """
CREATE TABLE IF NOT EXISTS rows (writer, partition, first, "end", row);
CREATE TABLE IF NOT EXISTS marks (
    writer, partition, next_sequence, history, rewind, PRIMARY KEY (writer, partition)
);
"""
AFTER = 'WHERE (writer, partition) = (?, ?) AND "end" > ?'


class RowsSink:
    def __init__(self, url, *, key="partition"):
        """``key``: the column that names the partition of the feed."""
        self.url, self.key = url, key
        self._fence = Fence(url)

    def write(self, df, batch):
        writer = writer_of(batch.group, batch.identity)
        ranges, written = batch.ranges, False
        while not written:
            before = self.marks(writer)
            after = self._fence.check(batch, before, ranges)  # StaleBatch: some of it is there
            if not after:  # all of it is
                return
            rows = [(row[self.key], json.dumps(row)) for row in df.toArrow().to_pylist()]
            ranges = still_held(batch)  # leaves out what is lost; raises StaleBatch if all is
            held = {each.partition: each for each in ranges}

            def add(db, after=after, rows=rows, held=held):
                for partition, row in rows:
                    if partition in held:
                        place = held[partition]
                        db.execute(
                            "INSERT INTO rows VALUES (?, ?, ?, ?, ?)",
                            (writer, partition, place.first, place.end, row),
                        )
                return {partition: after[partition] for partition in held}

            written = self.commit(writer, {p: before.get(p) for p in held}, add)

    def rewinding(self, group, identity):
        return RowsRewind(self, writer_of(group, identity))

    def rows(self):
        """What a reader finds."""
        with self.database() as db:
            return [json.loads(row) for (row,) in db.execute("SELECT row FROM rows")]

    def marks(self, writer):
        with self.database() as db:
            return _marks(db, writer)

    def commit(self, writer, seen, change):
        """Make a change and write the marks that it returns, in one transaction; False, with
        nothing changed, if the marks are not as they were seen."""
        with self.database() as db:
            db.execute("BEGIN IMMEDIATE")
            now = _marks(db, writer)
            if any(now.get(partition) != mark for partition, mark in seen.items()):
                db.execute("ROLLBACK")
                return False
            for partition, mark in change(db).items():
                db.execute(
                    "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)",
                    (writer, partition, *astuple(mark)),
                )
            db.execute("COMMIT")
            return True

    @contextmanager
    def database(self):
        path = self.url.removeprefix("rows://")
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                db.executescript(TABLES)
                yield db
        except sqlite3.Error as error:
            raise SinkUnavailable(f"{self.url}: {error}") from error


class RowsRewind:
    def __init__(self, sink, writer):
        self._sink, self._writer = sink, writer
        self._number = secrets.randbits(62) + 1

    def marks(self):
        return self._sink.marks(self._writer)

    def begin_at(self, wanted):
        """A row that is made of events from both sides of a place cannot be cut."""
        return {
            p: min([at, *(first for (first,) in self._after(p, at))]) for p, at in wanted.items()
        }

    def rows_after(self, positions):
        return sum(len(self._after(partition, at)) for partition, at in positions.items())

    def begin(self, partitions):
        self._change(partitions, lambda db, marks: _numbered(marks, self._number))

    def finish(self, positions, histories):
        removed = self.rows_after(positions)

        def go_back(db, marks):
            if not under_way(self._number, marks, positions, self._writer):
                return {}  # done, by a commit whose answer was lost: what came since stays
            for partition, at in positions.items():
                place = (self._writer, partition, at)
                db.execute(
                    'DELETE FROM rows WHERE (writer, partition) = (?, ?) AND "end" > ?', place
                )
            return {
                partition: SinkMark(
                    next_sequence=at, history=histories.get(partition, 0), rewind=-self._number
                )
                for partition, at in positions.items()
            }

        self._change(positions, go_back)
        return removed

    def cancel(self, partitions):
        def let_go(db, marks):
            going = under_way(self._number, marks, partitions, self._writer)
            return _numbered(marks, -self._number) if going else {}

        self._change(partitions, let_go)

    def _change(self, partitions, change):
        changed = not partitions
        while not changed:
            marks = self.marks()
            seen = {partition: marks.get(partition) for partition in partitions}
            wanted = {partition: mark or SinkMark() for partition, mark in seen.items()}
            changed = self._sink.commit(
                self._writer, seen, lambda db, wanted=wanted: change(db, wanted)
            )

    def _after(self, partition, at):
        with self._sink.database() as db:
            place = (self._writer, partition, at)
            return db.execute(f"SELECT first FROM rows {AFTER}", place).fetchall()


def _numbered(marks, number):
    return {partition: replace(mark, rewind=number) for partition, mark in marks.items()}


def _marks(db, writer):
    query = "SELECT partition, next_sequence, history, rewind FROM marks WHERE writer = ?"
    return {
        partition: SinkMark(next_sequence=at, history=history, rewind=rewind)
        for partition, at, history, rewind in db.execute(query, (writer,))
    }
