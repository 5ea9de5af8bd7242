"""The ranges that a container's key space is cut into, and how one becomes two."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from leasehold.errors import BadInput
from leasehold.feeds.container_documents import KEY_SPACE
from leasehold.feeds.sqlite_file import load_queries

SQL = load_queries("container.sql")


class Range(NamedTuple):
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


def read_ranges(db: sqlite3.Connection) -> dict[int, Range]:
    return {row[0]: Range._make(row) for row in db.execute(SQL["ranges"])}


def read_line(db: sqlite3.Connection, id: int) -> list[Range]:
    """A range after all its ancestors, the oldest first; empty if there is no such range."""
    return [Range._make(row) for row in db.execute(SQL["line"], (id,))]


def line_of(ranges: dict[int, Range], id: int) -> list[Range]:
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


def split(db: sqlite3.Connection, parent: Range, at: int) -> tuple[int, int]:
    """Close a range and open two in its place: keys below ``at``, and the others.

    No document moves. The documents of one half are counted, in an index.
    """
    if parent.is_split:
        raise BadInput(f"range {parent.id} was split already")
    if not parent.low < at <= parent.high:
        raise BadInput(
            f"range {parent.id} holds {parent.low:08x} to {parent.high:08x}; it cannot be split at "
            f"{at:08x}"
        )
    left = db.execute(SQL["count_between"], (parent.low, at - 1)).fetchone()[0]
    ids = []
    for low, high, documents in (
        (parent.low, at - 1, left),
        (at, parent.high, parent.documents - left),
    ):
        child = parent._replace(parent=parent.id, low=low, high=high, documents=documents)
        new = child._asdict() | {"split_above": None}
        ids.append(int(db.execute(SQL["add_range"], new).fetchone()[0]))
    db.execute(SQL["close_range"], (parent.id,))
    db.execute(SQL["new_layout"])
    return ids[0], ids[1]


def even_cut(db: sqlite3.Connection, range: Range) -> int | None:
    """Where to split so that both halves have about as many documents. None: there is no such
    place, because there are no documents or all of them have one key."""
    if range.documents < 2:
        return None
    middle = range.documents // 2
    (hash,) = db.execute(SQL["median"], (range.low, range.high, middle)).fetchone()
    (below,) = db.execute(SQL["count_between"], (range.low, hash - 1)).fetchone()
    (up_to,) = db.execute(SQL["count_between"], (range.low, hash)).fetchone()
    # The documents of one hash stay together, with those below it or with those above.
    left, at = min(
        (below, hash), (up_to, hash + 1), key=lambda cut: abs(2 * cut[0] - range.documents)
    )
    return at if 0 < left < range.documents else None


def middle(range: Range) -> int:
    """Where to split without regard to documents."""
    if range.low == range.high:
        raise BadInput(f"range {range.id} holds a single hash and cannot be split")
    return (range.low + range.high) // 2 + 1
