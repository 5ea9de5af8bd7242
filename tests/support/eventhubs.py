"""The endpoint in a thread of this process, and feeds that read through it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from leasehold.core.event import EventData
from leasehold.endpoints.amqp.endpoint import AmqpEndpoint
from leasehold.endpoints.amqp.secret import AccessKey
from leasehold.feeds.hub import Hub
from support.kafka import Kafka, cluster

USER = "$ConnectionString"
KEY = "dGhlIGtleSBvZiB0aGUgdGVzdHM="


def connection_string(port: int) -> str:
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=tests;SharedAccessKey={KEY};"
        "UseDevelopmentEmulator=true"
    )


@contextmanager
def kafka_endpoint(connection: str) -> Iterator[Kafka]:
    """A Kafka broker that asks for what the Kafka endpoint of Event Hubs asks for: a connection
    string as the password. What it holds has to be sent to it, too."""
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    with cluster(
        listener_name_secure_plain_sasl_jaas_config=f'{jaas} user_{USER}="{connection}";',
        super_users=f"User:ANONYMOUS;User:{USER}",
    ) as broker:
        yield broker


def send_to_both(hub: Hub, broker: Kafka, partition: str, bodies: Sequence[bytes]) -> None:
    """One event after another, as it is in Event Hubs: the same sequences by either way."""
    hub.send([EventData(body) for body in bodies], partition_id=partition)
    producer = Producer({"bootstrap.servers": broker.brokers, "log_level": 2})
    for body in bodies:
        producer.produce(hub.name, body, partition=int(partition))
    assert producer.flush(30) == 0


class Endpoint:
    """Serves a hub's file. ``stop`` and ``start`` keep the port."""

    def __init__(self, path: Path, port: int = 0, **settings: Any) -> None:
        self.path, self.port = path, port
        self._settings = settings
        self.start()

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    @property
    def url(self) -> str:
        return f"eventhubs://localhost:{self.port}/{self.hub.name}"

    def start(self) -> None:
        self.hub = Hub.open(self.path, **self._settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        access = AccessKey(policy="tests", key=KEY)
        self.endpoint = AmqpEndpoint(self.hub, access, port=self.port)
        self._run(self.endpoint.__aenter__())
        self.port = self.endpoint.port

    def stop(self) -> None:
        self._run(self.endpoint.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self.hub.close()

    def cut(self) -> None:
        """All connections are gone, without a word."""

        async def abort() -> None:
            for each in list(self.endpoint._connections):
                each.transport.abort()

        self._run(abort())

    def links(self) -> list[tuple[str, str, int | None]]:
        """Group, partition and owner level of the receivers there are."""
        held = self.endpoint.owner_levels._held.items()
        return sorted((*place, each.owner_level) for place, some in held for each in some)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@contextmanager
def endpoint(path: Path, *, partitions: int = 4, name: str = "sensors") -> Iterator[Endpoint]:
    """A new hub with an endpoint in front."""
    Hub.create(path, name=name, namespace="homes.local", partitions=partitions).close()
    served = Endpoint(path)
    try:
        yield served
    finally:
        served.stop()
