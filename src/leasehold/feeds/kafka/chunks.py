"""Ranges of a topic as columns, for Spark: all ranges of a task are fetched at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from leasehold.core import strict_json
from leasehold.core.ranges import Range
from leasehold.errors import FeedUnavailable
from leasehold.feeds.arrow_events import EventChunk
from leasehold.feeds.kafka.client import KafkaClient, connected
from leasehold.feeds.kafka.consumers import (
    EOF,
    OUT_OF_RANGE,
    PASSING,
    OutOfRange,
    consumer_config,
    fetched,
)
from leasehold.feeds.kafka.messages import to_arrow

CHUNK_EVENTS = 64_000
"""Decoded at once: large enough to be worth it, small enough for the processor's caches."""
CHUNK_BYTES = 64 << 20
CONSUME = 10_000
POLL_S = 0.1
QUEUED_KB = 65_536
LOOKS = 4
"""How often, in the time that nothing may come, the library says how far it is."""


@dataclass(slots=True)
class _RangePart:
    """What is being read of one range."""

    range: Range
    next: int
    messages: list[Any] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def done(self) -> bool:
        return self.next >= self.range.end

    @property
    def full(self) -> bool:
        return len(self.messages) >= CHUNK_EVENTS or self.size_bytes >= CHUNK_BYTES


class _Fetched:
    """How far the library has fetched. What was aborted it keeps to itself, which may take long."""

    def __init__(self) -> None:
        self._told = ""
        self._seen: dict[str, int] = {}

    def heard(self, statistics: str) -> None:
        self._told = statistics

    def forget(self) -> None:
        """The consumer is sent elsewhere."""
        self._told, self._seen = "", {}

    def moved(self, topic: str, parts: Iterable[_RangePart]) -> bool:
        """Whether it is further than when this was last asked, or than what it has given out."""
        known = strict_json.loads(self._told)["topics"] if self._told else {}
        partitions = known.get(topic, {}).get("partitions", {})
        moved = False
        for part in parts:
            name = part.range.partition
            at = int(partitions.get(name, {}).get("next_offset", -1))
            moved = moved or at > max(part.next, self._seen.get(name, -1))
            self._seen[name] = at
        return moved


class _Kept(NamedTuple):
    consumer: Any
    fetched: _Fetched


class RangeReader:
    """A worker process reads one task after another, so consumers are kept between them."""

    def __init__(self, client: KafkaClient) -> None:
        self._client, self._topic = client, client.settings.topic
        self._free: list[_Kept] = []
        self._closed = False
        self._lock = threading.Lock()

    def chunks(self, ranges: Sequence[Range], tag: str) -> Iterator[EventChunk]:
        """Raises ``OutOfRange`` where a range begins before what is kept."""
        for some in _rounds(ranges):
            with self._consumer() as kept:
                yield from self._round(*kept, some, tag)

    def close(self) -> None:
        with self._lock:
            free, self._free, self._closed = self._free, [], True
        for each in free:
            each.consumer.close()

    @contextmanager
    def _consumer(self) -> Iterator[_Kept]:
        self._client.require_open()
        with self._lock:
            kept = self._free.pop() if self._free else None
        kept = kept or self._connected()
        try:
            yield kept
            kept.consumer.unassign()
        except BaseException:
            kept.consumer.close()
            raise
        with self._lock:
            over = self._closed
            if not over:
                self._free.append(kept)
        if over:  # the feed was closed while a range was read
            kept.consumer.close()

    def _connected(self) -> _Kept:
        fetched = _Fetched()
        config = {
            **consumer_config(self._client),
            "queued.max.messages.kbytes": QUEUED_KB,
            "statistics.interval.ms": int(1000 * self._client.settings.timeout_s / LOOKS) or 1,
            "stats_cb": fetched.heard,
        }
        return _Kept(connected(Consumer, config), fetched)

    def _round(
        self, consumer: Any, progress: _Fetched, ranges: Sequence[Range], tag: str
    ) -> Iterator[EventChunk]:
        progress.forget()
        parts = {int(each.partition): _RangePart(each, each.first) for each in ranges}
        consumer.assign([TopicPartition(self._topic, p, part.next) for p, part in parts.items()])
        limit_s = self._client.settings.timeout_s
        until = time.monotonic() + limit_s
        while parts:
            found = fetched(consumer, CONSUME, POLL_S)
            now = time.monotonic()
            if any(message.error() is None for message in found):
                until = now + limit_s
            self._take(consumer, parts, found)
            for number, part in list(parts.items()):
                if part.messages and (part.full or part.done):
                    yield EventChunk(to_arrow(part.messages, tag), part.range.partition)
                    part.messages, part.size_bytes = [], 0
                    until = time.monotonic() + limit_s  # whoever asked took their time
                if part.done:
                    del parts[number]
            if parts and now > until:
                if not progress.moved(self._topic, parts.values()):
                    raise self._stuck(next(iter(parts.values())))
                until = now + limit_s

    def _take(self, consumer: Any, parts: dict[int, _RangePart], found: Sequence[Any]) -> None:
        for message in found:
            part = parts.get(message.partition())
            if part is None or part.done:
                continue
            error = message.error()
            if error is None:
                if message.offset() < part.range.end:
                    part.messages.append(message)
                    part.size_bytes += len(message)
                    part.next = message.offset() + 1
                else:
                    part.next = part.range.end
            elif error.code() == EOF:
                part.next = max(part.next, message.offset())
                if not part.done:
                    raise self._stuck(part)
            elif error.code() in OUT_OF_RANGE:
                raise OutOfRange
            elif error.code() not in PASSING and not error.retriable():
                raise self._client.explained(error)
            if part.done:  # no more of it is to be fetched
                consumer.incremental_unassign([TopicPartition(self._topic, message.partition())])

    def _stuck(self, part: _RangePart) -> FeedUnavailable:
        return FeedUnavailable(
            f"{self._client.settings.where}, partition {part.range.partition}: offset {part.next} "
            f"cannot be read, although it was there when the range up to {part.range.end} was "
            "planned"
        )


def _rounds(ranges: Sequence[Range]) -> list[list[Range]]:
    """A consumer is at one place of a partition at a time, so two ranges of one wait in turn."""
    rounds: list[list[Range]] = []
    for each in ranges:
        if not len(each):
            continue
        for some in rounds:
            if all(other.partition != each.partition for other in some):
                some.append(each)
                break
        else:
            rounds.append([each])
    return rounds
