"""Feeds, new and empty, and how to take them away for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.amqp_endpoint import ServedHub
from support.kafka import Kafka
from support.servers import Outage

import leasehold as lh

NAMESPACE = "chaos"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPlace:
    url: str
    name: str
    outages: Sequence[Outage] = ()
    """Each a way to take it away."""
    namespace: str = NAMESPACE
    send_to: str = ""
    """Where producers send to, and the judge looks, if not at the URL."""

    @contextmanager
    def opened(self) -> Iterator[Any]:
        feed = lh.open_feed(self.send_to or self.url)
        try:
            yield feed
        finally:
            feed.close()


def hub_place(path: Path, partitions: int) -> FeedPlace:
    lh.Hub.create(path, name="events", namespace=NAMESPACE, partitions=partitions).close()
    return FeedPlace(url=str(path), name="events")


def event_hub_place(served: ServedHub) -> FeedPlace:
    """Producers write to the hub's file: a send whose answer got lost would be there twice."""

    @contextmanager
    def down() -> Iterator[None]:
        served.stop(kill=True)
        try:
            yield
        finally:
            served.start()

    namespace = f"localhost:{served.port}"
    return FeedPlace(
        url=f"eventhubs://{namespace}/sensors?timeout_s=2",
        name="sensors",
        outages=[down],
        namespace=namespace,
        send_to=str(served.path),
    )


def kafka_place(server: Kafka, partitions: int) -> FeedPlace:
    topic = server.topic(partitions)
    outages = [outage for node in server.nodes for outage in (node.down, node.frozen)]
    url = server.url(topic, namespace=NAMESPACE, timeout_s="2")
    return FeedPlace(url=url, name=topic, outages=outages)
