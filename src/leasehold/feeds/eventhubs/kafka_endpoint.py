"""The namespace's Kafka endpoint: many times faster to read in bulk than AMQP is in Python.

A Kafka offset there is the sequence of the event, so positions are the same by either way. What
Kafka does not know is the event's AMQP offset, by which stock processors go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

import pyarrow as pa

from leasehold.core.ranges import Range
from leasehold.errors import BadInput, LeaseholdError
from leasehold.feeds import open_feed
from leasehold.feeds.arrow_events import ArrowEvents
from leasehold.feeds.eventhubs.address import EventHubsSettings, connection_string, is_emulator
from leasehold.ports import Chunk, ColumnarFeed

log = logging.getLogger("leasehold")
PORT = 9093
USER = "$ConnectionString"


class KafkaEndpoint:
    """Opened when first used; any thread may ask for it."""

    def __init__(self, settings: EventHubsSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._feed: ColumnarFeed | None = None
        self._asked = self._closed = False

    def feed(self) -> ColumnarFeed:
        """The topic as a feed of its own; blocks."""
        with self._lock:
            if self._closed:
                raise BadInput(f"the feed {self._settings.hub} was closed; open it again")
            if self._feed is None:
                self._feed = cast(ColumnarFeed, open_feed(kafka_url(self._settings)))
            return self._feed

    def if_there(self) -> ColumnarFeed | None:
        """For bulk reading: None where AMQP has to do, because the transport was chosen, there is
        no endpoint, or no client for it. Blocks."""
        if self._settings.transport != "auto":
            return self.feed() if self._settings.transport == "kafka" else None
        if self._feed is None and not self._asked:
            self._asked = True
            text = connection_string(self._settings)
            if text is None or (is_emulator(text) and not self._settings.kafka):
                return None
            try:
                self.feed()
            except LeaseholdError as error:
                log.warning("bulk reading goes over AMQP, which is slower: %s", error)
        return self._feed

    def columns(self, feed: ColumnarFeed, ranges: Sequence[Range]) -> Iterator[Chunk]:
        for chunk in feed.read_columns(ranges):
            yield _Chunk(chunk)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._feed is not None:
                self._feed.close()


def kafka_url(settings: EventHubsSettings) -> str:
    text = connection_string(settings)
    if text is None:
        raise BadInput(
            f"transport=kafka needs the connection string of the namespace: set {settings.secret}"
        )
    query = {
        "namespace": settings.host,
        "security_protocol": "SASL_PLAINTEXT" if is_emulator(text) else "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": USER,
        "sasl_env": settings.secret,
        "timeout_s": f"{settings.timeout_s:g}",
    }
    if settings.ca:
        query["ssl_ca_location"] = settings.ca
    brokers = settings.kafka or f"{settings.host.partition(':')[0]}:{PORT}"
    return f"kafka://{brokers}/{settings.hub}?{urlencode(query)}"


def without_offsets(events: Sequence[Any], partition: str) -> Sequence[Any]:
    """Kafka's own would be taken for AMQP's."""
    if not isinstance(events, ArrowEvents):
        return [event._replace(offset="") for event in events]
    place = events.arrow.schema.get_field_index("offset")
    blank = pa.array([""] * len(events), pa.string())
    arrow = events.arrow.set_column(place, pa.field("offset", pa.string()), blank)
    return ArrowEvents(arrow, partition)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Without Kafka's offsets, too."""

    inner: Chunk

    def __len__(self) -> int:
        return len(self.inner)

    def columns(self, names: Sequence[str]) -> pa.RecordBatch:
        found = self.inner.columns(names)
        if "offset" in names:
            blank = pa.array([""] * len(self), pa.string())
            found = found.set_column(list(names).index("offset"), "offset", blank)
        return found

    def events(self, rows: Sequence[int]) -> Sequence[Any]:
        return [event._replace(offset="") for event in self.inner.events(rows)]
