"""What consumers receive: a partition from a position on, as fast as their credit allows."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from leasehold.endpoints.amqp.codec import AmqpArray, Described, Symbol
from leasehold.endpoints.amqp.errors import ARGUMENT, LinkFailed
from leasehold.endpoints.amqp.frames import Attach
from leasehold.endpoints.amqp.links import OutgoingLink, not_found, terminus_fields
from leasehold.endpoints.amqp.message_out import EncodedEvent, RuntimeInfo, encoded_events
from leasehold.errors import PositionGone
from leasehold.feeds.hub import Hub

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.session import AmqpSession

READ_EVENTS = 1000
READ_BYTES = 256 << 10
OWNER_LEVEL = "com.microsoft:epoch"
RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FILTER = 7
_POSITION = re.compile(
    r"amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time(?:-utc)?)\s*(>=?)\s*'?([^']*)'?"
)


class ReceiverLink(OutgoingLink):
    def __init__(self, session: AmqpSession, attach: Attach, *, group: str, partition: str) -> None:
        super().__init__(session, attach)
        self._endpoint = session.connection.endpoint
        if partition not in self._endpoint.hub.partition_ids:
            raise not_found(f"{self._endpoint.hub.name}/Partitions/{partition}")
        self._group, self._partition = group, partition
        self.owner_level = _owner_level(attach)
        self._wants_info = RUNTIME_METRIC in _texts(attach.desired_capabilities)
        self._next = position_of(self._endpoint.hub, partition, selector_of(attach))
        self._endpoint.owner_levels.enter(group, partition, self)

    def answer(self, attach: Attach, **fields: Any) -> None:
        if self._wants_info:
            fields["offered_capabilities"] = AmqpArray([Symbol(RUNTIME_METRIC)])
        super().answer(attach, **fields)

    def close(self) -> None:
        super().close()
        self._endpoint.owner_levels.leave(self._group, self._partition, self)

    async def run(self) -> None:
        ready: list[EncodedEvent] = []
        while True:
            self.changed.clear()
            if self.credit <= 0:
                await self.changed.wait()
                continue
            if not ready:
                ready = await self._endpoint.read(self._encoded)
            if not ready:
                if self.drain:
                    self.drained()
                else:
                    await self._something_new()
                continue
            sent = await self.session.deliver(self, [each.message for each in ready[: self.credit]])
            if sent:
                self._next = ready[sent - 1].sequence + 1
                ready = ready[sent:]

    async def _something_new(self) -> None:
        """An event to send, or another credit."""
        news, at = self._endpoint.news, self._next
        event = news.waiting(self._partition, at)
        change = asyncio.ensure_future(self.changed.wait())
        try:
            await asyncio.wait((event, change), return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
            news.leave(self._partition, at, event)

    def _encoded(self) -> list[EncodedEvent]:
        """In a thread: the next events as messages."""
        hub = self._endpoint.hub
        try:
            arrow = hub.read_arrow(self._partition, self._next, READ_EVENTS, max_bytes=READ_BYTES)
        except PositionGone as gone:
            # As Event Hubs does: whoever is behind retention goes on with what is kept.
            if gone.reason != "retention":
                raise
            self._next = gone.earliest.next_sequence
            arrow = hub.read_arrow(self._partition, self._next, READ_EVENTS, max_bytes=READ_BYTES)
        info = runtime_info(hub, self._partition) if self._wants_info and arrow.num_rows else None
        return list(encoded_events(arrow, info))


def runtime_info(hub: Hub, partition: str) -> RuntimeInfo:
    known = hub.partition_properties(partition)
    at = known.last_enqueued_at
    return RuntimeInfo(
        last_sequence=known.last_sequence,
        last_offset=known.last_offset if known.next_sequence else "-1",
        last_enqueued_ms=0 if at is None else int(at.timestamp() * 1000),
        retrieved_ms=int(time.time() * 1000),
    )


def selector_of(attach: Attach) -> str:
    """The filter on positions; some clients describe it by a symbol, others by a number."""
    fields = terminus_fields(attach.source)
    filters = fields[_FILTER] if len(fields) > _FILTER else None
    if not isinstance(filters, dict):
        return ""
    for name, value in filters.items():
        if isinstance(name, str) and "selector" in name:
            text = value.value if isinstance(value, Described) else value
            return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return ""


def position_of(hub: Hub, partition: str, selector: str) -> int:
    """The sequence to begin with."""
    if not selector:
        return hub.position_of(partition, "earliest").next_sequence
    found = _POSITION.fullmatch(selector.strip())
    if found is None:
        raise LinkFailed(ARGUMENT, f"the filter {selector[:200]!r} is not understood")
    what, inclusive, value = found[1], found[2] == ">=", found[3]
    try:
        if value == "@latest":
            return hub.position_of(partition, "latest").next_sequence
        if what == "offset":
            return _at_offset(hub, partition, value, inclusive)
        if what == "sequence-number":
            return _at_sequence(hub, partition, int(value), inclusive)
        at = EPOCH + timedelta(milliseconds=int(value) + (not inclusive))
        return hub.position_of(partition, at).next_sequence
    except (ValueError, OverflowError):
        raise LinkFailed(ARGUMENT, f"the filter {selector[:200]!r} has no number") from None


def _at_sequence(hub: Hub, partition: str, value: int, inclusive: bool) -> int:
    """Where nothing is kept any more, what is kept."""
    properties = hub.partition_properties(partition)
    if value > properties.next_sequence:
        raise _beyond("sequence number", value, properties.last_sequence)
    sequence = value + (not inclusive)
    return min(max(sequence, properties.first_sequence), properties.next_sequence)


def _beyond(what: str, value: object, last: object) -> LinkFailed:
    """As Event Hubs refuses it: a position of this hub before it was recreated, most likely."""
    return LinkFailed(
        ARGUMENT,
        f"The supplied {what} '{value}' is invalid. The last {what} in the system is '{last}'",
    )


def _at_offset(hub: Hub, partition: str, offset: str, inclusive: bool) -> int:
    if offset in ("-1", ""):
        return hub.position_of(partition, "earliest").next_sequence
    try:
        found: int = hub.position_of(partition, f"offset:{int(offset)}").next_sequence
    except PositionGone as gone:
        if gone.reason == "retention":
            return gone.earliest.next_sequence
        raise _beyond("offset", offset, gone.latest.token) from gone
    if inclusive:
        return found
    # Between two events, the one that was found is beyond the offset already.
    event = hub.read_arrow(partition, found, 1).column(2).to_pylist()
    return found + int(event == [int(offset)])


def _owner_level(attach: Attach) -> int | None:
    level = (attach.properties or {}).get(OWNER_LEVEL)
    if level is not None and (not isinstance(level, int) or isinstance(level, bool)):
        raise LinkFailed(ARGUMENT, f"{OWNER_LEVEL} is a whole number")
    return None if level is None else int(level)


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [
        each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in items
    ]
