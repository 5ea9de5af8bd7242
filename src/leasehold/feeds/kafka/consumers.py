"""Reading partitions one by one through a few shared consumers.

A consumer of the client library has four threads, so partitions share a fixed number of them. Those
of one consumer come mixed: whoever polls sorts what comes into the buffers of all, and a partition
whose buffer is full is paused meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from leasehold.errors import FeedUnavailable
from leasehold.feeds.kafka import client
from leasehold.feeds.kafka.client import KafkaClient, connected

CONSUMERS = 16
POLL_S = 0.1
"""How long one who polls may keep others, for whom there may be something, from looking."""
BUFFER_MESSAGES, BUFFER_BYTES = 4_000, 8 << 20
"""A partition that nobody reads as fast as it comes is paused at this many, or this much."""
RESTING_S = 30.0
"""A partition that was not read for so long is no longer fetched: its lease may have moved on."""
LATE_TRIES, MORE_TRIES, TRIES_MAX = 5, 4, 80
"""A partition of which nothing came so many times in a row is begun again: the library may have
lost track of it. Then after four times as many, and so on, for it may just be slow, and what has
come of a large message or of an aborted transaction is thrown away each time. Up to this many: in a
long outage of some brokers the library may lose track at the end."""
EOF = KafkaError._PARTITION_EOF
OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
PASSING = client.PASSING | {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
}
"""The library goes on by itself; whoever waits gives up in time."""


def consumer_config(of: KafkaClient) -> dict[str, Any]:
    """No group is ever joined: partitions are assigned by leases, and offsets kept in them."""
    return {
        **of.settings.config(),
        "error_cb": of.troubles.heard,
        "group.id": "leasehold",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": of.settings.isolation_level,
        "topic.metadata.refresh.interval.ms": 5_000,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 100,
        # The default of a second is three times slower: it sleeps whenever its queue was full.
        "fetch.queue.backoff.ms": 2,
        "queued.min.messages": 100_000,
        "queued.max.messages.kbytes": 8_192,
        "fetch.message.max.bytes": 1 << 20,
    }


def fetched(consumer: Any, most: int, wait_s: float) -> list[Any]:
    """Whatever has come, as soon as there is anything: ``consume`` alone would wait for more."""
    first = consumer.poll(wait_s)
    if first is None:
        return []
    try:
        return [first, *consumer.consume(most, 0)]
    except KafkaException:  # which the next poll tells again; the first one comes only once
        return [first]


class OutOfRange(Exception):
    """The broker has nothing at the position that was asked for."""


class Cursor:
    """Where a consumer stands in one partition."""

    __slots__ = ("buffer", "error", "next", "paused", "read_at", "seen_end", "size_bytes")

    def __init__(self, at: int) -> None:
        self.next = at
        """Of what is given out next."""
        self.buffer: deque[Any] = deque()
        self.size_bytes = 0
        """Of the buffer."""
        self.seen_end = -1
        """As far as the broker said that there is nothing more."""
        self.error: KafkaError | None = None
        self.paused = False
        self.read_at = time.monotonic()

    def fills(self, part: float) -> bool:
        """Whether the buffer holds so much of what it may."""
        messages, size_bytes = len(self.buffer), self.size_bytes
        return messages >= part * BUFFER_MESSAGES or size_bytes >= part * BUFFER_BYTES


class SharedConsumer:
    """One consumer and the partitions read through it. One thread polls at a time; the others wait
    until there is something for them, or nobody polls."""

    def __init__(self, client: KafkaClient) -> None:
        self._client, self._topic = client, client.settings.topic
        self._consumer = connected(Consumer, consumer_config(client))
        self._cursors: dict[int, Cursor] = {}
        self._changed = threading.Condition()
        self._turns: dict[int, threading.Lock] = {}
        self._late: Counter[int] = Counter()
        """By partition: how many times in a row nothing came since it was begun."""
        self._patience: dict[int, int] = {}
        """By partition of which nothing came: after how many times it is begun again."""
        self._polling = False

    def stands_at(self, partition: int, at: int) -> bool:
        with self._changed:
            cursor = self._cursors.get(partition)
            return cursor is not None and cursor.next == at and cursor.error is None

    def take(
        self, partition: int, at: int, most: int, end: Callable[[], int]
    ) -> tuple[list[Any], int]:
        """Up to ``most`` messages from an offset on, and the offset after them. Waits until there
        is one, or until the end, which is asked for only if nothing is at hand."""
        # Two readers of one partition (one may have been given up) would send it back and forth.
        with self._turns.setdefault(partition, threading.Lock()):
            with self._changed:
                cursor = self._at(partition, at)
                if cursor.buffer:
                    return self._given(partition, cursor, most)
            wanted = end()
            return self._waited(partition, at, most, wanted) if at < wanted else ([], at)

    def rest(self) -> None:
        """Stop fetching what nobody has read for a while."""
        with self._changed:
            before = time.monotonic() - RESTING_S
            for partition in [p for p, c in self._cursors.items() if c.read_at < before]:
                self._drop(partition)

    def forget(self) -> None:
        """The topic is another one now."""
        with self._changed:
            for partition in list(self._cursors):
                self._drop(partition)

    def close(self) -> None:
        with self._changed:
            while self._polling:
                self._changed.wait(1.0)
            self._consumer.close()

    def _waited(self, partition: int, at: int, most: int, wanted: int) -> tuple[list[Any], int]:
        until = time.monotonic() + self._client.settings.timeout_s
        while True:
            with self._changed:
                self._raise_trouble(partition, at)
                cursor = self._at(partition, at)
                if cursor.buffer:
                    return self._given(partition, cursor, most)
                if cursor.seen_end >= wanted:
                    self._something_came(partition)
                    cursor.next = cursor.seen_end
                    return [], cursor.next
                left_s = until - time.monotonic()
                if left_s <= 0:
                    self._nothing_came(partition)
                    raise self._too_late(partition, at)
                if self._polling:
                    self._changed.wait(min(left_s, POLL_S))
                    continue
                self._polling = True
            self._poll(min(left_s, POLL_S))

    def _nothing_came(self, partition: int) -> None:
        self._late[partition] += 1
        patience = self._patience.get(partition, LATE_TRIES)
        if self._late[partition] >= patience:
            self._drop(partition)
            self._late[partition] = 0
            self._patience[partition] = min(TRIES_MAX, MORE_TRIES * patience)

    def _something_came(self, partition: int) -> None:
        del self._late[partition]
        self._patience.pop(partition, None)

    def _poll(self, wait_s: float) -> None:
        found: list[Any] = []
        try:
            found = fetched(self._consumer, BUFFER_MESSAGES, wait_s)
        finally:
            with self._changed:
                try:
                    self._sort(found)
                finally:  # or nobody would ever poll again
                    self._polling = False
                    self._changed.notify_all()

    def _at(self, partition: int, at: int) -> Cursor:
        self._client.require_open()
        cursor = self._cursors.get(partition)
        if cursor is None or cursor.next != at or cursor.error is not None:
            if cursor is not None:
                self._drop(partition)
            # First, as it may fail: what is not assigned would be waited for in vain.
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, at)])
            cursor = self._cursors[partition] = Cursor(at)
        cursor.read_at = time.monotonic()
        return cursor

    def _drop(self, partition: int) -> None:
        # What is being polled meanwhile is of where the partition stood before.
        while self._polling:
            self._changed.wait(POLL_S)
        cursor = self._cursors.pop(partition, None)
        if cursor is not None:
            place = [TopicPartition(self._topic, partition)]
            # The library would still know it as paused when it is assigned again.
            self._consumer.resume(place)
            self._consumer.incremental_unassign(place)

    def _given(self, partition: int, cursor: Cursor, most: int) -> tuple[list[Any], int]:
        self._something_came(partition)
        buffer = cursor.buffer
        found = [buffer.popleft() for _ in range(min(most, len(buffer)))]
        cursor.size_bytes -= sum(map(len, found))
        cursor.next = int(found[-1].offset()) + 1
        if cursor.paused and not cursor.fills(0.5):
            cursor.paused = False
            self._consumer.resume([TopicPartition(self._topic, partition)])
        return found, cursor.next

    def _sort(self, messages: list[Any]) -> None:
        for message in messages:
            error = message.error()
            cursor = self._cursors.get(message.partition())
            if cursor is None:
                continue
            if error is None:
                cursor.buffer.append(message)
                cursor.size_bytes += len(message)
            elif error.code() == EOF:
                cursor.seen_end = max(cursor.seen_end, message.offset())
            elif error.code() not in PASSING and not error.retriable():
                cursor.error = error
        for partition, cursor in self._cursors.items():
            if not cursor.paused and cursor.fills(1.0):
                cursor.paused = True
                self._consumer.pause([TopicPartition(self._topic, partition)])

    def _raise_trouble(self, partition: int, at: int) -> None:
        cursor = self._cursors.get(partition)
        if cursor is None or cursor.next != at or cursor.error is None:
            return
        self._drop(partition)
        if cursor.error.code() in OUT_OF_RANGE:
            raise OutOfRange
        raise self._client.explained(cursor.error)

    def _too_late(self, partition: int, at: int) -> FeedUnavailable:
        return FeedUnavailable(
            f"{self._client.settings.where}, partition {partition}: nothing came from offset {at} "
            f"on within {self._client.settings.timeout_s:g} s, although it is there"
        )


class Consumers:
    """The consumers of one feed, each made when it is needed."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._made: dict[int, SharedConsumer] = {}
        self._lock = threading.Lock()

    def of(self, partition: int) -> SharedConsumer:
        with self._lock:
            self._client.require_open()
            number = partition % CONSUMERS
            if number not in self._made:
                self._made[number] = SharedConsumer(self._client)
            return self._made[number]

    def rest(self) -> None:
        for each in self._all():
            each.rest()

    def forget(self) -> None:
        for each in self._all():
            each.forget()

    def close(self) -> None:
        for each in self._all():
            each.close()

    def _all(self) -> list[SharedConsumer]:
        with self._lock:
            return list(self._made.values())
