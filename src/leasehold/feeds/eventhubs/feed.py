"""An event hub of Azure Event Hubs, read over AMQP with the official SDK."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self

from leasehold.core import start as starts
from leasehold.core.event import EventData
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Lease, Partition
from leasehold.core.ranges import Range
from leasehold.core.start import (
    AtOffset,
    AtSequence,
    AtTime,
    Committed,
    Earliest,
    Latest,
    StockLeases,
)
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds.arrow_events import EVENT_COLUMNS, EventChunk
from leasehold.feeds.eventhubs.address import EVENT_BYTES_MAX, EventHubsSettings, connection_string
from leasehold.feeds.eventhubs.broker import NO_TOKEN, Broker, HubInfo, PartitionInfo
from leasehold.feeds.eventhubs.columns import as_arrow
from leasehold.feeds.eventhubs.kafka_endpoint import KafkaEndpoint, without_offsets
from leasehold.feeds.eventhubs.link import PartitionLink
from leasehold.feeds.eventhubs.links import LinkKey, Links
from leasehold.feeds.eventhubs.own_loop import OwnLoop
from leasehold.feeds.eventhubs.positions import begin_of, gone, require, same_offset
from leasehold.feeds.eventhubs.sdk import Clients
from leasehold.feeds.eventhubs.sender import EventHubsSender
from leasehold.ports import Appended, Batch, Chunk


class EventHubsFeed:
    """A ``ColumnarFeed`` that fences its readers: where a lease is held, its epoch is the owner
    level of the link, and the broker cuts off whoever reads under an older one.

    All of the SDK runs in a loop and thread of the feed's own.
    """

    unit = "event"
    columns = EVENT_COLUMNS
    has_gaps = True  # in hubs with log compaction
    batch_bytes_max = EVENT_BYTES_MAX

    def __init__(self, settings: EventHubsSettings) -> None:
        connection_string(settings)  # what is wrong with it is said now
        self.settings = settings
        self.namespace, self.name = settings.namespace or settings.host, settings.hub
        self.address = settings.url
        self.requests: Counter[str] = Counter()
        self._loop = OwnLoop(repr(self))
        self._clients = Clients(settings)
        self._broker = Broker(settings, self._clients, self.requests)
        self._links = Links(settings, self._clients, self._broker, self.requests)
        self._sender = EventHubsSender(settings, self._clients, self.requests, self._broker)
        self._kafka = KafkaEndpoint(settings)
        self._read_to: dict[str, tuple[str, Checkpoint]] = {}
        """Over Kafka, where reading goes on without another look at the position, in which hub."""
        self._identity = ""

    @classmethod
    def from_url(cls, url: str) -> Self:
        return cls(EventHubsSettings.from_url(url))

    @property
    def identity(self) -> str:
        """A hub that was recreated has another creation time."""
        if not self._identity:
            self._loop.wait(self._hub())
        return self._identity

    # What every feed does

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(id=each) for each in (await self._loop.run(self._hub())).partitions]

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._loop.run(self._locate(partition, start))

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        if self.settings.transport == "kafka":
            return await self._read_kafka(partition, position, max_events)
        return await self._loop.run(self._links.read(self._key(partition), position, max_events))

    async def extents(self) -> Sequence[Extent]:
        if self.settings.transport == "kafka":
            self._loop.require_open()
            return await (await asyncio.to_thread(self._kafka.feed)).extents()
        return [each.extent for each in await self._loop.run(self._broker.all())]

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        found = await self._loop.run(self._event_times(positions))
        others = {p: at for p, at in positions.items() if p not in found}
        if others and self.settings.transport == "kafka":
            kafka = await asyncio.to_thread(self._kafka.feed)
            plain = {p: Checkpoint(next_sequence=at.next_sequence) for p, at in others.items()}
            times = await kafka.event_times(plain)
            found |= {p: time for p, time in times.items() if isinstance(time, float)}
        return found

    def close(self) -> None:
        self._loop.close(self._shut())
        self._kafka.close()

    # Under a lease

    async def read_as_owner(self, lease: Lease, position: Checkpoint, max_events: int) -> Batch:
        if self.settings.transport == "kafka":  # which has no owner levels
            return await self._read_kafka(lease.partition, position, max_events)
        reading = self._links.read(self._owner_key(lease), position, max_events)
        return await self._loop.run(reading)

    async def let_go(self, lease: Lease) -> None:
        if not self._loop.closed:
            await self._loop.run(self._links.drop(self._owner_key(lease)))

    # Sending

    def send(
        self,
        events: EventData | Iterable[EventData],
        *,
        partition_key: str | None = None,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        """Store one batch in one partition: the key's, the given one, or one that the broker
        chooses. The broker does not say where."""
        wanted = [events] if isinstance(events, EventData) else list(events)
        self._loop.wait(self._sender.send(wanted, partition_key, partition_id))
        return ()

    def send_columns(
        self,
        keys: Any,
        bodies: Any,
        properties: Any = None,
        *,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        """Each event to its key's partition. Batches are stored one by one, so what was sent before
        an error stays."""
        sending = self._sender.send_columns(keys, bodies, properties, partition_id)
        self._loop.wait(sending)
        return ()

    # What Spark needs besides

    def read_columns(self, ranges: Sequence[Range]) -> Iterator[Chunk]:
        self._loop.require_open()
        if (kafka := self._kafka.if_there()) is not None:
            yield from self._kafka.columns(kafka, ranges)
            return
        for wanted in ranges:
            if not len(wanted):
                continue
            key = self._key(wanted.partition)
            link = self._loop.wait(self._links.begin(key, wanted))
            try:
                while events := self._loop.wait(self._links.next_of(key, link, wanted)):
                    yield EventChunk(as_arrow(events), wanted.partition)
            finally:
                if not self._loop.closed:
                    self._loop.wait(self._end(link))

    def properties(self) -> tuple[HubInfo, Sequence[PartitionInfo]]:
        """What the broker says of the hub and its partitions; blocks."""
        return self._loop.wait(self._properties())

    async def _read_kafka(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        self.requests["read"] += 1
        hub, read_to = self._read_to.get(partition, ("", None))
        if read_to != position:
            position = await self._loop.run(self._verified(partition, position))
        elif hub and hub != self._identity:  # which Kafka would not tell
            info = await self._loop.run(self._broker.partition(partition))
            raise gone(info, position, "other feed")
        kafka = await asyncio.to_thread(self._kafka.feed)
        at = Checkpoint(next_sequence=position.next_sequence)
        try:
            batch = await kafka.read(partition, at, max_events)
        except PositionGone as error:
            info = await self._loop.run(self._broker.partition(partition))
            raise gone(info, position, error.reason) from error
        end, after = batch.next.next_sequence, position
        if end != position.next_sequence:
            after = await self._loop.run(self._position(partition, end))
        self._read_to[partition] = self._identity, after
        events = without_offsets(batch.events, partition)
        return Batch(events=events, next=after, size_bytes=batch.size_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process connects for itself, with the secret from its own environment."""
        return type(self).from_url, (self.address,)

    def __repr__(self) -> str:
        return f"EventHubsFeed({self.settings.host}/{self.settings.hub})"

    def _key(self, partition: str) -> LinkKey:
        return LinkKey(self.settings.group_of(None), partition)

    def _owner_key(self, lease: Lease) -> LinkKey:
        reader = lease.group.name
        level = self.settings.level_of(reader, lease.epoch)
        return LinkKey(self.settings.group_of(reader), lease.partition, level)

    # All below runs in the feed's own loop

    async def _hub(self) -> HubInfo:
        found = await self._broker.hub()
        created_ms = round(found.created_at.timestamp() * 1000)
        self._identity = f"{self.settings.host}/{self.name}@{created_ms}"
        return found

    async def _properties(self) -> tuple[HubInfo, Sequence[PartitionInfo]]:
        return await self._hub(), await self._broker.all()

    async def _locate(self, partition: str, start: Any) -> Checkpoint:
        try:
            wanted = starts.parse(start)
        except ValueError as error:
            raise BadInput(str(error)) from error
        self.requests["locate"] += 1
        info = await self._broker.partition(partition)
        match wanted:
            case Earliest():
                return info.earliest
            case Latest():
                return info.latest
            case AtSequence(sequence=sequence):
                require(info, Checkpoint(next_sequence=sequence))
                return await self._position(partition, sequence, info)
            case AtOffset(offset=offset):
                return await self._at_offset(info, offset)
            case AtTime(time=time):
                return await self._at_time(info, time)
            case StockLeases():
                raise BadInput(starts.NO_STOCK_LEASES)
            case Committed(group=group):
                raise BadInput(starts.NOTHING_COMMITTED.format(group=group))

    async def _at_offset(self, info: PartitionInfo, offset: str) -> Checkpoint:
        position, last = Checkpoint(next_sequence=-1, token=offset), info.last_offset
        numbers = offset.isdigit() and last.isdigit()
        if not offset.isdigit() and last.isdigit():
            raise BadInput(f"offset {offset!r}: this hub's offsets are whole numbers")
        if info.first == info.end or (numbers and int(offset) > int(last)):
            raise gone(info, position, "beyond end")
        found = await self._links.look_up(info.partition, offset, inclusive=True)
        if found.offset != offset:
            raise gone(info, position, "retention")
        return await self._position(info.partition, found.sequence, info)

    async def _at_time(self, info: PartitionInfo, wanted: datetime) -> Checkpoint:
        last_at, wanted_s = info.last_enqueued_at, wanted.timestamp()
        if info.first == info.end or last_at is None or wanted_s > last_at:
            return info.latest
        found = await self._links.first_since(self._key(info.partition), wanted)
        return await self._position(info.partition, found.sequence, info)

    async def _position(
        self, partition: str, sequence: int, info: PartitionInfo | None = None
    ) -> Checkpoint:
        """With the offset that belongs to it, if that can be had."""
        info = info or await self._broker.partition(partition, max_age_s=self.settings.fresh_s)
        if sequence > info.end:
            info = await self._broker.partition(partition)
        if sequence == info.end:
            return info.latest
        if sequence > info.first and self.settings.offsets == "amqp":
            with suppress(FeedUnavailable):  # a reader with an owner level may keep us out
                found = await self._links.look_up(partition, sequence - 1, inclusive=True)
                if found.sequence == sequence - 1:
                    return Checkpoint(next_sequence=sequence, token=found.offset)
        return Checkpoint(next_sequence=sequence)

    async def _verified(self, partition: str, position: Checkpoint) -> Checkpoint:
        """As a link would find out, where Kafka would not."""
        info = await self._broker.partition(partition)
        require(info, position)
        at, token = position.next_sequence, position.token
        begin, inclusive = begin_of(position, info.first)
        if at in (begin, info.end):
            return position
        found = await self._links.look_up(partition, begin, inclusive=inclusive)
        if not inclusive:  # only the offset tells
            return Checkpoint(next_sequence=found.sequence, token=token)
        if not same_offset(token, found.offset):
            raise gone(info, position, "other feed")
        return position

    async def _event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> dict[str, float | PositionGone]:
        """Of what was just received, and of the newest event. Others would take a link each."""
        self.requests["event_times"] += 1
        found: dict[str, float | PositionGone] = {}
        for partition, position in positions.items():
            at = position.next_sequence
            info = await self._broker.partition(partition, max_age_s=self.settings.fresh_s)
            if at > info.end:  # another instance may have read on since
                info = await self._broker.partition(partition)
            try:
                require(info, position)
            except PositionGone as error:
                found[partition] = error
                continue
            known = self._links.time_of(partition, at)
            if known is None and at == info.end - 1 and position.token in NO_TOKEN:
                known = info.last_enqueued_at
            if known is not None:
                found[partition] = known
        return found

    async def _end(self, link: PartitionLink) -> None:
        self._links.close_soon(link)

    async def _shut(self) -> None:
        await self._links.close()
        await self._broker.close()
        await self._clients.close()
