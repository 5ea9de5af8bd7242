"""When the events at some positions came: Kafka tells it only together with the events."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from leasehold.feeds.kafka.client import KafkaClient, connected
from leasehold.feeds.kafka.consumers import consumer_config, fetched
from leasehold.feeds.kafka.messages import time_s

FEW = {"queued.min.messages": 1, "fetch.message.max.bytes": 1, "fetch.wait.max.ms": 50}
"""A broker answers with one batch of messages at least, and here with no more."""
POLL_S = 0.05


class EventTimes:
    """One consumer, which fetches the first batch of each partition asked for, all at once."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._consumer: Any = None
        self._lock = threading.Lock()

    def of(self, offsets: Mapping[int, int]) -> dict[int, float]:
        """By partition: the Unix time of the first event from that offset on. Left out: what does
        not come within half of the time that others would wait for an answer."""
        if not offsets:
            return {}
        until = time.monotonic() + self._client.settings.timeout_s / 2
        found: dict[int, float] = {}
        with self._lock:
            self._client.require_open()
            if self._consumer is None:
                self._consumer = connected(Consumer, consumer_config(self._client) | FEW)
            topic = self._client.settings.topic
            self._consumer.assign([TopicPartition(topic, p, at) for p, at in offsets.items()])
            seen: set[int] = set()
            while len(seen) < len(offsets) and time.monotonic() < until:
                for message in fetched(self._consumer, len(offsets), POLL_S):
                    partition = message.partition()
                    if partition in seen or message.offset() < offsets.get(partition, 0):
                        continue
                    seen.add(partition)  # an error, or its end, is an answer as well
                    if message.error() is None:
                        found[partition] = time_s(message)
                    self._consumer.incremental_unassign([TopicPartition(topic, partition)])
            self._consumer.unassign()
        return found

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
