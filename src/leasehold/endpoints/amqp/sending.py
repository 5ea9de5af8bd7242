"""What producers send: taken in order, stored in few transactions, answered once it is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, groupby
from typing import TYPE_CHECKING

from leasehold.endpoints.amqp.errors import (
    ARGUMENT,
    BUSY,
    INTERNAL,
    TOO_LARGE,
    AmqpError,
    DeliveryRejected,
)
from leasehold.endpoints.amqp.frames import Attach
from leasehold.endpoints.amqp.key_hash import official_partition_of
from leasehold.endpoints.amqp.links import MESSAGE_BYTES_MAX, IncomingLink, not_found
from leasehold.endpoints.amqp.message_in import NewEvent, events_of
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.feeds.hub import Hub

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.connection import AmqpConnection
    from leasehold.endpoints.amqp.news import EventNews
    from leasehold.endpoints.amqp.session import AmqpSession

log = logging.getLogger("leasehold")
HELD_BYTES_MAX = 64 << 20
"""Of all connections, waiting to be stored. Beyond that nothing more is read from producers."""
CONNECTION_BYTES_MAX = 4 << 20
ROUND_BYTES = 8 << 20


class ProducerLink(IncomingLink):
    def __init__(self, session: AmqpSession, attach: Attach, *, partition: str | None) -> None:
        super().__init__(session, attach)
        self._endpoint = session.connection.endpoint
        if partition is not None and partition not in self._endpoint.hub.partition_ids:
            raise not_found(f"{self._endpoint.hub.name}/Partitions/{partition}")
        self._partition = None if partition is None else int(partition)

    def deliver(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise DeliveryRejected(
                    TOO_LARGE,
                    f"the message takes {len(message)} bytes; at most {MESSAGE_BYTES_MAX} may be",
                )
            events = events_of(message, message_format)
            self._require_fit(events)
        except DeliveryRejected as error:
            self.settle(delivery_id, error)
            return
        if not events:
            self.settle(delivery_id)
            return
        self._endpoint.intake.put(
            Delivery(
                partition=self._partition,
                events=events,
                size=len(message),
                connection=self.session.connection,
                settle=lambda error: self.settle(delivery_id, error),
            )
        )

    def _require_fit(self, events: Sequence[NewEvent]) -> None:
        largest = max((event.size for event in events), default=0)
        if largest > self._endpoint.hub.batch_bytes_max:
            raise DeliveryRejected(
                TOO_LARGE,
                f"an event takes {largest} bytes in this hub; its batch_bytes_max is "
                f"{self._endpoint.hub.batch_bytes_max}",
            )


@dataclass(slots=True, kw_only=True)
class Delivery:
    """Events of one message, for one partition."""

    partition: int | None
    events: list[NewEvent]
    size: int
    connection: AmqpConnection
    settle: Callable[[AmqpError | None], None]
    stored: bool = False


class Intake:
    """One writer for all connections: what has gathered while one transaction is on its way goes
    into the next."""

    def __init__(self, hub: Hub, news: EventNews) -> None:
        self._hub = hub
        self._news = news
        self._waiting: list[Delivery] = []
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "amqp-intake")
        self._turn = count()
        self._paused: set[AmqpConnection] = set()
        self._held_bytes = 0

    def put(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._held_bytes += delivery.size
        delivery.connection.queued_bytes += delivery.size
        if self._too_much(delivery.connection):
            delivery.connection.pause_reading()
            self._paused.add(delivery.connection)
        self._more.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._more.wait()
            taken = self._take()
            ends, error = await loop.run_in_executor(self._thread, self._store, taken)
            for delivery in taken:
                self._held_bytes -= delivery.size
                delivery.connection.queued_bytes -= delivery.size
                delivery.settle(None if delivery.stored else error)
            self._news.tell(ends)
            for connection in [each for each in self._paused if not self._too_much(each)]:
                self._paused.discard(connection)
                connection.resume_reading()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _too_much(self, connection: AmqpConnection) -> bool:
        return connection.queued_bytes > CONNECTION_BYTES_MAX or self._held_bytes > HELD_BYTES_MAX

    def _take(self) -> list[Delivery]:
        size = taken = 0
        for taken, delivery in enumerate(self._waiting, 1):  # noqa: B007
            size += delivery.size
            if size >= ROUND_BYTES:
                break
        found, self._waiting = self._waiting[:taken], self._waiting[taken:]
        if not self._waiting:
            self._more.clear()
        return found

    def _store(self, deliveries: Sequence[Delivery]) -> tuple[dict[str, int], AmqpError | None]:
        """In a thread. By partition: the sequence after its last event; and why deliveries that are
        not marked as stored are not."""
        ends: dict[str, int] = {}
        try:
            partitions = len(self._hub.partition_ids)
            chosen: dict[int, list[Delivery]] = {}
            for delivery in deliveries:
                chosen.setdefault(self._choose(delivery, partitions), []).append(delivery)
            for partition, group in chosen.items():
                ends |= self._append(partition, group)
        except BadInput as error:
            return ends, DeliveryRejected(ARGUMENT, str(error))
        except FeedUnavailable as error:
            return ends, DeliveryRejected(BUSY, str(error))
        except Exception as error:
            log.exception("events of AMQP clients could not be stored")
            return ends, DeliveryRejected(INTERNAL, f"not stored: {error}")
        return ends, None

    def _choose(self, delivery: Delivery, partitions: int) -> int:
        if delivery.partition is not None:
            return delivery.partition
        key = delivery.events[0].key
        return (
            next(self._turn) % partitions if key is None else official_partition_of(key, partitions)
        )

    def _append(self, partition: int, deliveries: Sequence[Delivery]) -> dict[str, int]:
        ends: dict[str, int] = {}
        events = (event for delivery in deliveries for event in delivery.events)
        # The hub takes a column of keys, or none.
        for keyed, group in groupby(events, lambda event: event.key is not None):
            bodies, keys, properties = zip(
                *((event.body, event.key, event.properties) for event in group), strict=True
            )
            stored = self._hub.send_columns(
                list(keys) if keyed else None,
                list(bodies),
                list(properties),
                partition_id=partition,
            )
            ends |= {each.partition: each.first_sequence + each.events for each in stored}
        for delivery in deliveries:
            delivery.stored = True
        return ends
