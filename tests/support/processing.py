"""What tests of processors share: a real hub, a real store, and waiting for what must come."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import leasehold as lh

FAST = {"lease_ttl_s": 30.0, "balance_interval_s": 0.2, "poll_interval_s": 0.02}
"""Quick to look, slow to expire: what is taken over soon was handed over."""
PATIENCE_S = 120.0
"""For noticing what hangs. Java, or ten others at work, may take half of it."""


def make_hub(folder: Path, partitions: int = 4, events: int = 0, **settings: Any) -> lh.Hub:
    hub = lh.Hub.create(
        folder / "hub.db", name="sensors", namespace="homes", partitions=partitions, **settings
    )
    fill(hub, events)
    return hub


def fill(hub: lh.Hub, events: int, partitions: Any = None) -> None:
    """So many more events into each partition, each telling its partition and sequence."""
    for partition in partitions or hub.properties().partition_ids:
        first = hub.partition_properties(partition).next_sequence
        numbers = range(first, first + events)
        if events:
            hub.send([lh.EventData(f"{partition}:{n}") for n in numbers], partition_id=partition)


def open_leases(folder: Path) -> lh.ports.LeaseStore:
    return lh.open_store(f"sqlite:///{folder}/leases.db")


class Seen:
    """What handlers were given, by partition; several processors may share one."""

    def __init__(self) -> None:
        self.by_partition: dict[str, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def event(self, event: lh.Event) -> None:
        assert event.body == f"{event.partition}:{event.sequence}".encode()
        with self._lock:
            self.by_partition[event.partition].append(event.sequence)

    def batch(self, events: Any) -> None:
        for event in events:
            self.event(event)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_partition.values()))


def each(partitions: int, events: int, first: int = 0) -> dict[str, list[int]]:
    return {str(p): list(range(first, first + events)) for p in range(partitions)}


def make_processor(hub: Any, store: Any, **settings: Any) -> lh.Processor:
    return lh.Processor(hub, **{"group": "g", "store": store, **FAST, **settings})


@asynccontextmanager
async def running(*processors: lh.Processor) -> AsyncIterator[None]:
    """Run them meanwhile, and stop them in order."""
    tasks = [asyncio.ensure_future(each.run_async()) for each in processors]
    try:
        yield
    finally:
        for processor in processors:
            processor.stop()
        await asyncio.gather(*tasks)


async def until(holds: Callable[[], Any]) -> None:
    """Wait until it holds; how long that takes on a busy machine does not matter."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


def wait_until(holds: Callable[[], Any]) -> None:
    asyncio.run(until(holds))


async def look(store: Any, group: str = "g") -> lh.Snapshot:
    return await store.snapshot(lh.Group(namespace="homes", feed="sensors", name=group))


def checkpoints(store: Any, group: str = "g") -> dict[str, int]:
    async def main() -> dict[str, int]:
        leases = (await look(store, group)).leases
        await store.close()
        return {lease.partition: lease.checkpoint.next_sequence for lease in leases}

    return asyncio.run(main())
