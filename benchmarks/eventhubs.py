"""How fast events go in and out of a hub by official clients over AMQP, by our feed over AMQP and
over Kafka, and by reading the file directly: all of one hub, in one run. And how our processors and
Microsoft's share its partitions, and take over from one that is killed, each at its defaults.

The endpoint runs in a process of its own, as ``leasehold hub serve`` does. In place of the
namespace's Kafka endpoint there is a Kafka broker that holds the same events. Every way in must
have stored every event, and every way out must have read the same ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.aio import EventHubConsumerClient
from confluent_kafka import Producer
from support.eventhubs import USER, kafka_endpoint
from support.eventhubs_java import command_of, compiled
from support.kafka import Kafka
from support.servers import TOOLS

import leasehold as lh
from benchmarks import eventhubs_group
from benchmarks.eventhubs_group import GroupCase
from benchmarks.row import Row
from leasehold.core.ranges import Range

BODY = b'{"home":"H000123","sensor":"motion-3","at":"2026-01-31T12:00:00Z","value":1}'.ljust(120)
PROGRAM = [sys.executable, "-c", "from leasehold.cli import main; main()"]
DIRECT = "the file, read directly"
JAVASCRIPT = TOOLS / "eventhubs-js" / "node_modules"


@dataclass(frozen=True, slots=True)
class ReadTotals:
    """What was read, in whatever order: equal if the same events were."""

    events: int = 0
    places: int = 0
    """Sequence times (partition + 1), of all."""
    body_bytes: int = 0

    def __add__(self, other: ReadTotals) -> ReadTotals:
        return ReadTotals(
            self.events + other.events,
            self.places + other.places,
            self.body_bytes + other.body_bytes,
        )


def run(
    *,
    events: int = 50_000,
    folder: Path | None = None,
    servers: bool = True,
    ours: Mapping[str, Any] = MappingProxyType({}),
    stock: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Row]:
    """``servers``: also what needs Java, a Kafka broker and a storage account (Azurite). ``ours``
    and ``stock``: settings of the processors that share a group, instead of their defaults."""
    with tempfile.TemporaryDirectory(dir=folder) as place, _served(Path(place)) as (path, url):
        sent = list(_sending(url, path, events, java=servers))
        yield from sent
        if not servers:
            yield from _reading(url, path, None)
            return
        with kafka_endpoint(_connection()) as broker:
            yield _copying(path, broker, direct=sent[0])
            yield from _reading(url, path, broker.secure)
        with lh.Hub.open(path) as hub:
            storage = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
            case = GroupCase(url=url, storage=storage, ours=dict(ours), stock=dict(stock))
            yield from eventhubs_group.run(hub, case)


def _reading(url: str, path: Path, kafka: str | None) -> Iterator[Row]:
    began = time.perf_counter()
    expected = _read_file(path)
    direct_s = time.perf_counter() - began
    count = expected.events
    yield Row(what=f"out, {DIRECT}", value=count / direct_s, unit="events/s")

    def timed(read: Callable[[], ReadTotals]) -> float:
        began = time.perf_counter()
        found = read()
        took_s = time.perf_counter() - began
        assert found == expected, f"{found} was read, and not {expected}"
        return took_s

    def official(way: Callable[[str, int], tuple[float, ReadTotals]]) -> float:
        took_s, found = way("receive", count)
        assert found == expected, f"{found} was read, and not {expected}"
        return took_s

    amqp = f"{url}?transport=amqp"
    ways: dict[str, Callable[[], float]] = {
        "azure-eventhub (Python, aio)": lambda: timed(lambda: asyncio.run(_read_stock(count))),
        "@azure/event-hubs (JavaScript)": lambda: official(_javascript),
        "our feed, a Processor": lambda: timed(lambda: _read_processor(amqp)),
        "our feed, columns over AMQP": lambda: timed(lambda: _read_columns(amqp)),
    }
    if kafka is not None:
        ways["azure-messaging-eventhubs (Java)"] = lambda: official(_java)
        other = f"{url}?transport=kafka&kafka={kafka}"
        ways["our feed, a Processor over Kafka"] = lambda: timed(lambda: _read_processor(other))
        plain = f"{other}&offsets=none"
        ways["our feed, the same, offsets=none"] = lambda: timed(lambda: _read_processor(plain))
        ways["our feed, columns over Kafka"] = lambda: timed(lambda: _read_columns(other))
    for name, way in ways.items():
        yield _beside(f"out, {name}", count, way(), direct_s)


def _sending(url: str, path: Path, events: int, *, java: bool) -> Iterator[Row]:
    stored = 0

    def check(more: int) -> None:
        nonlocal stored
        stored += more
        with lh.Hub.open(path) as hub:
            found = sum(each.end - each.first for each in asyncio.run(hub.extents()))
        assert found == stored, f"{found} events are in the hub, and {stored} were sent"

    with lh.Hub.open(path) as hub:
        direct_s = _timed(lambda: _in_batches(events, lambda some: _send_direct(hub, some)))
    check(events)
    yield Row(what="in, the file, written directly", value=events / direct_s, unit="events/s")
    with EventHubProducerClient.from_connection_string(_connection()) as client:
        client.send_batch([EventData(b"connect")], partition_id="0")
        stock_s = _timed(lambda: _in_batches(events, lambda some: _send_stock(client, some)))
    check(1 + events)
    yield _beside("in, azure-eventhub (Python)", events, stock_s, direct_s)
    javascript_s, _ = _javascript("send", events)
    check(1 + events)
    yield _beside("in, @azure/event-hubs (JavaScript)", events, javascript_s, direct_s)
    if java:
        java_s, _ = _java("send", events)
        check(1 + events)
        yield _beside("in, azure-messaging-eventhubs (Java)", events, java_s, direct_s)
    feed: Any = lh.open_feed(url)
    feed.send(lh.EventData(b"connect"), partition_id="0")
    ours_s = _timed(lambda: _in_batches(events, lambda some: feed.send_columns(None, some)))
    feed.close()
    check(1 + events)
    yield _beside("in, our feed", events, ours_s, direct_s)


def _copying(path: Path, broker: Kafka, *, direct: Row) -> Row:
    """The hub's events into the broker, each at its sequence."""
    client = {
        "bootstrap.servers": broker.secure,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": _connection(),
        "linger.ms": 20,
        "log_level": 2,
    }
    took_s, count = 0.0, 0
    with lh.Hub.open(path) as hub:
        broker.topic(len(hub.partition_ids), hub.name)
        producer = Producer(client)
        for partition in hub.partition_ids:
            bodies = [event.body for batch in _batches(hub, partition) for event in batch.events]
            produce = partial(_produce, producer, hub.name, int(partition), bodies)
            took_s, count = took_s + _timed(produce), count + len(bodies)
    return Row(
        what="in, confluent-kafka, at the Kafka endpoint",
        value=count / took_s,
        unit="events/s",
        ratio=count / took_s / direct.value,
    )


def _produce(producer: Producer, topic: str, partition: int, bodies: Sequence[bytes]) -> None:
    for first in range(0, len(bodies), 10_000):
        for body in bodies[first : first + 10_000]:
            producer.produce(topic, body, partition=partition)
        assert producer.flush(60) == 0


def _beside(what: str, events: int, took_s: float, direct_s: float) -> Row:
    return Row(what=what, value=events / took_s, unit="events/s", ratio=direct_s / took_s)


def _in_batches(events: int, send: Callable[[list[bytes]], Any]) -> None:
    for first in range(0, events, 1_000):
        send([BODY] * min(1_000, events - first))


def _send_direct(hub: lh.Hub, bodies: list[bytes]) -> None:
    hub.send_columns(None, bodies)


def _send_stock(client: EventHubProducerClient, bodies: list[bytes]) -> None:
    client.send_batch([EventData(body) for body in bodies])


def _seen(events: Iterable[Any]) -> ReadTotals:
    count = places = body_bytes = 0
    for event in events:
        count += 1
        places += event.sequence * (int(event.partition) + 1)
        body_bytes += len(event.body)
    return ReadTotals(count, places, body_bytes)


def _read_file(path: Path) -> ReadTotals:
    with lh.Hub.open(path) as hub:
        found = ReadTotals()
        for partition in hub.partition_ids:
            for batch in _batches(hub, partition):
                found += _seen(batch.events)
        return found


async def _read_stock(count: int) -> ReadTotals:
    client = EventHubConsumerClient.from_connection_string(_connection(), "$Default")
    found, done = ReadTotals(), asyncio.Event()

    async def on_batch(context: Any, some: list[Any]) -> None:
        nonlocal found
        sequences = body_bytes = 0
        for event in some:
            sequences += event.sequence_number
            body_bytes += sum(map(len, event.body))
        found += ReadTotals(len(some), sequences * (int(context.partition_id) + 1), body_bytes)
        if found.events >= count:
            done.set()

    async with client:
        reading = asyncio.ensure_future(
            client.receive_batch(
                on_batch, starting_position="-1", max_batch_size=1_000, prefetch=1_000
            )
        )
        await done.wait()
        reading.cancel()
        await asyncio.wait([reading], timeout=5)
    return found


def _read_processor(url: str) -> ReadTotals:
    found: list[ReadTotals] = []  # handlers of several partitions run at once

    def handle(events: Any) -> None:
        found.append(_seen(events))

    with tempfile.TemporaryDirectory() as folder:
        feed = lh.open_feed(url)
        lh.Processor(
            feed, group="bench", store=lh.open_store(f"sqlite:///{folder}/l.db"), on_batch=handle
        ).run(until_drained=True)
        feed.close()
    return sum(found, ReadTotals())


def _read_columns(url: str) -> ReadTotals:
    feed: Any = lh.open_feed(url)
    extents = asyncio.run(feed.extents())
    ranges = [Range(partition=x.partition, first=x.first, end=x.end) for x in extents]
    found = ReadTotals()
    for chunk in feed.read_columns(ranges):
        columns = chunk.columns(["sequence", "partition", "body"])
        partition = pc.cast(columns["partition"], pa.int64())
        places = pc.multiply(columns["sequence"], pc.add(partition, 1))
        size = pc.sum(pc.binary_length(columns["body"])).as_py()
        found += ReadTotals(len(chunk), pc.sum(places).as_py(), size)
    feed.close()
    return found


def _javascript(command: str, events: int) -> tuple[float, ReadTotals]:
    assert JAVASCRIPT.exists(), f"{JAVASCRIPT} is missing: `make bench` sets it up"
    program = [str(TOOLS / "bin" / "node"), str(Path(__file__).with_suffix(".js"))]
    return _official([*program, command, str(events)], NODE_PATH=str(JAVASCRIPT))


def _java(command: str, events: int) -> tuple[float, ReadTotals]:
    with tempfile.TemporaryDirectory() as folder:
        classes = compiled(Path(__file__).with_name("EventHubs.java"), Path(folder))
        return _official([*command_of(classes, "EventHubs"), command, str(events)])


def _official(command: list[str], **environment: str) -> tuple[float, ReadTotals]:
    """The seconds that an official client says it took, and what it read."""
    done = subprocess.run(
        command,
        env={**os.environ, "BODY": BODY.decode(), **environment},
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    seconds, *seen = done.stdout.split()
    return float(seconds), ReadTotals(*map(int, seen))


def _batches(hub: lh.Hub, partition: str) -> Iterator[lh.Batch]:
    position = hub.position_of(partition, "earliest")
    while len((batch := hub.read_batch(partition, position, 1_000)).events):
        yield batch
        position = batch.next


@contextmanager
def _served(folder: Path) -> Iterator[tuple[Path, str]]:
    path = folder / "sensors.db"
    lh.Hub.create(path, name="sensors", namespace="bench", partitions=4).close()
    command = [*PROGRAM, "hub", "serve", str(path), "--port", "0", "--json"]
    before = os.environ.get("AZURE_EVENTHUBS_CONNECTION_STRING")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = json.loads(process.stdout.readline())["port"]
            connection = Path(f"{path}.connection").read_text().strip()
            os.environ["AZURE_EVENTHUBS_CONNECTION_STRING"] = connection
            yield path, f"eventhubs://localhost:{port}/sensors"
        finally:
            process.terminate()
            os.environ.pop("AZURE_EVENTHUBS_CONNECTION_STRING")
            if before is not None:
                os.environ["AZURE_EVENTHUBS_CONNECTION_STRING"] = before


def _connection() -> str:
    return os.environ["AZURE_EVENTHUBS_CONNECTION_STRING"]


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
