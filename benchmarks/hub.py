"""How fast the hub takes events in and gives them out, beside one plain SQLite row per event."""

from __future__ import annotations

import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.row import Row
from leasehold.core.event import EventData
from leasehold.feeds.hub import Hub

BODY_BYTES = 120
READ_EVENTS = 10_000
PLAIN = "a plain row per event"
SPREAD = "columns by key, a batch spread thin"
"""Shown for the cost of small sends: a sixteenth of a batch to each of sixteen partitions."""

PLAIN_SCHEMA = """
CREATE TABLE events (
    partition_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    enqueued_us INTEGER NOT NULL,
    partition_key TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (partition_id, sequence)
) WITHOUT ROWID
"""
PLAIN_READ = """
SELECT body, sequence, enqueued_us, partition_key FROM events
WHERE partition_id = ? AND sequence >= ? ORDER BY sequence LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The same events in every form that a producer may have them in, a batch at a time."""

    partitions: int
    keys: list[pa.Array]
    bodies: list[pa.Array]
    events: list[list[EventData]]

    @property
    def count(self) -> int:
        return sum(len(batch) for batch in self.bodies)

    def joined(self, batches: int) -> Load:
        """The same columns, several batches in one."""
        groups = [slice(n, n + batches) for n in range(0, len(self.bodies), batches)]
        return Load(
            self.partitions,
            [pa.concat_arrays(self.keys[group]) for group in groups],
            [pa.concat_arrays(self.bodies[group]) for group in groups],
            [],
        )


def run(
    *,
    events: int = 320_000,
    batch_events: int = 1_000,
    partitions: int = 16,
    rounds: int = 3,
    folder: Path | None = None,
) -> list[Row]:
    """Every way in each round, so that all meet the same machine; the best round counts."""
    load = make_load(events, batch_events, partitions)
    wide = load.joined(partitions)
    ways: dict[str, Callable[[Path], tuple[float, float, int]]] = {
        PLAIN: lambda path: _plain(path, load),
        "EventData, a batch to a partition": lambda path: _hub(
            path, load, lambda hub, n: hub.send(load.events[n])
        ),
        "columns, a batch to a partition": lambda path: _hub(
            path, load, lambda hub, n: hub.send_columns(None, load.bodies[n])
        ),
        f"columns by key, {partitions} batches at once": lambda path: _hub(
            path, wide, lambda hub, n: hub.send_columns(wide.keys[n], wide.bodies[n])
        ),
        SPREAD: lambda path: _hub(
            path, load, lambda hub, n: hub.send_columns(load.keys[n], load.bodies[n])
        ),
    }
    best: dict[str, tuple[float, float, int]] = {}
    for number in range(rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                found = way(Path(place) / f"{number}.db")
            before = best.get(name, found)
            best[name] = min(found[0], before[0]), min(found[1], before[1]), found[2]
    return list(_rows(best, load.count))


def make_load(events: int, batch_events: int, partitions: int) -> Load:
    chance = random.Random(7)
    kinds = ("motion", "door", "window", "glass", "smoke")
    keys, bodies = [], []
    for number in range(events):
        home = f"H{chance.randrange(100_000):06d}"
        start = (
            f'{{"home":"{home}","sensor":"{chance.choice(kinds)}-{chance.randrange(8)}",'
            f'"at":"2026-01-31T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}'
            f'.{chance.randrange(1000):03d}Z","value":{chance.random() * 100:.3f},"id":"'
        )
        fill = f"{chance.getrandbits(160):040x}"[: BODY_BYTES - len(start) - 2]
        keys.append(home)
        bodies.append(f'{start}{fill}"}}'.encode())
    cuts = [slice(n, n + batch_events) for n in range(0, events, batch_events)]
    return Load(
        partitions,
        [pa.array(keys[cut]) for cut in cuts],
        [pa.array(bodies[cut], pa.binary()) for cut in cuts],
        [[EventData(body) for body in bodies[cut]] for cut in cuts],
    )


def _hub(path: Path, load: Load, send: Callable[[Hub, int], object]) -> tuple[float, float, int]:
    """Seconds in, seconds out, bytes on disk."""
    with Hub.create(path, name="sensors", namespace="bench", partitions=load.partitions) as hub:
        started = time.perf_counter()
        for number in range(len(load.bodies)):
            send(hub, number)
        in_s = time.perf_counter() - started
    with Hub.open(path) as hub:
        started, count = time.perf_counter(), 0
        for partition in range(load.partitions):
            sequence = 0
            while found := hub.read_arrow(partition, sequence, READ_EVENTS).num_rows:
                sequence += found
            count += sequence
        out_s = time.perf_counter() - started
    _require(count, load.count)
    return in_s, out_s, path.stat().st_size


def _plain(path: Path, load: Load) -> tuple[float, float, int]:
    """One row per event, one transaction per batch, the same durability, read into Arrow."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA wal_autocheckpoint=4096")
        db.execute("PRAGMA cache_size=-16000")
        db.execute(PLAIN_SCHEMA)
        ends = [0] * load.partitions
        started = time.perf_counter()
        for number, batch in enumerate(load.events):
            partition, us = number % load.partitions, int(time.time() * 1e6)
            first = ends[partition]
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, NULL, ?)",
                [(partition, first + n, us, event.body) for n, event in enumerate(batch)],
            )
            db.execute("COMMIT")
            ends[partition] += len(batch)
        in_s = time.perf_counter() - started
    with closing(sqlite3.connect(path)) as db:
        started, count = time.perf_counter(), 0
        for partition in range(load.partitions):
            sequence = 0
            while rows := db.execute(PLAIN_READ, (partition, sequence, READ_EVENTS)).fetchall():
                kinds = (pa.binary(), pa.int64(), pa.int64(), pa.string())
                columns = zip(zip(*rows, strict=True), kinds, strict=True)
                found = pa.record_batch(
                    [pa.array(column, kind) for column, kind in columns],
                    names=["body", "sequence", "enqueued_us", "partition_key"],
                )
                sequence += found.num_rows
            count += sequence
        out_s = time.perf_counter() - started
    _require(count, load.count)
    return in_s, out_s, path.stat().st_size


def _rows(best: dict[str, tuple[float, float, int]], count: int) -> Iterable[Row]:
    plain_in, plain_out, plain_bytes = best[PLAIN]
    for name, (in_s, out_s, _) in best.items():
        hub, aimed = name != PLAIN, name not in (PLAIN, SPREAD)
        yield Row(
            what=f"in, {name}",
            value=count / in_s,
            unit="events/s",
            ratio=plain_in / in_s if hub else None,
            target=500_000 if aimed else None,
        )
        yield Row(
            what=f"out, {name}",
            value=count / out_s,
            unit="events/s",
            ratio=plain_out / out_s if hub else None,
            target=3_000_000 if aimed else None,
        )
    for name, (_, _, file_bytes) in best.items():
        yield Row(
            what=f"on disk, {name}",
            value=file_bytes / (count * BODY_BYTES),
            unit="of the raw bytes",
            ratio=file_bytes / plain_bytes if name != PLAIN else None,
        )


def _require(found: int, sent: int) -> None:
    if found != sent:
        raise AssertionError(f"{found} events came back of {sent} sent")
