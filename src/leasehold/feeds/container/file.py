"""A container's file: its settings, and its documents by key."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from leasehold.errors import BadInput
from leasehold.feeds.container.documents import (
    TTL_S_MAX,
    Hashing,
    Key,
    StoredKey,
    decode,
    hash_of,
    stored_key,
)
from leasehold.feeds.container.ranges import (
    SQL,
    KeyRange,
    Layout,
    add_first_ranges,
    read_layout,
    read_ranges,
)
from leasehold.feeds.container.writing import Writing
from leasehold.feeds.effective_keys import KeyValue
from leasehold.local.own_clock import Clocks, Now, keep, look, with_clock
from leasehold.local.sqlite import Connections, Kind, create_file

CONTAINER = Kind(noun="container", application_id=0x4C484843, format=3, queries=with_clock(SQL))


class ContainerSettings(NamedTuple):
    """What is fixed when a container is made, but for the time to live."""

    identity: str
    namespace: str
    name: str
    key_path: str
    document_bytes_max: int
    ttl_s: float | None
    versions_s: float | None
    split_documents: int | None
    created_us: int
    hashing: Hashing


class Place(NamedTuple):
    """Where a document is in the order of all."""

    hash: int
    key: StoredKey
    id: str


class ContainerFile:
    def __init__(self, path: Path, *, fsync: bool, clocks: Clocks) -> None:
        self.path = path
        self._connections = Connections(path, CONTAINER, fsync=fsync)
        self._clocks = clocks
        self._left: int | None = None
        """The next LSN when this object last wrote."""
        self._layout = Layout(0, (), ())
        self.reading = self._connections.reading
        self.shrink = self._connections.shrink
        self.close = self._connections.close
        with self.reading() as db:
            self.settings = ContainerSettings(*db.execute(SQL["settings"]).fetchone())

    @staticmethod
    def create(path: Path, settings: ContainerSettings, ranges: int) -> None:
        def fill(db: sqlite3.Connection) -> None:
            db.execute(SQL["add_container"], settings._asdict())
            db.execute(SQL["add_head"])
            add_first_ranges(db, ranges)

        create_file(path, CONTAINER, fill)

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """All changes made inside, or none. LSNs are dealt out here, while no other writer can:
        so changes become visible in the order of their LSNs."""
        settings = self.settings
        with self._connections.writing() as db:
            next_lsn, last_us, version = db.execute(SQL["head"]).fetchone()
            # A new one with each writer, and where an older file was put in the place of this one.
            begins = self._left is None or next_lsn < self._left
            if begins or version != self._layout.version:
                self._layout = read_layout(db, version)
            now = keep(db, self._clocks())
            mark = secrets.token_hex(4) if begins else db.execute(SQL["newest_mark"]).fetchone()[0]
            writing = Writing(
                db,
                self._layout,
                identity=settings.identity,
                next_lsn=next_lsn,
                # Time does not run back within a container, whatever the clock does.
                now=Now(now.own_us, max(now.wall_us, last_us)),
                mark=mark,
                begins=begins,
                keep_versions=settings.versions_s != 0,
                split_documents=settings.split_documents,
            )
            yield writing
            end = writing.finish()
        if end > next_lsn:
            self._left = end

    def change_ttl(self, ttl_s: float | None) -> None:
        with self._connections.writing() as db:
            old = ContainerSettings(*db.execute(SQL["settings"]).fetchone()).ttl_s
            own_us = keep(db, self._clocks()).own_us
            db.execute(SQL["change_ttl"], {"new": ttl_s})
            given = {"old": old, "new": ttl_s, "max": TTL_S_MAX, "own_us": own_us}
            db.execute(SQL["change_expiry"], given)
        self.settings = self.settings._replace(ttl_s=ttl_s)

    def find(self, id: str, key: KeyValue) -> dict[str, Any] | None:
        with self.reading() as db:
            wanted = (self.hash_of(key), stored_key(key), id)
            row = db.execute(SQL["find"], wanted).fetchone()
            if row is None or (row[3] is not None and row[3] <= self.own_us(db)):
                return None
        return decode(row[4])

    def documents_of(self, key: Key, after: str, limit: int) -> list[dict[str, Any]]:
        wanted = {"hash": self.hash_of(key), "key": key, "after": after, "limit": limit}
        with self.reading() as db:
            rows = db.execute(SQL["list"], wanted | {"own_us": self.own_us(db)}).fetchall()
        return [decode(body) for (body,) in rows]

    def count(self, key: KeyValue) -> int:
        wanted = {"hash": self.hash_of(key), "key": stored_key(key)}
        with self.reading() as db:
            found = db.execute(SQL["count"], wanted | {"own_us": self.own_us(db)}).fetchone()
        return int(found[0])

    def scan(self, low: int, high: int, after: Place | None) -> Iterator[tuple[Place, str]]:
        """Documents between two hashes, by hash, key and id; that order outlives splits. One view
        of the file for all of them, so that it must be read to its end or closed."""
        at = after or Place(-1, 0, "")
        wanted = {"low": max(low, at.hash), "high": high, **at._asdict()}
        with self.reading() as db:
            for *place, body in db.execute(SQL["scan"], wanted | {"own_us": self.own_us(db)}):
                yield Place._make(place), body

    def hash_of(self, key: KeyValue) -> int:
        return hash_of(key, self.settings.hashing)

    def number(self, range: str | int) -> int:
        """A range id as the file knows it. Whether it exists is found out on use."""
        text = str(range)
        if not (text.isascii() and text.isdigit() and len(text) < 19 and str(int(text)) == text):
            raise self.unknown(range)
        return int(text)

    def unknown(self, range: str | int) -> BadInput:
        names = [str(id) for id in self.ranges()]
        known = ", ".join(names if len(names) <= 12 else [*names[:6], "…", *names[-3:]])
        return BadInput(f"range {str(range)!r} is unknown: the container {self.path} has {known}")

    def ranges(self) -> dict[int, KeyRange]:
        with self.reading() as db:
            return read_ranges(db)

    def next_lsn(self) -> int:
        with self.reading() as db:
            return int(db.execute(SQL["head"]).fetchone()[0])

    def file_bytes(self) -> int:
        """What the container takes up on disk, with the part that is not merged yet."""
        parts = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal"))
        return sum(part.stat().st_size for part in parts if part.exists())

    def own_us(self, db: sqlite3.Connection) -> int:
        """What the container's own clock says, which decides whose time is over."""
        return look(db, self._clocks()).own_us
