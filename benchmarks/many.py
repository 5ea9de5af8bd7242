"""What many partitions cost one instance: while nothing comes, and while all of them are busy."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.row import Row
from leasehold.core.event import EventData
from leasehold.feeds.hub import Hub
from leasehold.processor.processor import Processor
from leasehold.stores.sqlite.store import SqliteStore

PARTITIONS = 1_000
EVENTS = 100
"""In each partition, one by one: every event is a row of its own."""
IDLE_S = 15.0
SETTLE_S = 8.0
"""Threads that have nothing to do have ended by then."""
LOOK_S = 0.01


def run(
    *,
    partitions: int = PARTITIONS,
    events: int = EVENTS,
    idle_s: float = IDLE_S,
    settle_s: float = SETTLE_S,
    folder: Path | None = None,
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        hub = _filled(Path(place) / "hub.db", partitions, events)
        yield from asyncio.run(_measure(hub, partitions * events, idle_s, settle_s))
        hub.close()


def _filled(path: Path, partitions: int, events: int) -> Hub:
    hub = Hub.create(path, name="sensors", namespace="bench", partitions=partitions)
    for partition in range(partitions):
        hub.send([EventData(b"x" * 120)] * events, partition_id=partition)
    return hub


async def _measure(hub: Hub, events: int, idle_s: float, settle_s: float) -> list[Row]:
    handled = 0
    lock = threading.Lock()

    def on_batch(batch: Any) -> None:
        nonlocal handled
        with lock:
            handled += len(batch)

    store = SqliteStore(hub.path.parent / "leases.db")
    processor = Processor(hub, group="bench", store=store, on_batch=on_batch, max_events=10)
    running = asyncio.ensure_future(processor.run_async())
    most = 0
    while not processor.partitions and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    began = time.perf_counter()
    while handled < events and not running.done():
        most = max(most, threading.active_count())
        await asyncio.sleep(LOOK_S)
    busy_s = time.perf_counter() - began
    await asyncio.sleep(settle_s)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(idle_s)
    share = 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
    threads = threading.active_count()
    processor.stop()
    await running
    if handled != events:
        raise AssertionError(f"{handled} events were handled of {events} sent")
    what = f"{len(hub.properties().partitions):,} partitions"
    return [
        Row(what=f"{what}, idle", value=share, unit="% of a core", target=5, former=62),
        Row(what=f"{what}, idle", value=threads, unit="threads", former=1005),
        Row(what=f"{what}, busy", value=events / busy_s, unit="events/s", former=2500),
        Row(what=f"{what}, busy, at most", value=most, unit="threads"),
    ]
