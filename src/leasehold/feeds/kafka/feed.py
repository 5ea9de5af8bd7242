"""``KafkaFeed``: a topic as a feed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.ranges import Range
from leasehold.core.start import (
    NO_STOCK_LEASES,
    AtOffset,
    AtSequence,
    AtTime,
    Committed,
    Earliest,
    Latest,
    StockLeases,
    parse,
)
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds.arrow_events import EVENT_COLUMNS, ArrowEvents, EventChunk, to_unix_us
from leasehold.feeds.kafka.chunks import RangeReader
from leasehold.feeds.kafka.client import KafkaClient, Topic
from leasehold.feeds.kafka.consumers import Consumers, OutOfRange
from leasehold.feeds.kafka.event_times import EventTimes
from leasehold.feeds.kafka.messages import to_arrow
from leasehold.feeds.kafka.positions import (
    Kept,
    gone,
    parse_offset,
    position_at,
    tag_of,
    why_gone,
)
from leasehold.feeds.kafka.settings import KafkaSettings
from leasehold.local.threads import OwnThreads
from leasehold.ports import Batch

_Result = TypeVar("_Result")
ASK_THREADS = 4
READ_THREADS = 32
"""A read waits for its partition's leader; one that is away must not keep the others waiting."""
OUT_OF_RANGE_TRIES = 3


class KafkaFeed:
    """A ``ColumnarFeed``. Sequences are Kafka's offsets; ``namespace`` is the cluster's id unless
    the URL says another. The async methods run the plain ones in the feed's own threads."""

    unit = "event"
    columns = EVENT_COLUMNS
    has_gaps = True

    def __init__(self, settings: KafkaSettings) -> None:
        self.name, self.address = settings.topic, settings.address
        self.requests: Counter[str] = Counter()
        self._client = KafkaClient(settings, self.requests)
        self._cluster, self._topic = self._client.open()
        self.namespace = settings.namespace or self._cluster
        self._lock = threading.Lock()
        self._consumers = Consumers(self._client)
        self._ranges = RangeReader(self._client)
        self._times = EventTimes(self._client)
        self._asking = OwnThreads(f"kafka-{self.name}", ASK_THREADS)
        self._reading = OwnThreads(f"kafka-read-{self.name}", READ_THREADS)

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        return cls(KafkaSettings.from_url(url, **settings))

    @property
    def identity(self) -> str:
        """As last seen: a topic that was deleted and created again has another one."""
        return f"{self._cluster}/{self._topic.id or self.name}"

    def _partition_ids(self) -> Sequence[str]:
        self._client.require_open()
        self._consumers.rest()
        return [str(number) for number in range(self._look().partitions)]

    def _position_of(self, partition: str | int, start: Any) -> Checkpoint:
        """``locate`` without waiting for a loop."""
        try:
            wanted = parse(start)
        except ValueError as error:
            raise BadInput(str(error)) from error
        topic = self._look()
        number = _number(partition, topic)
        tag = tag_of(topic.id)
        match wanted:
            case Earliest():
                return position_at(self._client.firsts([number])[number], tag)
            case Latest():
                return position_at(self._client.ends([number])[number], tag)
            case AtSequence(sequence=sequence):
                return self._at(number, Checkpoint(next_sequence=sequence), tag)
            case AtOffset(offset=text):
                offset, told = parse_offset(text)
                token = f"{offset - 1}@{told}" if told else ""
                return self._at(number, Checkpoint(next_sequence=offset, token=token), tag)
            case AtTime(time=time):
                unix_ms = -(-to_unix_us(time) // 1000)  # Kafka's times are whole milliseconds
                end = self._client.ends([number])[number]  # of before: what comes now is not older
                found = self._client.at_times(number, max(0, unix_ms))
                return position_at(end if found is None else found, tag)
            case StockLeases():
                raise BadInput(NO_STOCK_LEASES)
            case Committed(group=group):
                return self._at_committed(number, group, topic)

    def _read_batch(self, partition: str | int, position: Checkpoint, max_events: int) -> Batch:
        """``read`` without waiting for a loop."""
        topic = self._topic
        number, tag, at = _number(partition, topic, self._look), tag_of(topic.id), position
        consumer = self._consumers.of(number)
        self.requests["read"] += 1
        if not consumer.stands_at(number, at.next_sequence) or not _of(at, tag):
            topic = self._look()
            tag = tag_of(topic.id)
            self._require_kept(number, at, tag)
        for _ in range(OUT_OF_RANGE_TRIES):
            try:
                messages, after = consumer.take(
                    number, at.next_sequence, max_events, lambda: self._end(number, at, tag)
                )
                break
            except OutOfRange:
                self._require_kept(number, at, tag_of(self._look().id))
        else:
            raise FeedUnavailable(f"{self._client.settings.where}: its bounds keep moving")
        if not messages:
            return Batch(next=at if after == at.next_sequence else position_at(after, tag))
        arrow = to_arrow(messages, tag)
        return Batch(
            events=ArrowEvents(arrow, str(partition)),
            next=position_at(after, tag),
            size_bytes=int(arrow.get_total_buffer_size()),
        )

    def _extents(self) -> Sequence[Extent]:
        """``extents`` without waiting for a loop. When the newest event came is not told: the
        broker would have to search for it."""
        return [
            Extent(partition=str(number), first=first, end=end)
            for number, (first, end) in self._kept(range(self._look().partitions)).items()
        ]

    def _ends(self) -> Mapping[str, Checkpoint]:
        """``ends`` without waiting for a loop."""
        topic = self._look()
        ends = self._client.ends(range(topic.partitions))
        return {str(number): position_at(end, tag_of(topic.id)) for number, end in ends.items()}

    def _times_at(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, float | PositionGone]:
        """``event_times`` without waiting for a loop."""
        topic = self._look()
        numbered = {_number(partition, topic): at for partition, at in positions.items()}
        found: dict[str, float | PositionGone] = {}
        ahead: dict[int, int] = {}
        for number, kept in self._kept_for(numbered).items():
            position, tag = numbered[number], tag_of(topic.id)
            if reason := why_gone(position, kept, tag):
                found[str(number)] = gone(self.name, number, position, reason, kept=kept, tag=tag)
            elif position.next_sequence < kept.end:
                ahead[number] = position.next_sequence
        return found | {str(number): at for number, at in self._times.of(ahead).items()}

    def read_columns(self, ranges: Sequence[Range]) -> Iterator[EventChunk]:
        before = self.identity
        topic = self._look()
        if self.identity != before:
            raise FeedUnavailable(f"{self._client.settings.where} was recreated meanwhile")
        tag = tag_of(topic.id)
        wanted = {_number(each.partition, topic): each for each in ranges}
        firsts = self._client.firsts(wanted)
        for each in ranges:
            if len(each) and each.first < firsts[int(each.partition)]:
                self._require_kept(int(each.partition), Checkpoint(next_sequence=each.first), tag)
        try:
            yield from self._ranges.chunks(ranges, tag)
        except OutOfRange:
            for each in ranges:
                self._require_kept(int(each.partition), Checkpoint(next_sequence=each.first), tag)
            raise FeedUnavailable(f"{self._client.settings.where}: its bounds have moved") from None

    def _mirror_now(self, group: str, positions: Mapping[str, Checkpoint]) -> Mapping[str, str]:
        """``mirror`` without waiting for a loop."""
        refused = self._client.commit(
            group, {int(partition): at.next_sequence for partition, at in positions.items()}
        )
        return {str(number): why for number, why in refused.items()}

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(id=number) for number in await self._asking.run(self._partition_ids)]

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._asking.run(self._position_of, partition, start)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        return await self._reading.run(self._read_batch, partition, position, max_events)

    async def extents(self) -> Sequence[Extent]:
        return await self._asking.run(self._extents)

    async def ends(self) -> Mapping[str, Checkpoint]:
        return await self._asking.run(self._ends)

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return await self._asking.run(self._times_at, positions)

    async def mirror(self, group: str, positions: Mapping[str, Checkpoint]) -> Mapping[str, str]:
        """Have Kafka keep the same positions for its consumer group of that name."""
        return await self._asking.run(self._mirror_now, group, positions)

    def close(self) -> None:
        """Free the connections and the threads."""
        with self._lock:
            self._client.close()
        self._reading.close()
        self._asking.close()
        self._consumers.close()
        self._ranges.close()
        self._times.close()
        self._client.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process connects for itself."""
        return type(self).from_url, (self.address,)

    def __repr__(self) -> str:
        return f"KafkaFeed({self.address})"

    def _look(self) -> Topic:
        """The topic as it is now. What was read of one that is gone is forgotten."""
        found = self._client.topic()
        with self._lock:
            changed = found.id != self._topic.id
            self._topic = found
        if changed:
            self._consumers.forget()
        return found

    def _kept(self, numbers: Sequence[int] | Mapping[int, Any]) -> dict[int, Kept]:
        firsts, ends = self._client.firsts(numbers), self._client.ends(numbers)
        # An end that was asked for later may lie behind what retention removed in between.
        return {number: Kept(first, max(first, ends[number])) for number, first in firsts.items()}

    def _kept_for(self, positions: Mapping[int, Checkpoint]) -> dict[int, Kept]:
        """The same. Who reads uncommitted events may have been behind the end of the others."""
        kept = self._kept(positions)
        ahead = [p for p, each in kept.items() if positions[p].next_sequence > each.end]
        for number, end in self._client.written_ends(ahead).items():
            kept[number] = kept[number]._replace(end=max(kept[number].end, end))
        return kept

    def _require_kept(self, number: int, position: Checkpoint, tag: str) -> None:
        kept = self._kept_for({number: position})[number]
        if reason := why_gone(position, kept, tag):
            raise gone(self.name, number, position, reason, kept=kept, tag=tag)

    def _end(self, number: int, position: Checkpoint, tag: str) -> int:
        """Asked whenever a read finds nothing at hand, so what is not there is noticed here."""
        end = self._client.ends([number])[number]
        if position.next_sequence > end:
            self._require_kept(number, position, tag)
        return end

    def _at(self, number: int, position: Checkpoint, tag: str) -> Checkpoint:
        self._require_kept(number, position, tag)
        return position_at(position.next_sequence, tag)

    def _at_committed(self, number: int, group: str, topic: Topic) -> Checkpoint:
        """Where the group has committed nothing in this partition: its beginning, as nothing may be
        left out."""
        committed = self._client.committed(group, range(topic.partitions))
        if not committed:
            raise BadInput(
                f"start 'committed:{group}': the consumer group {group} has committed no offsets "
                f"in {self._client.settings.where}; check its name, or give another start"
            )
        tag = tag_of(topic.id)
        if number not in committed:
            return position_at(self._client.firsts([number])[number], tag)
        position = position_at(committed[number], tag)
        if position.next_sequence >= self._client.firsts([number])[number]:
            self._require_kept(number, position, tag)
        return position  # if retention has overtaken the group, whoever reads there is told


def _of(position: Checkpoint, tag: str) -> bool:
    return position.token.partition("@")[2] == tag


def _number(partition: str | int, topic: Topic, look: Callable[[], Topic] | None = None) -> int:
    """``look``: whom to ask before a partition is unknown; topics grow."""
    text = str(partition)
    known = text.isascii() and text.isdigit() and str(int(text)) == text
    if known and int(text) >= topic.partitions and look is not None:
        topic = look()
    if not known or int(text) >= topic.partitions:
        raise BadInput(f"partition {partition!r} is unknown: there are 0 to {topic.partitions - 1}")
    return int(text)
