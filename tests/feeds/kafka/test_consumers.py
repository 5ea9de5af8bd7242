"""The shared consumers, and those of ranges, on a client library that does as it is told."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from leasehold.core.ranges import Range
from leasehold.errors import FeedUnavailable
from leasehold.feeds.kafka import chunks, consumers
from leasehold.feeds.kafka.chunks import RangeReader
from leasehold.feeds.kafka.client import Troubles
from leasehold.feeds.kafka.consumers import (
    BUFFER_BYTES,
    BUFFER_MESSAGES,
    SharedConsumer,
    fetched,
)
from leasehold.feeds.kafka.settings import KafkaSettings

TOPIC = "t"
SETTINGS = KafkaSettings.from_url(f"kafka://b:9092/{TOPIC}")
CLIENT: Any = SimpleNamespace(
    settings=SETTINGS, troubles=Troubles(), require_open=lambda: None, explained=RuntimeError
)


class Message:
    def __init__(self, partition: int, offset: int, value: bytes) -> None:
        self._partition, self._offset, self._value = partition, offset, value

    def __len__(self) -> int:
        return len(self._value)

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)


class EndlessConsumer:
    """Each partition has messages without end, which come in turn."""

    def __init__(self, size_bytes: int) -> None:
        self._value = b"x" * size_bytes
        self._next: dict[int, Iterator[int]] = {}
        self._paused: set[int] = set()

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        self._next |= {each.partition: count(each.offset) for each in places}

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self._paused |= {each.partition for each in places}

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self._paused -= {each.partition for each in places}

    def poll(self, wait_s: float) -> Message | None:
        found = self.consume(1, wait_s)
        return found[0] if found else None

    def consume(self, most: int, wait_s: float) -> list[Message]:
        few = min(most, 20)  # the library's own queue is bounded as well
        turns = [p for p in self._next if p not in self._paused] * few
        return [Message(p, next(self._next[p]), self._value) for p in turns[:few]]


@pytest.mark.parametrize("size_bytes", [10, 100_000])
def test_what_comes_for_a_partition_that_is_not_read_is_bounded_in_number_and_bytes(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(consumers, "connected", lambda kind, config: EndlessConsumer(size_bytes))
    shared = SharedConsumer(CLIENT)
    shared.take(1, 0, 1, lambda: 10**9)
    at = 0
    while at < 2 * BUFFER_MESSAGES:
        found, after = shared.take(0, at, 50, lambda: 10**9)
        assert [message.offset() for message in found] == list(range(at, after))
        at = after
    other = shared._cursors[1]
    assert other.size_bytes == sum(map(len, other.buffer))
    assert len(other.buffer) < BUFFER_MESSAGES + 20
    assert other.size_bytes < BUFFER_BYTES + 20 * size_bytes
    while at < 10 * BUFFER_MESSAGES and other.paused:  # and it comes again once it is read
        (_, at) = shared.take(1, other.next, 50, lambda: 10**9)
    assert not other.paused


@pytest.mark.parametrize("verb", ["incremental_assign", "pause"])
def test_a_call_of_the_library_that_fails_once_does_not_hold_up_what_comes_after(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    made = EndlessConsumer(BUFFER_BYTES)
    plain, left = getattr(made, verb), [KafkaException(KafkaError(KafkaError._STATE))]

    def failing(places: Sequence[TopicPartition]) -> None:
        if left:
            raise left.pop()
        plain(places)

    monkeypatch.setattr(made, verb, failing)
    monkeypatch.setattr(consumers, "connected", lambda kind, config: made)
    clock = count()  # so that waiting in vain has an end
    monkeypatch.setattr(consumers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    shared = SharedConsumer(CLIENT)
    with pytest.raises(KafkaException):
        shared.take(0, 0, 1, lambda: 10**9)
    assert not shared._polling  # for which all others would wait for ever
    found, after = shared.take(0, 0, 1, lambda: 10**9)
    assert ([message.offset() for message in found], after) == ([0], 1)


class AbortedConsumer:
    """Passes what was aborted without a word, at one offset a second; then comes the rest."""

    def __init__(self, config: dict[str, Any], clock: SimpleNamespace, stops_at: int) -> None:
        self._tell: Callable[[str], None] = config["stats_cb"]
        self._clock, self._stops_at = clock, stops_at

    def assign(self, places: Sequence[TopicPartition]) -> None:
        (place,) = places
        self._at = place.offset

    def poll(self, wait_s: float) -> Message | None:
        self._clock.now += 1.0
        if self._at < self._stops_at:
            self._at += 1
        known = {"partitions": {"0": {"next_offset": self._at}}}
        self._tell(json.dumps({"topics": {TOPIC: known}}))
        return Message(0, self._at, b"last") if self._at == 60 else None

    def consume(self, most: int, wait_s: float) -> list[Any]:
        return []

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        pass

    def unassign(self) -> None:
        pass

    def close(self) -> None:
        self._clock.closed += 1


def test_a_range_waits_for_what_was_aborted_to_pass_as_long_as_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0, closed=0)
    stops_at = 60
    monkeypatch.setattr(chunks, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(
        chunks, "connected", lambda kind, config: AbortedConsumer(config, clock, stops_at)
    )
    wanted = Range(partition="0", first=0, end=61)
    (chunk,) = RangeReader(CLIENT).chunks([wanted], "")
    assert chunk.columns(["sequence"]).column(0).to_pylist() == [60]
    assert clock.now > 10 * SETTINGS.timeout_s
    # Where it does not, nobody waits for long.
    began, stops_at = clock.now, 30
    with pytest.raises(FeedUnavailable, match="offset 0 cannot be read"):
        list(RangeReader(CLIENT).chunks([wanted], ""))
    assert clock.now - began < 30 + 3 * SETTINGS.timeout_s


def test_a_feed_that_is_closed_while_a_range_is_read_leaves_no_consumer_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0, closed=0)
    monkeypatch.setattr(
        chunks, "connected", lambda kind, config: AbortedConsumer(config, clock, 60)
    )
    reader = RangeReader(CLIENT)
    found = reader.chunks([Range(partition="0", first=59, end=61)], "")
    assert len(next(found)) == 1
    reader.close()
    assert not list(found)
    assert clock.closed == 1


def test_a_message_is_kept_although_those_behind_it_cannot_be_fetched() -> None:
    """It comes only once: the events behind it would follow a gap that nobody sees."""

    class Failing(EndlessConsumer):
        def consume(self, most: int, wait_s: float) -> list[Message]:
            if most > 1:
                raise KafkaException(KafkaError(KafkaError._STATE))
            return super().consume(most, wait_s)

    failing = Failing(1)
    failing.incremental_assign([TopicPartition(TOPIC, 0, 7)])
    assert [message.offset() for message in fetched(failing, 10, 0.0)] == [7]
