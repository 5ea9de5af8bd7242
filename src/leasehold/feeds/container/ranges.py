"""The ranges that a container's key space is cut into, and how one becomes two."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from leasehold.errors import BadInput
from leasehold.feeds.container.documents import KEY_SPACE
from leasehold.local.sql import load_queries

SQL = load_queries(__package__)


class KeyRange(NamedTuple):
    """One row of ``ranges``. Bounds are inclusive."""

    id: int
    parent: int | None
    low: int
    high: int
    next_lsn: int
    """Above every change in it."""
    last_us: int | None
    documents: int
    kept_from: int
    """Changes below this LSN were removed by retention."""
    is_split: bool


class Layout(NamedTuple):
    """Which range has which keys, as of one version of the container's layout."""

    version: int
    lows: Sequence[int]
    ids: Sequence[int]

    def leaf(self, hash: int) -> int:
        return self.ids[bisect_right(self.lows, hash) - 1]


def read_layout(db: sqlite3.Connection, version: int) -> Layout:
    rows = db.execute(SQL["leaves"]).fetchall()
    return Layout(version, [low for low, _ in rows], [id for _, id in rows])


def read_ranges(db: sqlite3.Connection) -> dict[int, KeyRange]:
    return {row[0]: KeyRange._make(row) for row in db.execute(SQL["ranges"])}


def read_line(db: sqlite3.Connection, id: int) -> list[KeyRange]:
    """A range after all its ancestors, the oldest first; empty if there is no such range."""
    return [KeyRange._make(row) for row in db.execute(SQL["line"], (id,))]


def line_of(ranges: dict[int, KeyRange], id: int) -> list[KeyRange]:
    """The same from what was read before."""
    line = [ranges[id]]
    while (parent := line[-1].parent) is not None:
        line.append(ranges[parent])
    return line[::-1]


def add_first_ranges(db: sqlite3.Connection, count: int) -> None:
    bounds = [KEY_SPACE * place // count for place in range(count + 1)]
    for low, after in pairwise(bounds):
        new = {"parent": None, "low": low, "high": after - 1, "next_lsn": 1, "last_us": None}
        db.execute(SQL["add_range"], new | {"documents": 0, "kept_from": 0, "split_above": None})


class Cut(NamedTuple):
    at: int
    """The first hash of the upper half."""
    below: int
    """How many documents the lower half has."""


def split(db: sqlite3.Connection, parent: KeyRange, cut: Cut) -> tuple[int, int]:
    """Close a range and open two in its place. No document moves."""
    ids = []
    for low, high, documents in (
        (parent.low, cut.at - 1, cut.below),
        (cut.at, parent.high, parent.documents - cut.below),
    ):
        child = parent._replace(parent=parent.id, low=low, high=high, documents=documents)
        new = child._asdict() | {"split_above": None}
        ids.append(int(db.execute(SQL["add_range"], new).fetchone()[0]))
    db.execute(SQL["close_range"], (parent.id,))
    db.execute(SQL["new_layout"])
    return ids[0], ids[1]


def cut_at(db: sqlite3.Connection, range: KeyRange, at: int | None) -> Cut:
    """Where an operator wants it; left to us: in the middle of the documents, or of the keys."""
    if range.is_split:
        raise BadInput(f"range {range.id} was split already")
    if range.low == range.high:
        raise BadInput(f"range {range.id} holds a single hash and cannot be split")
    if at is None:
        if even := even_cut(db, range):
            return even
        at = (range.low + range.high) // 2 + 1
    if not range.low < at <= range.high:
        raise BadInput(
            f"range {range.id} holds {range.low:08x} to {range.high:08x}; it cannot be split at "
            f"{at:08x}"
        )
    return Cut(at, db.execute(SQL["count_between"], (range.low, at - 1)).fetchone()[0])


def even_cut(db: sqlite3.Connection, range: KeyRange) -> Cut | None:
    """Where both halves have about as many documents. None: there is no such place, because there
    are no documents or all of them have one hash. Walks through half of an index."""
    if range.documents < 2:
        return None
    middle = range.documents // 2
    hash, key, id = db.execute(SQL["nth"], (range.low, range.high, middle)).fetchone()
    same = {"hash": hash, "key": key, "id": id}
    count, before = db.execute(SQL["count_same_hash"], same).fetchone()
    # The documents of one hash stay together, with those below it or with those above.
    below = Cut(hash, middle - before)
    above = Cut(hash + 1, middle - before + count)
    best = min(below, above, key=lambda cut: abs(2 * cut.below - range.documents))
    return best if 0 < best.below < range.documents else None
