"""``KafkaSender``: columns of events into a topic."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from leasehold.core import strict_json
from leasehold.core.event import EventData
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.feeds.kafka.client import KafkaClient, connected
from leasehold.feeds.kafka.messages import Headers, to_message
from leasehold.feeds.kafka.settings import KafkaSettings
from leasehold.feeds.sent_columns import (
    bodies_column,
    keys_column,
    properties_column,
    properties_text,
    require_same_length,
)
from leasehold.ports import Appended

STORED_S = 120.0
"""How long the brokers may take to store a send, with all that the library tries meanwhile: as long
as with Java's producers."""
STEP = 10_000
BATCH_BYTES = 1 << 20
LIBRARY_BYTES_MAX = 1_000_000_000
"""The most that the client library takes."""
OVERHEAD_BYTES = 512
"""Of a batch, beside its events."""
TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
Message = tuple[bytes | None, bytes | None, Headers]

CONFIG: dict[str, Any] = {
    # Each message once and in order, however often the library has to try.
    "enable.idempotence": True,
    "delivery.timeout.ms": int(STORED_S * 1000),
    # The partition that Java's producers choose for the same key.
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 5,
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1 << 19,
    # Callbacks into Python for each message would halve the rate.
    "delivery.report.only.error": True,
}


class KafkaSender:
    """A ``Sender``. After ``FeedUnavailable`` some of a send may be stored: Kafka takes messages
    partition by partition. Within one send no message is stored twice."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.name, self.address = settings.topic, settings.address
        self.requests: Counter[str] = Counter()
        self._client = KafkaClient(settings, self.requests)
        cluster, topic = self._client.open()
        self.namespace = settings.namespace or cluster
        self.identity = f"{cluster}/{topic.id or self.name}"
        self._partitions = topic.partitions
        self._producer: Any = None
        self._bytes_max: int | None = None
        """What the topic takes as one batch, as far as it is known."""
        self._failed: list[KafkaError] = []
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        return cls(KafkaSettings.from_url(url, **settings))

    def send(
        self,
        events: EventData | Iterable[EventData],
        *,
        partition_key: str | None = None,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        if partition_key is not None and partition_id is not None:
            raise BadInput("give a partition_key or a partition_id, not both")
        given = [events] if isinstance(events, EventData) else list(events)
        bodies = bodies_column([event.body for event in given])
        keys = None if partition_key is None else [partition_key] * len(given)
        for event in given:
            properties_text(event.properties)  # refuses what no other feed would take
        number = self._number(partition_id)
        messages = _with_properties(bodies, keys, given)
        return self._send(messages, len(given), number, _largest(bodies, None))

    def send_columns(
        self,
        keys: Any,
        bodies: Any,
        properties: Any = None,
        *,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        body_column = bodies_column(bodies)
        key_column = None if keys is None else keys_column(keys)
        property_column = None if properties is None else properties_column(properties)
        require_same_length(body_column, key_column, property_column)
        number = self._number(partition_id)
        messages = _messages(body_column, key_column, property_column)
        largest = _largest(body_column, key_column)
        return self._send(messages, len(body_column), number, largest)

    def close(self) -> None:
        """What was sent is stored without it; it frees the connections."""
        with self._lock:
            self._client.close()
            self._producer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KafkaSender({self.address})"

    def _send(
        self, messages: Iterator[Message], count: int, partition: int | None, largest: int
    ) -> Sequence[Appended]:
        with self._lock:
            self._client.require_open()
            if not count:
                return []
            self._opened()
            # Alone, it may be small enough once it is compressed.
            if count > 1 and self._bytes_max is not None and largest > self._bytes_max:
                self._give_up()  # the next producer asks again how much it is
                raise self._too_large(largest)  # before any other event is sent
            self.requests["send"] += 1
            self._failed = []
            until = time.monotonic() + STORED_S + self._client.settings.timeout_s
            try:
                self._produce(messages, partition, until)
                left = self._opened().flush(max(0.1, until - time.monotonic()))
            except (KafkaException, SystemError) as error:
                self._give_up()
                raise self._fatal(error) from error
            except BaseException:
                self._give_up()
                raise
            if left or self._failed:
                why = self._why(left, count, largest if count == 1 else None)
                self._give_up()
                raise why
        return []

    def _produce(self, messages: Iterator[Message], partition: int | None, until: float) -> None:
        producer = self._opened()
        place = {} if partition is None else {"partition": partition}
        for number, (value, key, headers) in enumerate(messages):
            if number % STEP == STEP - 1:
                producer.poll(0)
            more = {"headers": headers, **place} if headers else place
            while True:
                try:
                    producer.produce(self.name, value, key, on_delivery=self._told, **more)
                    break
                except BufferError:  # its queue is full: the brokers are slower than we are
                    if time.monotonic() > until:
                        raise self._client.troubles.explain(self._client.settings) from None
                    producer.poll(0.1)
                except KafkaException as error:
                    raise self._refused(error.args[0], len(value or b"")) from error

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failed.append(error)

    def _why(self, left: int, count: int, size_bytes: int | None) -> Exception:
        missing = left + len(self._failed)
        told = [error for error in self._failed if error.code() != KafkaError._MSG_TIMED_OUT]
        if told and told[0].code() in TOO_LARGE:
            return self._too_large(size_bytes)
        why = (
            self._client.explained(told[0])
            if told
            else self._client.troubles.explain(self._client.settings)
        )
        if isinstance(why, BadInput):
            return why
        return FeedUnavailable(
            f"{missing:,} of {count:,} events were not stored in {self._client.settings.where} "
            f"within {STORED_S:g} s; the others are: {why}"
        )

    def _fatal(self, error: BaseException) -> Exception:
        """The library raises where it cannot go on. If it was about to call us back just then, all
        that Python says is ``SystemError``: because of the former, or with the reason lost."""
        while not isinstance(error, KafkaException) and error.__context__ is not None:
            error = error.__context__
        why = error if isinstance(error, KafkaException) else self._reason_again()
        if why is not None:
            return self._client.explained(why.args[0])
        return FeedUnavailable(
            f"{self._client.settings.where}: the client library gave up and did not say why "
            f"({error}); send it again"
        )

    def _reason_again(self) -> KafkaException | None:
        """A producer with nothing to send meets the same refusal, and no callback hides it."""
        asked = self._connected()
        until = time.monotonic() + self._client.settings.timeout_s
        while time.monotonic() < until:
            try:
                asked.poll(0.1)
            except KafkaException as error:
                return error
        return None

    def _refused(self, error: KafkaError, size_bytes: int | None) -> Exception:
        if error.code() in TOO_LARGE:
            return self._too_large(size_bytes)
        return self._client.explained(error)

    def _too_large(self, size_bytes: int | None) -> BadInput:
        size = "" if size_bytes is None else f" of {size_bytes:,} bytes"
        if self._bytes_max is None:
            return BadInput(
                f"{self._client.settings.where}: an event{size}, or several together, are larger "
                "than the topic takes (max.message.bytes, which this user may not read: grant "
                "DescribeConfigs on the topic)"
            )
        return BadInput(
            f"{self._client.settings.where}: an event{size} is larger than the topic takes "
            f"(max.message.bytes is {self._bytes_max:,})"
        )

    def _opened(self) -> Any:
        if self._producer is None:
            self._bytes_max = self._client.message_bytes_max()
            self._producer = self._connected()
        return self._producer

    def _connected(self) -> Any:
        config = {**self._client.settings.config(), **CONFIG, "batch.size": BATCH_BYTES}
        if self._bytes_max is not None:
            # Brokers refuse a batch as a whole, though each of its events is small enough.
            config["batch.size"] = max(1, min(BATCH_BYTES, self._bytes_max - OVERHEAD_BYTES))
            config["message.max.bytes"] = LIBRARY_BYTES_MAX  # the brokers say what is too large
        config["error_cb"] = self._client.troubles.heard
        return connected(Producer, config)

    def _give_up(self) -> None:
        """What is not stored by now must not be later: whoever was told so sends it again."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.purge()
            with suppress(KafkaException, SystemError):
                producer.flush(1.0)

    def _number(self, partition: str | int | None) -> int | None:
        if partition is None:
            return None
        text = str(partition)
        known = text.isascii() and text.isdigit()
        if known and int(text) >= self._partitions:
            self._partitions = self._client.topic().partitions  # it may have grown
        if not known or int(text) >= self._partitions:
            raise BadInput(
                f"partition {partition!r} is unknown: there are 0 to {self._partitions - 1}"
            )
        return int(text)


def _largest(bodies: Any, keys: Any) -> int:
    """The bytes of the largest event; properties are hardly ever large."""
    sizes = pc.binary_length(bodies)
    if keys is not None:
        sizes = pc.add(sizes, pc.binary_length(keys))
    return int(pc.max(sizes).as_py() or 0)


def _messages(bodies: Any, keys: Any, properties: Any) -> Iterator[Message]:
    """A slice at a time: all rows as Python objects at once would take up much memory."""
    for start in range(0, len(bodies), STEP):
        values = bodies.slice(start, STEP).to_pylist()
        names = [None] * len(values)
        if keys is not None:
            names = keys.slice(start, STEP).cast("binary").to_pylist()
        if properties is None:
            for value, key in zip(values, names, strict=True):
                yield value, key, []
            continue
        texts = properties.slice(start, STEP).to_pylist()
        for value, key, text in zip(values, names, texts, strict=True):
            yield to_message(value, key, strict_json.loads(text) if text else {})


def _with_properties(
    bodies: Any, keys: list[str] | None, events: Sequence[EventData]
) -> Iterator[Message]:
    for place, (body, event) in enumerate(zip(bodies.to_pylist(), events, strict=True)):
        key = None if keys is None else keys[place].encode()
        yield to_message(body, key, event.properties)
