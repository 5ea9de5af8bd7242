"""How fast a container takes documents in and gives changes out, and what a split costs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.row import Row
from leasehold.feeds.container import Container

BATCH = 500
PLAIN_SCHEMA = """
CREATE TABLE documents (
    seq INTEGER PRIMARY KEY, key TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL,
    UNIQUE (key, id)
)
"""
PLAIN_PUT = "INSERT OR REPLACE INTO documents (key, id, body) VALUES (?, ?, ?)"
PLAIN_READ = "SELECT seq, body FROM documents WHERE seq > ? ORDER BY seq LIMIT ?"
MOVE_HALF = "UPDATE documents SET range = -1 WHERE hash >= ?"


def run(
    *,
    singles: int = 5_000,
    many: int = 50_000,
    large: int = 1_000_000,
    folder: Path | None = None,
) -> Iterator[Row]:
    """``large`` is the number of documents in the container that is split."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield from _writes(Path(name), singles, many)
        yield from _splits(Path(name), large)


def _writes(folder: Path, singles: int, many: int) -> Iterator[Row]:
    with closing(_plain(folder / "plain.db")) as plain:
        plain_one = _timed(lambda: _put_plain(plain, singles, 1))
        plain_many = _timed(lambda: _put_plain(plain, many, BATCH))
        plain_out = _timed(lambda: _read_plain(plain))
    for versions, versions_s in (("newest only", 0.0), ("all versions kept", 3600.0)):
        with _container(folder / f"{versions_s}.db", versions_s=versions_s) as container:
            one = _timed(partial(_put_singly, container, singles))
            batches = _timed(partial(_put, container, many, BATCH))
            again = _timed(partial(_put, container, many, BATCH))
            yield _rate(f"in, one by one, {versions}", singles, one, plain_one)
            yield _rate(f"in, {BATCH} at once, {versions}", many, batches, plain_many)
            yield _rate(f"changed, {BATCH} at once, {versions}", many, again, plain_many)
            out = _timed(partial(_read, container, "latest", many))
            yield _rate(f"out, latest, {versions}", many, out, plain_out)
            if versions_s:
                out = _timed(partial(_read, container, "all", 2 * many + singles))
                yield _rate("out, all", 2 * many + singles, out, plain_out * 2)


def _splits(folder: Path, count: int) -> Iterator[Row]:
    with _container(folder / "large.db", versions_s=0, ranges=1) as container:
        _put(container, count, 5_000)
        feed = container.feed()
        start = feed.position_of("0", "earliest")
        counted = _timed(lambda: asyncio.run(feed.remaining({"0": start})))
        split = _timed(lambda: container.split("0"))
        left, right = (each for each in container.ranges() if not each.split)
        position = feed.position_of(right.id, "earliest")
        first = _timed(lambda: feed.read_batch(right.id, position, BATCH))
        moved = _timed(lambda: _move_half(container.path, right.low))
    _require(left.documents + right.documents, count)
    what = f"{count:,} documents"
    yield Row(what=f"a split, {what}", value=split * 1e3, unit="ms", ratio=moved / split)
    yield Row(what=f"first {BATCH} changes of a child, {what}", value=first * 1e3, unit="ms")
    yield Row(what=f"counting what remains, {what}", value=counted * 1e3, unit="ms")


def _documents(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "id": f"a{number}",
            "home_id": f"H{number % 100_000:06}",
            "kind": "glass break",
            "level": number % 5,
            "note": "pane in the kitchen, second from the left",
        }


def _container(path: Path, **settings: Any) -> Container:
    return Container.create(
        path, name="alerts", namespace="bench", partition_key="/home_id", **settings
    )


def _put_singly(container: Container, count: int) -> None:
    for document in _documents(count):
        container.upsert(document)


def _put(container: Container, count: int, batch: int) -> None:
    documents = list(_documents(count))
    for first in range(0, count, batch):
        container.upsert_many(documents[first : first + batch])


def _read(container: Container, mode: Any, expected: int) -> None:
    feed, count = container.feed(mode), 0
    for leaf in (each for each in container.ranges() if not each.split):
        position = feed.position_of(leaf.id, "earliest")
        while events := (batch := feed.read_batch(leaf.id, position, BATCH)).events:
            count, position = count + len(events), batch.next
    _require(count, expected)


def _move_half(path: Path, at: int) -> None:
    """What a split would cost if documents had to be moved to their new range."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(MOVE_HALF, (at,))
        db.execute("COMMIT")


def _plain(path: Path) -> sqlite3.Connection:
    """A row per document with its JSON, read in the order of writing; the same durability."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA wal_autocheckpoint=4096")
    db.execute("PRAGMA cache_size=-16000")
    db.execute(PLAIN_SCHEMA)
    return db


def _put_plain(db: sqlite3.Connection, count: int, batch: int) -> None:
    documents = list(_documents(count))
    for first in range(0, count, batch):
        db.execute("BEGIN IMMEDIATE")
        for document in documents[first : first + batch]:
            db.execute(PLAIN_PUT, (document["home_id"], document["id"], json.dumps(document)))
        db.execute("COMMIT")


def _read_plain(db: sqlite3.Connection) -> None:
    last = 0
    while rows := db.execute(PLAIN_READ, (last, BATCH)).fetchall():
        last = [(seq, json.loads(body)) for seq, body in rows][-1][0]


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _rate(what: str, count: int, seconds: float, plain_s: float) -> Row:
    unit = "changes/s" if what.startswith("out") else "documents/s"
    return Row(what=what, value=count / seconds, unit=unit, ratio=plain_s / seconds)


def _require(found: int, wanted: int) -> None:
    if found != wanted:
        raise AssertionError(f"{found} came back of {wanted}")
