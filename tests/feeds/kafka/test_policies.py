"""What Kafka can do and other feeds cannot: each has a policy, written down in
docs/how-to/kafka.md."""

import asyncio
import ctypes
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.blocking import result_of
from support.kafka import Kafka

from leasehold.core.event import Event, EventData
from leasehold.core.model import Checkpoint
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds.kafka import KafkaFeed, KafkaSender, consumers
from leasehold.feeds.kafka.consumers import CONSUMERS

BOUND_S = 60.0


@pytest.fixture
def opened(kafka: Kafka) -> Iterator[Callable[..., KafkaFeed]]:
    feeds: list[KafkaFeed] = []

    def open(topic: str, **settings: str) -> KafkaFeed:
        feeds.append(KafkaFeed.from_url(kafka.url(topic, **settings)))
        return feeds[-1]

    yield open
    for feed in feeds:
        feed.close()


def produce(server: Kafka, topic: str, *messages: dict[str, Any], **config: Any) -> None:
    producer = Producer({"bootstrap.servers": server.brokers, "log_level": 2, **config})
    for message in messages:
        producer.produce(topic, **{"partition": 0, **message})
    assert producer.flush(BOUND_S) == 0


def read_all(feed: KafkaFeed, partition: str = "0") -> tuple[list[Event], Checkpoint]:
    position = result_of(feed.locate(partition, "earliest"))
    events: list[Event] = []
    while True:
        batch = result_of(feed.read(partition, position, 100))
        events += batch.events
        if not len(batch.events) and batch.next == position:
            return events, position
        position = batch.next


def rows(feed: KafkaFeed, names: Sequence[str]) -> list[tuple[Any, ...]]:
    ranges = [
        Range(partition=e.partition, first=e.first, end=e.end) for e in result_of(feed.extents())
    ]
    return [
        tuple(row.values())
        for chunk in feed.read_columns(ranges)
        for row in chunk.columns(names).to_pylist()
    ]


def test_a_closed_feed_keeps_no_connection_although_somebody_still_has_it(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    topic = kafka.topic()
    warm = opened(topic)
    read_all(warm)
    warm.close()
    before = threads()
    feeds = [opened(topic) for _ in range(3)]
    for feed in feeds:
        read_all(feed)
    each = (threads() - before) // len(feeds)
    assert each > 0
    for feed in feeds:
        feed.close()
    until(lambda: threads() < before + each)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_tombstone_has_an_empty_body_and_says_so(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic()
    produce(kafka, topic, {"key": b"a", "value": None}, {"key": b"b", "value": b""})
    feed = opened(topic)
    first, second = read_all(feed)[0]
    assert (first.body, first.properties) == (b"", {"kafka-tombstone": True})
    assert (second.body, second.properties) == (b"", {})
    assert rows(feed, ["body", "partition_key"]) == [(None, "a"), (b"", "b")]


def test_of_headers_with_one_name_the_last_counts_and_bytes_are_base64(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic()
    headers = [("a", b"1"), ("b", b"\xff\x00"), ("a", b"2"), ("c", None), ("d", "\u00e9".encode())]
    produce(kafka, topic, {"value": b"x", "headers": headers})
    (event,) = read_all(opened(topic))[0]
    assert event.properties == {"b;base64": "/wA=", "a": "2", "c": None, "d": "\u00e9"}


def test_a_header_whose_name_is_no_text_costs_the_headers_and_not_the_partition(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic()
    many = 100  # so that Python takes the shortest way to them
    produce(kafka, topic, *[{"value": b"before", "headers": [("a", b"1")]}] * many)
    produce_with_header(kafka, topic, b"body", b"\xff\xfe")
    produce(kafka, topic, {"value": b"after"})
    events, _ = read_all(opened(topic))
    assert [(event.body, dict(event.properties)) for event in events] == [
        *[(b"before", {"a": "1"})] * many,
        (b"body", {"kafka-headers-unreadable": True}),
        (b"after", {}),
    ]


def produce_with_header(server: Kafka, topic: str, value: bytes, name: bytes) -> None:
    """As a producer of another language may do; Python's takes text only."""
    with open("/proc/self/maps") as maps:
        (path, *_) = {line.split()[-1] for line in maps if "librdkafka" in line}
    library, said = ctypes.CDLL(path), ctypes.create_string_buffer(512)
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    config = ctypes.c_void_p(library.rd_kafka_conf_new())
    brokers = server.brokers.encode()
    assert library.rd_kafka_conf_set(config, b"bootstrap.servers", brokers, said, 512) == 0
    producer = ctypes.c_void_p(library.rd_kafka_new(0, config, said, 512))
    text, size = ctypes.c_char_p, ctypes.c_size_t
    body, header = (text(value), size(len(value))), (text(name), text(b"v"), size(1))
    # Its arguments: topic, partition, flags (2: copy), value, header, and the end.
    told = (1, text(topic.encode()), 3, ctypes.c_int32(0), 7, 2, 4, *body, 9, *header, 0)
    assert library.rd_kafka_producev(producer, *told) == 0
    assert library.rd_kafka_flush(producer, int(1000 * BOUND_S)) == 0
    library.rd_kafka_destroy(producer)


def test_a_key_that_is_no_text_is_a_property(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic()
    produce(kafka, topic, *({"key": key, "value": b"x"} for key in (b"\xff\xfe", b"t", b"", None)))
    events, _ = read_all(opened(topic))
    assert [event.partition_key for event in events] == [None, "t", "", None]
    assert [dict(event.properties) for event in events] == [
        {"kafka-key;base64": "//4="},
        {},
        {},
        {},
    ]


def test_a_sender_gives_back_their_form_to_what_had_no_place(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic, copy = kafka.topic(), kafka.topic()
    produce(
        kafka,
        topic,
        {"key": b"\xff", "value": None},
        {"key": b"k", "value": b"v", "headers": [("h", b"\xfe"), ("n", None)]},
    )
    events, _ = read_all(opened(topic))
    with KafkaSender.from_url(kafka.url(copy)) as sender:
        for event in events:
            data = EventData(event.body, event.properties)
            if event.partition_key is None:
                sender.send(data, partition_id=0)
            else:
                sender.send_columns([event.partition_key], [event.body], None, partition_id=0)
                sender.send(data, partition_id=0)
    again, _ = read_all(opened(copy))
    assert again[0].properties == events[0].properties
    assert (again[1].partition_key, again[1].body) == ("k", b"v")
    assert again[2].properties == events[1].properties


def test_events_are_sent_as_large_as_the_topic_takes_them(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    """A dead letter may be as large as that, and must get back to its topic."""
    body = os.urandom(2_000_000)
    topic = kafka.topic(max_message_bytes=5_000_000)
    with KafkaSender.from_url(kafka.url(topic)) as sender:
        sender.send(EventData(body), partition_id=0)
    assert [event.body for event in read_all(opened(topic))[0]] == [body]


def test_small_events_go_into_a_topic_that_takes_small_batches_only(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic(max_message_bytes=20_000)
    bodies = [os.urandom(100) for _ in range(2_000)]
    with KafkaSender.from_url(kafka.url(topic)) as sender:
        sender.send_columns(None, bodies, partition_id=0)
        # And where one of several is too large, none is sent.
        with pytest.raises(BadInput, match="an event of 30,000 bytes is larger"):
            sender.send_columns(None, [b"x", os.urandom(30_000)], partition_id=0)
    assert [event.body for event in read_all(opened(topic))[0]] == bodies


def test_times_are_what_producers_wrote_within_what_a_date_can_be(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    far = 9 * 10**15
    topic = kafka.topic(message_timestamp_after_max_ms=9 * 10**18)
    stamps = [1_000, far, 500, 2_000]
    produce(kafka, topic, *({"value": b"x", "timestamp": stamp} for stamp in stamps))
    feed = opened(topic)
    events, end = read_all(feed)
    assert [event.enqueued_at for event in events] == [
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
    ]
    # Out of order, a start by time is where Kafka finds the first one that is not older.
    assert result_of(feed.locate("0", "time:1970-01-01T00:00:01.5Z")).next_sequence == 1
    assert result_of(feed.locate("0", "time:9999-12-31T00:00:00Z")).next_sequence == 1
    assert asyncio.run(feed.event_times({"0": Checkpoint(next_sequence=2)})) == {"0": 0.5}
    assert asyncio.run(feed.event_times({"0": end})) == {}


def test_a_start_by_time_leaves_out_nothing_that_comes_while_it_is_found(
    kafka: Kafka, opened: Callable[..., KafkaFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic(message_timestamp_after_max_ms=9 * 10**18)
    produce(kafka, topic, {"value": b"old"})
    feed = opened(topic)
    plain = feed._client.at_times

    def found(partition: int, unix_ms: int) -> int | None:
        answer = plain(partition, unix_ms)
        produce(kafka, topic, {"value": b"new", "timestamp": unix_ms})
        return answer

    monkeypatch.setattr(feed._client, "at_times", found)
    position = result_of(feed.locate("0", "time:2100-01-01T00:00:00Z"))
    (event,) = result_of(feed.read("0", position, 10)).events
    assert event.body == b"new"


def test_only_committed_transactions_are_read_and_what_was_aborted_is_passed(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic()
    feed, everything = opened(topic), opened(topic, isolation_level="read_uncommitted")
    producer = Producer(
        {"bootstrap.servers": kafka.brokers, "log_level": 2, "transactional.id": topic}
    )
    producer.init_transactions(BOUND_S)
    for bodies, commit in (((b"a", b"b"), True), ((b"lost",), False), ((b"c",), True)):
        producer.begin_transaction()
        for body in bodies:
            producer.produce(topic, body, partition=0)
        assert producer.flush(BOUND_S) == 0
        if commit:
            producer.commit_transaction(BOUND_S)
        else:
            producer.abort_transaction(BOUND_S)
    # The broker says that a transaction has ended before it has written the mark of it.
    until(lambda: result_of(feed.extents())[0].end == 7)
    events, end = read_all(feed)
    assert [event.body for event in events] == [b"a", b"b", b"c"]
    # Each transaction ends with a mark, which has an offset of its own: the end is behind it.
    assert (
        end.next_sequence
        == result_of(feed.extents())[0].end
        == 7
        == result_of(feed.ends())["0"].next_sequence
    )
    assert [row[0] for row in rows(feed, ["sequence"])] == [0, 1, 5]
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(BOUND_S) == 0
    assert read_all(feed)[1] == end
    assert [event.body for event in read_all(everything)[0]][-1] == b"open"
    producer.abort_transaction(BOUND_S)
    until(lambda: read_all(feed)[1].next_sequence == 9)
    assert rows(feed, ["body"]) == [(b"a",), (b"b",), (b"c",)]


def test_a_compacted_topic_is_read_with_its_gaps(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic(cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio="0.001")
    feed = opened(topic)
    numbers = iter(range(10**6))

    def compacted() -> bool:
        """A segment is closed by the first message after its time, and compacted after that."""
        produce(kafka, topic, *({"key": b"k", "value": b"%d" % next(numbers)} for _ in range(3)))
        return read_all(feed)[0][0].sequence > 0

    until(compacted)
    while True:
        events, end = read_all(feed)
        first = result_of(feed.extents())[0].first
        rest = result_of(feed.read("0", Checkpoint(next_sequence=1), 1))
        sequences = [row[0] for row in rows(feed, ["sequence"])]
        # The broker may compact again between two looks, until nothing is left to take away.
        if read_all(feed)[0] == events:
            break
    assert len(events) < end.next_sequence
    assert first == 0
    # A position in a gap is good, and leads to what comes after it.
    assert rest.events[0] == events[0]
    assert rest.next.next_sequence == events[0].sequence + 1
    assert sequences == [event.sequence for event in events]


def test_what_retention_takes_from_a_reader_is_said_to_be_gone(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic(segment_ms=100, retention_ms=1)
    feed = opened(topic)
    produce(kafka, topic, *({"value": b"%d" % n} for n in range(5)))
    start = Checkpoint(next_sequence=0)

    def removed() -> bool:
        produce(kafka, topic, {"value": b"newer"})
        return result_of(feed.extents())[0].first > 0

    until(removed)
    with pytest.raises(PositionGone, match="its events were removed") as caught:
        result_of(feed.read("0", start, 10))
    assert caught.value.reason == "retention"


def test_a_topic_that_was_recreated_is_another_feed(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic()
    produce(kafka, topic, *({"value": b"old %d" % n} for n in range(3)))
    feed = opened(topic)
    old, identity = read_all(feed)[1], feed.identity
    kafka.admin.delete_topics([topic])[topic].result(BOUND_S)
    until(lambda: topic not in kafka.admin.list_topics(timeout=BOUND_S).topics)
    kafka.topic(name=topic)
    # More than there were, so that no offset gives it away.
    produce(kafka, topic, *({"value": b"new %d" % n} for n in range(5)))
    with pytest.raises(FeedUnavailable, match="was recreated meanwhile"):
        list(feed.read_columns([Range(partition="0", first=0, end=3)]))
    with pytest.raises(PositionGone, match="deleted and created again") as caught:
        result_of(feed.read("0", old, 10))
    assert caught.value.reason == "other feed"
    rest = result_of(feed.read("0", caught.value.resume, 10))
    assert [event.body for event in rest.events] == [b"new %d" % n for n in range(5)]
    assert feed.identity != identity
    assert opened(topic).identity == feed.identity
    (told,) = asyncio.run(feed.event_times({"0": old})).values()
    assert isinstance(told, PositionGone)


def test_many_partitions_share_few_consumers(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    partitions = 3 * CONSUMERS
    topic = kafka.topic(partitions=partitions)
    before = len(os.listdir("/proc/self/task"))
    for number in range(partitions):
        produce(kafka, topic, *({"value": b"%d" % n, "partition": number} for n in range(2)))
    feed = opened(topic)

    async def read(partition: str) -> list[bytes]:
        position, bodies = await feed.locate(partition, "earliest"), []
        while len((batch := await feed.read(partition, position, 1)).events):
            bodies += [event.body for event in batch.events]
            position = batch.next
        return bodies

    async def read_all_at_once() -> list[list[bytes]]:
        return await asyncio.gather(*(read(str(number)) for number in range(partitions)))

    assert asyncio.run(read_all_at_once()) == [[b"0", b"1"]] * partitions
    # A consumer of its own for each would have four threads each.
    assert len(os.listdir("/proc/self/task")) - before < 4 * partitions


def test_reads_from_anywhere_at_once_give_what_is_there(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    """Several partitions of one consumer, each sent back and forth while others are polled."""
    topic = kafka.topic(partitions=2 * CONSUMERS + 1)
    partitions, events = ("0", str(CONSUMERS), str(2 * CONSUMERS)), 40
    for partition in partitions:
        produce(
            kafka, topic, *({"value": b"x", "partition": int(partition)} for _ in range(events))
        )
    feed = opened(topic)
    chance = random.Random(7)

    async def read(partition: str, at: int) -> None:
        found = await feed.read(partition, Checkpoint(next_sequence=at), 5)
        sequences = [event.sequence for event in found.events]
        assert sequences == list(range(at, min(at + len(sequences), events)))
        assert found.next.next_sequence == at + len(sequences)
        assert sequences or at == events

    async def read_many() -> None:
        for _ in range(10):
            await asyncio.gather(
                *(read(chance.choice(partitions), chance.randrange(events + 1)) for _ in range(12))
            )

    asyncio.run(read_many())


def test_a_partition_that_was_paused_is_read_on_wherever_it_is_sent(
    kafka: Kafka, opened: Callable[..., KafkaFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or after nobody had read it for a while."""
    monkeypatch.setattr(consumers, "BUFFER_MESSAGES", 10)
    topic = kafka.topic()
    produce(kafka, topic, *({"value": b"x"} for _ in range(100)))
    feed = opened(topic)

    def read(at: int) -> tuple[list[int], bool]:
        batch = result_of(feed.read("0", Checkpoint(next_sequence=at), 3))
        paused = feed._consumers.of(0)._cursors[0].paused
        return [event.sequence for event in batch.events], paused

    assert read(0) == ([0, 1, 2], True)
    assert read(50) == ([50, 51, 52], True)
    monkeypatch.setattr(consumers, "RESTING_S", -1.0)
    feed._consumers.rest()
    assert read(53) == ([53, 54, 55], True)


def test_a_partition_that_the_library_lost_track_of_is_begun_again(
    kafka: Kafka, opened: Callable[..., KafkaFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after some outages of brokers, when it fetches all others, and says nothing. But not at
    once: it may be slow only."""
    monkeypatch.setattr(consumers, "LATE_TRIES", 2)
    topic = kafka.topic()
    produce(kafka, topic, *({"value": b"x"} for _ in range(10)))
    feed = opened(topic, timeout_s="0.5")

    def read(at: int) -> list[int]:
        batch = result_of(feed.read("0", Checkpoint(next_sequence=at), 10))
        return [event.sequence for event in batch.events]

    assert read(0) == list(range(10))
    consumer = feed._consumers.of(0)
    consumer._consumer.pause([TopicPartition(topic, 0)])
    produce(kafka, topic, *({"value": b"x"} for _ in range(10)))
    begun_again = []
    for _ in range(2):
        with pytest.raises(FeedUnavailable, match="although it is there"):
            read(10)
        begun_again.append(0 not in consumer._cursors)
    assert begun_again == [False, True]
    assert read(10) == list(range(10, 20))


def test_the_longer_nothing_comes_the_longer_it_is_waited_for(
    kafka: Kafka, opened: Callable[..., KafkaFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large message over a slow link: begun again and again, it would never come."""
    monkeypatch.setattr(consumers, "LATE_TRIES", 1)
    monkeypatch.setattr(consumers, "TRIES_MAX", 8)
    topic = kafka.topic()
    produce(kafka, topic, *({"value": b"x"} for _ in range(10)))
    feed = opened(topic, timeout_s="0.1")
    consumer = feed._consumers.of(0)
    begun_again = []
    for number in range(1, 25):
        consumer._at(0, 3)
        consumer._consumer.pause([TopicPartition(topic, 0)])
        with pytest.raises(FeedUnavailable, match="although it is there"):
            consumer.take(0, 3, 10, lambda: 10)
        if 0 not in consumer._cursors:
            begun_again.append(number)
    assert begun_again == [1, 5, 13, 21]


def test_what_a_consumer_group_commits_in_a_transaction_is_waited_for(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    topic = kafka.topic(partitions=1)
    produce(kafka, topic, *({"value": b"x"} for _ in range(20)))
    config = {"bootstrap.servers": kafka.brokers, "log_level": 2}
    consumer = Consumer(config | {"group.id": topic, "enable.auto.commit": False})
    consumer.subscribe([topic])
    producer = Producer(config | {"transactional.id": topic})
    producer.init_transactions(BOUND_S)

    def commit(offset: int) -> None:
        until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
        place, group = TopicPartition(topic, 0, offset), consumer.consumer_group_metadata()
        producer.begin_transaction()
        producer.send_offsets_to_transaction([place], group, BOUND_S)

    commit(5)
    producer.commit_transaction(BOUND_S)
    commit(15)
    feed, start = opened(topic), f"committed:{topic}"
    # Where it was before would be done again once the transaction has ended.
    with pytest.raises(FeedUnavailable, match="unstable offsets"):
        result_of(feed.locate("0", start))
    producer.commit_transaction(BOUND_S)

    def committed() -> bool:  # the broker may take a moment
        try:
            return result_of(feed.locate("0", start)).next_sequence == 15
        except FeedUnavailable:
            return False

    until(committed)
    consumer.close()


def test_a_group_that_was_ahead_of_an_open_transaction_is_gone_on_with(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    """Most consumers read what is not committed yet."""
    topic = kafka.topic(partitions=1)
    feed = opened(topic)
    config = {"bootstrap.servers": kafka.brokers, "log_level": 2}
    producer = Producer(config | {"transactional.id": topic})
    producer.init_transactions(BOUND_S)
    producer.begin_transaction()
    for number in range(4):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(BOUND_S) == 0
    assert result_of(feed.mirror(topic, {"0": Checkpoint(next_sequence=3)})) == {}
    position = result_of(feed.locate("0", f"committed:{topic}"))
    batch = result_of(feed.read("0", position, 10))
    assert (len(batch.events), batch.next) == (0, position)
    assert result_of(feed.event_times({"0": position})) == {}
    producer.commit_transaction(BOUND_S)
    until = time.monotonic() + BOUND_S
    while not len(batch.events) and time.monotonic() < until:  # the broker may take a moment
        batch = result_of(feed.read("0", position, 10))
    assert [event.body for event in batch.events] == [b"3"]


def test_who_reads_on_is_told_that_retention_has_overtaken_the_consumer_group(
    kafka: Kafka, opened: Callable[..., KafkaFeed]
) -> None:
    """The other partitions can be begun all the same."""
    topic = kafka.topic(partitions=1)
    feed = opened(topic)
    produce(kafka, topic, *({"value": b"%d" % n} for n in range(5)))
    assert result_of(feed.mirror(topic, {"0": Checkpoint(next_sequence=1)})) == {}
    removed = kafka.admin.delete_records([TopicPartition(topic, 0, 3)])
    next(iter(removed.values())).result(BOUND_S)
    position = result_of(feed.locate("0", f"committed:{topic}"))
    assert position.next_sequence == 1
    with pytest.raises(PositionGone, match="its events were removed") as caught:
        result_of(feed.read("0", position, 10))
    rest = result_of(feed.read("0", caught.value.resume, 10))
    assert [event.body for event in rest.events] == [b"3", b"4"]
