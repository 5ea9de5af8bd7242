"""Our processors and Microsoft's in one group: one hub behind our endpoint, one real Azurite."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from support.amqp_endpoint import ServedHub, served_hub
from support.blocking import result_of
from support.eventhubs import kafka_endpoint, send_to_both
from support.eventhubs_java import command_of, compiled
from support.group_member import GROUP, INTERVAL_S, TTL_S
from support.servers import TOOLS, Azurite

import leasehold as lh
from leasehold.core.model import Group, Snapshot

pytestmark = [pytest.mark.servers, pytest.mark.takes_s(80)]
PARTITIONS = 8
TESTS = Path(__file__).resolve().parents[2]
MODULES = TOOLS / "eventhubs-js" / "node_modules"
SCRIPT = Path(__file__).with_name("member.js")
SOURCE = Path(__file__).with_name("Member.java")


class World:
    """A group, its hub and its store, and the processes that are its members."""

    def __init__(self, served: ServedHub, azurite: Azurite, folder: Path, stack: ExitStack) -> None:
        self.served, self.azurite, self._stack = served, azurite, stack
        self._ours: set[str] = set()
        self.log = folder / "handled.log"
        self.container = f"mixed-{uuid4().hex[:8]}"
        self.namespace = f"localhost:{served.port}"
        self.feed_url = f"eventhubs://{self.namespace}/sensors?owner_level=0"
        self.store_url = (
            f"azure-blob://{azurite.account}/{self.container}?endpoint={azurite.url}"
            f"&foreign_ttl_s={TTL_S}"
        )
        self.group = Group(namespace=self.namespace, feed="sensors", name=GROUP)
        self.hub = stack.enter_context(lh.Hub.open(served.path))

    def known_as(self, namespace: str) -> None:
        """In the blobs' names."""
        self.namespace = namespace
        self.feed_url += f"&namespace={namespace}"
        self.group = replace(self.group, namespace=namespace)

    def start(self, kind: str, name: str) -> subprocess.Popen[bytes]:
        azurite = self.azurite
        if kind == "ours":
            self._ours.add(name)
        said = {
            "kind": kind,
            "name": name,
            "hub": self.feed_url,
            "store": self.store_url,
            "log": str(self.log),
            "interval_s": INTERVAL_S,
            "ttl_s": TTL_S,
            "blobs": {
                "url": azurite.url,
                "account": azurite.account,
                "key": azurite.key,
                "container": self.container,
            },
        }
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        program = [sys.executable, "-m", "support.group_member", json.dumps(said)]
        if kind == "javascript":
            program = [str(TOOLS / "bin" / "node"), str(SCRIPT), json.dumps(said)]
        if kind == "java":
            times_ms = [f"{1000 * each:.0f}" for each in (INTERVAL_S, TTL_S)]
            classes = compiled(SOURCE, self.log.parent / "classes")
            program = [*command_of(classes, "Member"), name, str(self.log), self.container]
            program += times_ms
        member = subprocess.Popen(
            program,
            env={**os.environ, "PYTHONPATH": paths, "NODE_PATH": str(MODULES)},
            stderr=(self.log.parent / f"{name}.err").open("wb"),
        )
        self._stack.callback(end, member, signal.SIGKILL)
        return member

    def send(self, events: int) -> None:
        for partition in self.hub.partition_ids:
            self.hub.send([lh.EventData(b"x" * 50)] * events, partition_id=partition)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """All the while, a few events to every partition."""
        over = threading.Event()

        def send() -> None:
            while not over.wait(0.2):
                self.send(3)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def handled(self) -> list[tuple[str, str, int]]:
        if not self.log.exists():
            return []
        lines = map(json.loads, self.log.read_text().splitlines())
        return [(name, partition, each) for name, partition, some in lines for each in some]

    def owned(self) -> Counter[str]:
        """By name; stock processors have one that they make up."""
        leases = self.snapshot().leases
        return Counter((x.owner or "") if x.owner in self._ours else "stock" for x in leases)

    def ends(self) -> dict[str, int]:
        return {extent.partition: extent.end for extent in result_of(self.hub.extents())}

    def reached(self) -> dict[str, int]:
        return {x.partition: x.checkpoint.next_sequence for x in self.snapshot().leases}

    def snapshot(self) -> Snapshot:
        async def look() -> Snapshot:
            store = lh.open_store(self.store_url)
            try:
                return await store.snapshot(self.group)
            finally:
                await store.close()

        return asyncio.run(look())

    def as_stock_sees_it(self) -> dict[str, tuple[int, str]]:
        async def look() -> dict[str, tuple[int, str]]:
            azurite = self.azurite
            credential = AzureNamedKeyCredential(azurite.account, azurite.key)
            async with BlobCheckpointStore(
                azurite.url, self.container, credential=credential
            ) as store:
                listed = await store.list_checkpoints(self.namespace, "sensors", GROUP)
            return {x["partition_id"]: (x["sequence_number"], x["offset"]) for x in listed}

        return asyncio.run(look())


def end(member: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if member.poll() is None:
        member.send_signal(how)
    member.wait(60)


def until(holds: Callable[[], bool], what: str, bound_s: float = 90) -> None:
    deadline = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture
def world(azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    with served_hub(tmp_path, partitions=PARTITIONS) as served, ExitStack() as stack:
        monkeypatch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", served.connection_string)
        yield World(served, azurite, tmp_path, stack)


def test_stock_processors_and_ours_share_a_group_through_kills_on_both_sides(
    world: World,
) -> None:
    world.send(5)
    first = world.start("ours", "ours-0")
    until(lambda: sum(world.owned().values()) == PARTITIONS, "ours have leases")
    with world.sending():
        second = world.start("ours", "ours-1")
        stock = [world.start("stock", f"stock-{n}") for n in range(2)]
        evenly = Counter({"ours-0": 2, "ours-1": 2, "stock": 4})
        until(lambda: world.owned() == evenly, "shared evenly")
        until(lambda: len({name for name, *_ in world.handled()}) == 4, "all are at work")
        for victim in (second, stock[0]):
            end(victim, signal.SIGKILL)
        half = Counter({"ours-0": PARTITIONS // 2, "stock": PARTITIONS // 2})
        until(lambda: world.owned() == half, "the survivors have it all")
    until(lambda: world.reached() == world.ends(), "all is done")
    for member in (first, stock[1]):
        end(member, signal.SIGTERM)
    handled = {(partition, sequence) for _, partition, sequence in world.handled()}
    assert handled == {(p, n) for p, end_ in world.ends().items() for n in range(end_)}
    ours = {
        x.partition: (x.checkpoint.next_sequence - 1, x.checkpoint.token)
        for x in world.snapshot().leases
    }
    assert world.as_stock_sees_it() == ours


def test_the_official_javascript_processor_shares_a_group_with_ours(world: World) -> None:
    world.known_as("localhost")
    ours = world.start("ours", "ours-0")
    world.send(5)
    until(lambda: world.reached() == world.ends(), "ours are at work")
    javascript = world.start("javascript", "javascript")
    half = Counter({"ours-0": PARTITIONS // 2, "stock": PARTITIONS // 2})
    until(lambda: world.owned() == half, "shared evenly")
    world.send(20)
    until(lambda: world.reached() == world.ends(), "both are done")
    assert {name for name, *_ in world.handled()} == {"ours-0", "javascript"}
    end(javascript, signal.SIGKILL)
    world.send(20)
    until(lambda: world.reached() == world.ends(), "ours have done what it left")
    end(ours, signal.SIGTERM)
    handled = {(partition, sequence) for _, partition, sequence in world.handled()}
    assert handled == {(p, n) for p, end_ in world.ends().items() for n in range(end_)}


def test_the_official_java_processor_shares_a_group_with_ours_in_its_own_spelling(
    world: World,
) -> None:
    world.known_as("localhost")
    world.send(5)
    first = world.start("ours", "ours-0")
    until(lambda: world.reached() == world.ends(), "ours are at work, in small letters")
    java = world.start("java", "java")
    half = Counter({"ours-0": PARTITIONS // 2, "stock": PARTITIONS // 2})
    until(lambda: world.owned() == half, "shared evenly")
    world.send(20)
    until(lambda: world.reached() == world.ends(), "both are done")
    end(first, signal.SIGKILL)
    world.send(20)
    until(lambda: world.reached() == world.ends(), "Java has done what ours left")
    world.start("ours", "ours-1")
    half = Counter({"ours-1": PARTITIONS // 2, "stock": PARTITIONS // 2})
    until(lambda: world.owned() == half, "shared evenly again")
    end(java, signal.SIGKILL)
    world.send(20)
    until(lambda: world.reached() == world.ends(), "ours have done what Java left")
    handled = {(partition, sequence) for _, partition, sequence in world.handled()}
    assert handled == {(p, n) for p, end_ in world.ends().items() for n in range(end_)}
    assert {name for name, *_ in world.handled()} == {"ours-0", "java", "ours-1"}


def test_a_group_moves_between_amqp_kafka_and_stock_with_nothing_lost_or_repeated(
    world: World,
) -> None:
    amqp = world.feed_url
    with kafka_endpoint(os.environ["AZURE_EVENTHUBS_CONNECTION_STRING"]) as broker:
        broker.topic(PARTITIONS, "sensors")
        kafka = f"{amqp}&transport=kafka&kafka={broker.secure}"
        for number, (kind, url) in enumerate(
            [("ours", amqp), ("stock", amqp), ("ours", kafka), ("stock", amqp)]
        ):
            for partition in world.hub.partition_ids:
                send_to_both(world.hub, broker, partition, [b"x"] * 40)
            world.feed_url = url
            member = world.start(kind, f"{kind}-{number}")
            until(lambda: world.reached() == world.ends(), f"{kind} has done it all")
            end(member, signal.SIGTERM)
    handled = Counter((partition, sequence) for _, partition, sequence in world.handled())
    assert handled == {(p, n): 1 for p, end_ in world.ends().items() for n in range(end_)}
    assert len({name for name, *_ in world.handled()}) == 4
