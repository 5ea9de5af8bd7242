"""A container's file: its settings, and its documents by key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from leasehold.errors import BadInput
from leasehold.feeds.container_documents import Key, decode, hash_of
from leasehold.feeds.container_ranges import (
    SQL,
    Layout,
    Range,
    add_first_ranges,
    read_layout,
    read_ranges,
)
from leasehold.feeds.container_writing import Writing
from leasehold.feeds.sqlite_file import Connections, Kind, create_file

CONTAINER = Kind(noun="container", application_id=0x4C484843, format=1, queries=SQL)


class Settings(NamedTuple):
    """What is fixed when a container is made."""

    identity: str
    namespace: str
    name: str
    key_path: str
    document_bytes_max: int
    ttl_s: float | None
    versions_s: float | None
    split_documents: int | None
    created_us: int


class ContainerFile:
    def __init__(self, path: Path, *, fsync: bool, wall: Callable[[], float]) -> None:
        self.path = path
        self._connections = Connections(path, CONTAINER, fsync=fsync)
        self._wall = wall
        self._layout = Layout(0, (), ())
        self.reading = self._connections.reading
        self.shrink = self._connections.shrink
        self.close = self._connections.close
        with self.reading() as db:
            self.settings = Settings(*db.execute(SQL["settings"]).fetchone())

    @staticmethod
    def create(path: Path, settings: Settings, ranges: int) -> None:
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
            if version != self._layout.version:
                self._layout = read_layout(db, version)
            writing = Writing(
                db,
                self._layout,
                identity=settings.identity,
                next_lsn=next_lsn,
                # Time does not run back within a container, whatever the clock does.
                now_us=max(self.now_us(), last_us),
                keep_versions=settings.versions_s != 0,
                split_documents=settings.split_documents,
            )
            yield writing
            writing.finish()

    def find(self, id: str, key: Key) -> dict[str, Any] | None:
        with self.reading() as db:
            row = db.execute(SQL["find"], (hash_of(key), key, id)).fetchone()
        if row is None or (row[3] is not None and row[3] <= self.now_us()):
            return None
        return decode(row[4])

    def documents_of(self, key: Key, after: str, limit: int) -> list[dict[str, Any]]:
        wanted = {"hash": hash_of(key), "key": key, "after": after, "limit": limit}
        with self.reading() as db:
            rows = db.execute(SQL["list"], wanted | {"now_us": self.now_us()}).fetchall()
        return [decode(body) for (body,) in rows]

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

    def ranges(self) -> dict[int, Range]:
        with self.reading() as db:
            return read_ranges(db)

    def next_lsn(self) -> int:
        with self.reading() as db:
            return int(db.execute(SQL["head"]).fetchone()[0])

    def file_bytes(self) -> int:
        """What the container takes up on disk, with the part that is not merged yet."""
        parts = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal"))
        return sum(part.stat().st_size for part in parts if part.exists())

    def now_us(self) -> int:
        return int(self._wall() * 1e6)
