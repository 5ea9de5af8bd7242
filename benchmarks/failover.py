"""How long a dead instance's partitions wait: from SIGKILL to a survivor's first event of each."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.row import Row
from leasehold.core.balance import live_members, spread
from leasehold.core.model import Group, Partition, Snapshot
from leasehold.feeds.hub import Hub
from leasehold.feeds.keys import partition_of
from leasehold.processor.processor import Processor
from leasehold.stores import open_store

PARTITIONS = 16
INSTANCES = 3
SEND_S = 0.05
BOUND_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    settings: Mapping[str, float] = field(default_factory=dict)
    interval_s: float = 3.0
    kills: int = 3
    target_s: float


CASES = (
    Case(name="default settings", target_s=13.0),
    Case(
        name="lease_ttl_s=2, balance_interval_s=0.5",
        settings={"lease_ttl_s": 2.0, "balance_interval_s": 0.5},
        interval_s=0.5,
        kills=6,
        target_s=3.0,
    ),
)
# Documented in azure-eventhub 5.15, which looks every load_balancing_interval = 30 s and takes what
# is older than partition_ownership_expiration_interval = 6 times that.
DOCUMENTED = Row(
    what="beside it, documented and not measured: Microsoft's EventHubConsumerClient lets a dead "
    "owner's partitions expire after (it looks every 30 s)",
    value=180.0,
    unit="s",
)


def run(urls: Sequence[str], cases: Sequence[Case] = CASES) -> Iterator[Row]:
    for url in urls:
        for case in cases:
            waits = measure(url, case)
            what = f"{url.partition(':')[0]}, {case.name}, {case.kills} kills"
            yield Row(
                what=f"{what}: longest of {len(waits)} partitions",
                value=max(waits),
                unit="s",
                target=case.target_s,
            )
            yield Row(what=f"{what}: median", value=statistics.median(waits), unit="s")
    yield DOCUMENTED


def measure(url: str, case: Case, *, seed: int = 7) -> list[float]:
    """The wait of every partition that a kill left without an owner."""
    chance, waits = random.Random(seed), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hub = stack.enter_context(
            Hub.create(folder / "hub.db", name="failover", namespace="bench", partitions=PARTITIONS)
        )
        stack.enter_context(_producer(hub))
        instances = _Instances(hub, url, case.settings)
        stack.callback(instances.kill_all)
        for _ in range(INSTANCES):
            instances.start()
        for _ in range(case.kills):
            instances.wait_until_even()
            # At any moment between two looks.
            time.sleep(chance.uniform(0.0, case.interval_s))
            waits += instances.kill(chance.choice(instances.names))
            instances.start()
    return waits


class _Instances:
    """The processes of one group. What they report comes through a pipe of each one's own: a lock
    shared with a process that is killed might stay locked."""

    def __init__(self, hub: Hub, url: str, settings: Mapping[str, float]) -> None:
        self._hub, self._url, self._settings = hub, url, settings
        self._group = Group(
            namespace=hub.namespace, feed=hub.name, name=f"failover-{uuid4().hex[:8]}"
        )
        self._spawn = get_context("spawn")
        self._running: dict[str, tuple[Any, connection.Connection]] = {}
        self._started = 0

    @property
    def names(self) -> list[str]:
        return sorted(self._running)

    def start(self) -> None:
        self._started += 1
        name = f"i{self._started}"
        here, there = self._spawn.Pipe(duplex=False)
        settings = {"group": self._group.name, "instance": name, **self._settings}
        said = (str(self._hub.path), self._url, settings, there)
        process = self._spawn.Process(target=_instance, args=said, daemon=True)
        process.start()
        there.close()
        self._running[name] = process, here

    def kill(self, name: str) -> list[float]:
        look = self._look()
        waiting = {lease.partition: lease.epoch for lease in look.leases if lease.owner == name}
        process, pipe = self._running.pop(name)
        for each in self._pipes():
            while each.poll():
                each.recv()
        began = time.monotonic()
        process.kill()
        process.join()
        pipe.close()
        waits = []
        while waiting:
            ready = connection.wait(self._pipes(), BOUND_S)
            if not ready:
                raise TimeoutError(f"{sorted(waiting)} are not read {BOUND_S:g} s after a kill")
            for each in self._pipes():
                if each in ready:
                    partition, epoch, at = each.recv()
                    if epoch > waiting.get(partition, epoch):
                        del waiting[partition]
                        waits.append(at - began)
        return waits

    def kill_all(self) -> None:
        for process, pipe in self._running.values():
            process.kill()
            process.join()
            pipe.close()

    def wait_until_even(self) -> None:
        known = [Partition(id=number) for number in self._hub.properties().partition_ids]
        deadline = time.monotonic() + BOUND_S
        while True:
            look = self._look()
            all_owned = len(look.leases) == PARTITIONS and all(each.live for each in look.leases)
            members = live_members(look)
            if all_owned and members == set(self._running) and spread(look, known) <= 1:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not even after {BOUND_S:g} s: {look.ownership()}")
            time.sleep(0.1)

    def _look(self) -> Snapshot:
        async def look() -> Snapshot:
            store = open_store(self._url)
            try:
                return await store.snapshot(self._group)
            finally:
                await store.close()

        return asyncio.run(look())

    def _pipes(self) -> list[connection.Connection]:
        return [pipe for _, pipe in self._running.values()]


def _instance(hub: str, url: str, settings: Mapping[str, Any], pipe: connection.Connection) -> None:
    """Runs as a process of its own: tells of the first events in every partition it gets."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    told: set[tuple[str, int]] = set()

    async def on_batch(events: Sequence[Any], context: Any) -> None:
        now, tenure = time.monotonic(), (context.partition, context.epoch)
        if tenure not in told:
            told.add(tenure)
            pipe.send((*tenure, now))

    Processor(Hub.open(hub), store=open_store(url), on_batch=on_batch, **settings).run()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _producer(hub: Hub) -> Iterator[None]:
    """A few events to every partition, all the time."""
    keys = [f"key-{number}" for number in range(20 * PARTITIONS)]
    assert len({partition_of(key, PARTITIONS) for key in keys}) == PARTITIONS
    bodies = [b'{"value": 1}'] * len(keys)
    over = threading.Event()

    def produce() -> None:
        while not over.wait(SEND_S):
            hub.send_columns(keys, bodies)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
