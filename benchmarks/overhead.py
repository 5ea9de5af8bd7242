"""What a processor costs: events through empty handlers, beside a bare loop that reads the hub."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.hub import READ_EVENTS, make_load
from benchmarks.row import Row
from leasehold.core.model import Checkpoint, Group, Lease
from leasehold.feeds.hub import Hub
from leasehold.processor.processor import Processor
from leasehold.settings import Pace
from leasehold.stores.sqlite.store import SqliteStore

PARTITIONS = (1, 4, 16, 64)
SIZES = (500, 1_000, 2_000, 5_000)
"""Of ``max_events``, to see what a larger batch would bring."""
SPLIT_AT = 16
"""The number of partitions at which to say where the time goes."""
HANDLED = re.compile(r"^leasehold_events_handled_total\{.*\} (\S+)$", re.MULTILINE)


def _plain(given: Any) -> None:
    pass


async def _async(given: Any) -> None:
    pass


HANDLERS: dict[str, dict[str, Any]] = {
    "on_batch, plain": {"on_batch": _plain},
    "on_batch, async": {"on_batch": _async},
    "on_event, plain": {"on_event": _plain},
    "on_event, async": {"on_event": _async},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    wall_s: float
    cpu_s: float

    def least(self, other: Spent | None) -> Spent:
        if other is None:
            return self
        return Spent(wall_s=min(self.wall_s, other.wall_s), cpu_s=min(self.cpu_s, other.cpu_s))


def run(
    *,
    events: int = 160_000,
    batch_events: int = 1_000,
    partitions: Sequence[int] = PARTITIONS,
    sizes: Sequence[int] = SIZES,
    rounds: int = 3,
    folder: Path | None = None,
) -> Iterator[Row]:
    """Every way in each round, so that all meet the same machine; the best round counts."""
    for count in partitions:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            hub = _filled(Path(place) / "hub.db", events, batch_events, count)
            ways = _ways(hub, events, sizes if count == SPLIT_AT else None)
            best: dict[str, Spent] = {}
            for _ in range(rounds):
                for name, measure in ways.items():
                    best[name] = measure().least(best.get(name))
            hub.close()
        yield from _rates(best, events, count)
        if count == SPLIT_AT:
            yield from _where(best, events)


def _ways(hub: Hub, events: int, sizes: Sequence[int] | None) -> dict[str, Callable[[], Spent]]:
    default = Pace().max_events
    ways: dict[str, Callable[[], Spent]] = {"bare": partial(_bare, hub, events, READ_EVENTS)}
    for name, handler in HANDLERS.items():
        ways[name] = partial(_processed, hub, events, default, handler)
    if sizes is not None:
        ways["reading"] = partial(_bare, hub, events, default)
        ways["making events"] = partial(_bare, hub, events, default, make=True)
        ways["joining and stopping"] = partial(_idle, hub)
        ways["checkpoints"] = partial(_checkpoints, hub.path.parent, events // default)
        for size in sizes:
            plain = HANDLERS["on_batch, plain"]
            ways[f"max_events={size:,}"] = partial(_processed, hub, events, size, plain)
    return ways


def _filled(path: Path, events: int, batch_events: int, partitions: int) -> Hub:
    hub = Hub.create(path, name="sensors", namespace="bench", partitions=partitions)
    for number, bodies in enumerate(make_load(events, batch_events, partitions).bodies):
        hub.send_columns(None, bodies, partition_id=number % partitions)
    return hub


def _bare(hub: Hub, events: int, read_events: int, *, make: bool = False) -> Spent:
    """Read everything, one partition after the other; ``make``: into ``Event`` objects, too."""
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    for partition in hub.properties().partition_ids:
        position = Checkpoint(next_sequence=0)
        while True:
            if make:
                batch = hub.read_batch(partition, position, read_events)
                found = len(list(batch.events))
            else:
                found = hub.read_arrow(partition, position.next_sequence, read_events).num_rows
            if not found:
                break
            position = Checkpoint(next_sequence=position.next_sequence + found)
        count += position.next_sequence
    _require(count, events)
    return Spent(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


class _TimedStore(SqliteStore):
    first_at = last_at = 0.0

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        won = await super().acquire(leases, owner, ttl_s)
        self.first_at = self.first_at or time.perf_counter()
        return won

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        kept = await super().checkpoint(leases)
        self.last_at = time.perf_counter()
        return kept


def _processed(hub: Hub, events: int, max_events: int, handler: dict[str, Any]) -> Spent:
    """From the first lease to the last checkpoint."""
    store = _TimedStore(hub.path.parent / f"{uuid4().hex}.db")
    processor = Processor(hub, group="bench", store=store, max_events=max_events, **handler)
    cpu = time.process_time()
    processor.run(until_drained=True)
    cpu = time.process_time() - cpu
    _require(asyncio.run(_written(store, processor)), events)
    _require(sum(map(int, HANDLED.findall(processor.telemetry.render()))), events)
    return Spent(wall_s=store.last_at - store.first_at, cpu_s=cpu)


def _idle(hub: Hub) -> Spent:
    """Join, find nothing to do, stop."""
    store = SqliteStore(hub.path.parent / f"{uuid4().hex}.db")
    processor = Processor(hub, group="bench", store=store, on_batch=_plain, start="latest")
    wall, cpu = time.perf_counter(), time.process_time()
    processor.run(until_drained=True)
    return Spent(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


async def _written(store: SqliteStore, processor: Processor) -> int:
    look = await store.snapshot(processor.group)
    await store.close()
    return sum(lease.checkpoint.next_sequence for lease in look.leases)


def _checkpoints(folder: Path, count: int) -> Spent:
    """So many checkpoints, and nothing else."""

    async def main() -> Spent:
        store = SqliteStore(folder / f"{uuid4().hex}.db")
        group = Group(namespace="bench", feed="sensors", name="bench")
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        (lease,) = await store.acquire((await store.snapshot(group)).leases, "bench", 3600.0)
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(1, count + 1):
            position = Checkpoint(next_sequence=number, token=str(number))
            (lease,) = await store.checkpoint([replace(lease, checkpoint=position)])
        spent = Spent(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)
        await store.close()
        return spent

    return asyncio.run(main())


def _rates(best: dict[str, Spent], events: int, partitions: int) -> Iterator[Row]:
    bare = best["bare"].wall_s
    what = f"{partitions} partition{'s' * (partitions > 1)}"
    yield Row(what=f"{what}, bare loop of read_arrow", value=events / bare, unit="events/s")
    for name in HANDLERS:
        took = best[name].wall_s
        yield Row(what=f"{what}, {name}", value=events / took, unit="events/s", ratio=bare / took)


def _where(best: dict[str, Spent], events: int) -> Iterator[Row]:
    """CPU time, because that adds up although threads work at once."""
    once = best["joining and stopping"]
    parts = {"reading": best["reading"].cpu_s, "checkpoints": best["checkpoints"].cpu_s}
    made = {**parts, "making events": best["making events"].cpu_s - best["reading"].cpu_s}
    for kind, known in (("on_batch, plain", parts), ("on_event, plain", made)):
        whole = best[kind].cpu_s - once.cpu_s
        rest = {"calls, threads, upkeep": whole - sum(known.values())}
        for name, cpu_s in {"all": whole, **known, **rest}.items():
            yield Row(
                what=f"{SPLIT_AT} partitions, {kind}: {name}",
                value=max(cpu_s, 0.0) / events * 1e6,
                unit="µs CPU an event",
            )
    yield Row(what="joining and stopping", value=once.wall_s, unit="s, once")
    for name, spent in best.items():
        if name.startswith("max_events="):
            yield Row(
                what=f"{SPLIT_AT} partitions, on_batch, {name}",
                value=events / spent.wall_s,
                unit="events/s",
                ratio=best["bare"].wall_s / spent.wall_s,
            )


def _require(found: int, sent: int) -> None:
    if found != sent:
        raise AssertionError(f"{found} events were handled of {sent} sent")
