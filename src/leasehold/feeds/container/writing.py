"""One write transaction of a container: documents in, changes out, ranges kept up to date."""

from __future__ import annotations

import sqlite3
from math import isinf
from typing import Any, NamedTuple

from leasehold.feeds.container.documents import Prepared, StoredKey
from leasehold.feeds.container.ranges import (
    SQL,
    KeyRange,
    Layout,
    cut_at,
    even_cut,
    line_of,
    read_line,
    read_ranges,
    split,
)
from leasehold.local.own_clock import Now


class Stored(NamedTuple):
    """A document as it is in the file."""

    lsn: int
    hash: int
    key: StoredKey
    expires_us: int | None
    body: str


class Writing:
    def __init__(
        self,
        db: sqlite3.Connection,
        layout: Layout,
        *,
        identity: str,
        next_lsn: int,
        now: Now,
        mark: str,
        begins: bool,
        keep_versions: bool,
        split_documents: int | None,
    ) -> None:
        """``begins``: what is written here is the first of the generation with this mark."""
        self._now = now
        self._mark, self._begins = mark, begins
        self._db = db
        self._layout = layout
        self._identity = identity
        self._first_lsn = self._next_lsn = next_lsn
        self._keep_versions = keep_versions
        self._split_documents = split_documents
        self._touched: dict[int, tuple[int, int]] = {}
        """By range: its last LSN, and by how many its documents have become more."""

    def find(self, hash: int, key: StoredKey, id: str) -> Stored | None:
        """The document; one whose time is over is removed instead of being found."""
        row = self._db.execute(SQL["find"], (hash, key, id)).fetchone()
        if row is None:
            return None
        stored = Stored._make(row)
        if stored.expires_us is not None and stored.expires_us <= self._now.own_us:
            self.remove(stored, expired=True)
            return None
        return stored

    def put(self, new: Prepared, old: Stored | None) -> dict[str, Any]:
        """Store a document in the place of its older self, if it has one."""
        lsn, range = self._next(new.hash, 0 if old else 1)
        etag = f"{self._identity[:8]}-{self._mark}-{lsn:x}"
        now_us, ts = self._now.wall_us, self._now.wall_us // 1_000_000
        body = new.with_system_fields(etag, ts, lsn)
        expires_us = None if new.ttl_s is None else self._now.own_us + int(new.ttl_s * 1e6)
        if old is None:
            row = (lsn, range, new.hash, new.key, new.id, now_us, expires_us, body)
            self._db.execute(SQL["add_document"], row)
        else:
            changed = (lsn, range, now_us, expires_us, body, old.lsn)
            self._db.execute(SQL["replace_document"], changed)
        self._log((lsn, range), new, "replace" if old else "insert", old)
        return {**new.fields, "_etag": etag, "_ts": ts, "_lsn": lsn}

    def remove(self, old: Stored, *, expired: bool = False) -> None:
        lsn, range = self._next(old.hash, -1)
        self._db.execute(SQL["remove_document"], (old.lsn,))
        self._log((lsn, range), old, "delete", old, expired=expired)

    def remove_expired(self, limit: int) -> int:
        """How many: ``limit`` means that there may be more."""
        rows = self._db.execute(SQL["expired"], (self._now.own_us, limit)).fetchall()
        for row in rows:
            self.remove(Stored._make(row), expired=True)
        return len(rows)

    def remove_changes(self, limit: int, *, age_s: float | None, before_lsn: int) -> int:
        """Forget the oldest changes of the log; the documents are not touched."""
        before_us = 0 if age_s is None or isinf(age_s) else self._now.own_us - int(age_s * 1e6)
        ranges, last, count = read_ranges(self._db), 0, 0
        kept_from: dict[int, int] = {}
        for lsn, hash, own_us in self._db.execute(SQL["oldest_changes"], (limit,)).fetchall():
            if own_us >= before_us and lsn >= before_lsn:
                break
            last, count = lsn, count + 1
            kept_from[self._layout.leaf(hash)] = lsn + 1
        self._db.execute(SQL["remove_changes"], (last,))
        for leaf, lsn in kept_from.items():
            # A change may lie in any ancestor, whose own readers must notice that it is gone.
            line = line_of(ranges, leaf)
            self._db.executemany(
                SQL["keep_from"], [(min(lsn, each.next_lsn), each.id) for each in line]
            )
        return count

    def split(self, id: int, at: int | None) -> tuple[int, int]:
        range = read_line(self._db, id)[-1]
        return split(self._db, range, cut_at(self._db, range, at))

    def finish(self) -> int:
        """The next LSN."""
        if self._next_lsn == self._first_lsn:
            return self._next_lsn
        if self._begins:
            self._db.execute(SQL["begin_generation"], (self._first_lsn, self._mark))
        self._db.execute(SQL["move_head"], (self._next_lsn, self._now.wall_us))
        full = []
        for range, (lsn, more) in self._touched.items():
            moved = (lsn + 1, self._now.wall_us, more, range)
            documents, above = self._db.execute(SQL["move_range"], moved).fetchone()
            limit = above or self._split_documents
            if limit is not None and documents > limit:
                full.append(range)
        while full:
            full += self._split_full(read_line(self._db, full.pop())[-1])
        return self._next_lsn

    def _split_full(self, range: KeyRange) -> list[int]:
        """Children that are too full as well."""
        limit = self._split_documents
        if limit is None or range.documents <= limit:
            return []
        cut = even_cut(self._db, range)
        if cut is None:  # a single key: look again when there are twice as many
            self._db.execute(SQL["split_later"], (2 * range.documents, range.id))
            return []
        return list(split(self._db, range, cut))

    def _next(self, hash: int, more: int) -> tuple[int, int]:
        lsn, range = self._next_lsn, self._layout.leaf(hash)
        self._next_lsn += 1
        self._touched[range] = (lsn, self._touched.get(range, (0, 0))[1] + more)
        return lsn, range

    def _log(
        self,
        place: tuple[int, int],
        document: Prepared | Stored,
        operation: str,
        old: Stored | None,
        *,
        expired: bool = False,
    ) -> None:
        if self._keep_versions:
            before = (None, None) if old is None else (old.lsn, old.body)
            what = (document.hash, document.key, operation, expired, *reversed(self._now))
            self._db.execute(SQL["add_change"], (*place, *what, *before))
