"""A member with confluent-kafka alone, as one would write it: at least once, commits of what was
handled at an interval, on a rebalance and at the end."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from threading import Event
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Message

from benchmarks.peers.member import Aggregates, PeerProcess

member = PeerProcess()
stopping = Event()
BATCH, COLUMNS_BATCH = 1000, 20_000


def log(consumer: Consumer) -> None:
    while not stopping.is_set():
        message: Any = consumer.poll(0.1)
        if message is None:
            continue
        if error := message.error():
            raise KafkaException(error)
        member.handled(message.partition(), message.offset())
        consumer.store_offsets(message)


def aggregate(consumer: Consumer) -> None:
    aggregates, most = Aggregates(), COLUMNS_BATCH if member.columns else BATCH
    while aggregates.events < member.events:
        if not aggregates.events:
            member.begin()
        polled: list[Any] = consumer.consume(most, 0.1)
        messages = [each for each in polled if each.error() is None]
        if member.columns:
            aggregates.add_all(member.columns([each.value() for each in messages]))
        else:
            for message in messages:
                aggregates.add(msgspec.json.decode(message.value()))  # as Leasehold does
        for message in _last_of_each(messages):
            consumer.store_offsets(message)
    member.tell(aggregates)


def _last_of_each(messages: Iterable[Message]) -> Iterable[Message]:
    return {message.partition(): message for message in messages}.values()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    settings: dict[str, Any] = {
        "bootstrap.servers": member.brokers,
        "group.id": member.group,
        "client.id": member.instance,
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": int(member.commit_s * 1000),
        **member.settings,
    }
    consumer = Consumer(settings)
    consumer.subscribe([member.topic])
    if member.events:
        aggregate(consumer)
    else:
        log(consumer)
    consumer.close()


if __name__ == "__main__":
    main()
