"""Two groups on one endpoint at the same time, three members each: our processors, and Microsoft's.

Each is at its own defaults. How long until the partitions are evenly shared, and how long those of
a killed member wait for an event to be handled.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any
from uuid import uuid4

import leasehold as lh
from benchmarks.failover import _end_with_parent
from benchmarks.row import Row

MEMBERS, PARTITIONS = 3, 16
BOUND_S = 420.0
"""Stock processors look every 30 s, steal one partition at a time, and miss a dead one after 180 s.
"""
OURS, STOCK = "ours", "azure-eventhub (Python)"


@dataclass(kw_only=True)
class GroupCase:
    """What members are started with besides their defaults."""

    url: str
    storage: str
    """The connection string of a storage account, for the checkpoints of both."""
    container: str = field(default_factory=lambda: f"bench-{uuid4().hex[:8]}")
    ours: Mapping[str, Any] = field(default_factory=dict)
    stock: Mapping[str, Any] = field(default_factory=dict)


def run(hub: lh.Hub, case: GroupCase) -> Iterator[Row]:
    with ExitStack() as stack:
        stack.enter_context(_Sending(hub))
        hub.raise_partitions(max(PARTITIONS, len(hub.partition_ids)))
        teams = [
            stack.enter_context(_Team(name, target, case, len(hub.partition_ids)))
            for name, target in ((OURS, _ours), (STOCK, _stock))
        ]
        _until(teams, lambda team: team.reads_all)
        for team in teams:
            team.start(MEMBERS - 1)
        even = _until(teams, lambda team: team.is_even)
        yield from _rows(f"one alone, {MEMBERS - 1} join: even after", even)
        for team in teams:
            team.kill_one()
        yield from _rows(
            "one is killed: longest wait of a partition",
            _until(teams, lambda team: not team.waiting),
        )


def _rows(what: str, took: Mapping[str, float | None]) -> Iterator[Row]:
    theirs = took[STOCK]
    for name, seconds in took.items():
        if seconds is None:
            yield Row(what=f"group, {name}: {what}: not within", value=BOUND_S, unit="s")
            continue
        ratio = theirs / seconds if theirs and name == OURS else None
        yield Row(what=f"group, {name}: {what}", value=seconds, unit="s", ratio=ratio)


def _until(teams: Sequence[_Team], holds: Callable[[_Team], bool]) -> dict[str, float | None]:
    """When it first held, of each."""
    began = time.monotonic()
    took: dict[str, float | None] = {team.name: None for team in teams}
    while None in took.values() and time.monotonic() - began < BOUND_S:
        for team in teams:
            team.listen()
            if took[team.name] is None and holds(team):
                took[team.name] = time.monotonic() - began
        time.sleep(0.02)
    return took


class _Team:
    """The processes of one group. Each tells, by a pipe of its own, of every batch it handled."""

    def __init__(self, name: str, target: Any, case: GroupCase, partitions: int) -> None:
        self.name, self._target, self._case = name, target, case
        self._partitions = partitions
        self._spawn = get_context("spawn")
        self._running: dict[str, tuple[Any, connection.Connection]] = {}
        self._reader: dict[str, str] = {}
        self.waiting: set[str] = set()
        """Partitions of a killed member that nobody has handled an event of since."""

    def __enter__(self) -> _Team:
        self.start(1)
        return self

    def start(self, members: int) -> None:
        for _ in range(members):
            here, there = self._spawn.Pipe(duplex=False)
            name = f"member-{len(self._running)}"
            said = (self._case, name, there)
            process = self._spawn.Process(target=self._target, args=said, daemon=True)
            process.start()
            there.close()
            self._running[name] = process, here

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._running.values():
            process.kill()
            process.join()
            pipe.close()

    def shares(self) -> Counter[str]:
        return Counter(self._reader.values())

    @property
    def is_even(self) -> bool:
        shares = self.shares()
        known = self.reads_all and len(shares) == MEMBERS
        return known and max(shares.values()) - min(shares.values()) <= 1

    @property
    def reads_all(self) -> bool:
        return len(self._reader) == self._partitions

    def listen(self) -> None:
        for name, (_, pipe) in self._running.items():
            while pipe.poll():
                partition = pipe.recv()
                self._reader[partition] = name
                self.waiting.discard(partition)

    def kill_one(self) -> None:
        """The one with the most partitions."""
        self.listen()
        (victim, _), *_ = self.shares().most_common(1)
        process, pipe = self._running.pop(victim)
        process.kill()
        process.join()
        pipe.close()
        self.waiting = {each for each, reader in self._reader.items() if reader == victim}


class _Sending:
    """A few events to every partition, all the time."""

    def __init__(self, hub: lh.Hub) -> None:
        self._hub, self._over = hub, threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        while not self._over.wait(0.2):
            for partition in self._hub.partition_ids:
                self._hub.send([lh.EventData(b"x" * 100)] * 2, partition_id=partition)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _ours(case: GroupCase, name: str, pipe: connection.Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["AZURE_STORAGE_CONNECTION_STRING"] = case.storage

    async def handle(events: Sequence[Any], context: Any) -> None:
        pipe.send(context.partition)

    said = dict(part.partition("=")[::2] for part in case.storage.split(";"))
    endpoint = f"?endpoint={said['BlobEndpoint']}" if "BlobEndpoint" in said else ""
    lh.Processor(
        lh.open_feed(case.url),
        group=OURS,
        store=lh.open_store(f"azure-blob://{said['AccountName']}/{case.container}{endpoint}"),
        instance=name,
        on_batch=handle,
        start="latest",
        **case.ours,
    ).run()


def _stock(case: GroupCase, name: str, pipe: connection.Connection) -> None:
    from azure.eventhub.aio import EventHubConsumerClient  # noqa: PLC0415
    from azure.eventhub.extensions.checkpointstoreblobaio import (  # noqa: PLC0415
        BlobCheckpointStore,
    )
    from azure.storage.blob.aio import ContainerClient  # noqa: PLC0415

    threading.Thread(target=_end_with_parent, daemon=True).start()

    async def handle(context: Any, events: Sequence[Any]) -> None:
        if events:
            pipe.send(context.partition_id)
            await context.update_checkpoint(events[-1])

    async def main() -> None:
        container = f"{case.container}-stock"
        async with ContainerClient.from_connection_string(case.storage, container) as blobs:
            if not await blobs.exists():
                await _made(blobs)
        client = EventHubConsumerClient.from_connection_string(
            os.environ["AZURE_EVENTHUBS_CONNECTION_STRING"],
            "stock",
            checkpoint_store=BlobCheckpointStore.from_connection_string(case.storage, container),
            **case.stock,
        )
        async with client:
            await client.receive_batch(handle, starting_position="@latest")

    asyncio.run(main())


async def _made(blobs: Any) -> None:
    from azure.core.exceptions import ResourceExistsError  # noqa: PLC0415

    with suppress(ResourceExistsError):  # another member was quicker
        await blobs.create_container()
