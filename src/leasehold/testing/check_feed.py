"""What every feed must do. A feed is done when all of these pass.

``CHECKS`` lists the rules one by one, so that a test runner can report each by name;
``check_feed`` runs them all. A check gets a function that makes a new, empty feed with at least two
partitions. ``RETENTION_CHECKS`` are for feeds whose old events a test can remove, and
``GROWTH_CHECKS`` for feeds whose partitions can become more. ``check_feed_faults`` has more rules,
and ``check_columns`` those for feeds that Spark can read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from leasehold.core.model import Checkpoint
from leasehold.core.start import AtSequence
from leasehold.errors import BadInput, PositionGone
from leasehold.ports import Feed, TellsEnds
from leasehold.testing.check_columns import (
    COLUMN_CHECKS,
    COLUMN_RETENTION_CHECKS,
    COLUMN_ROLLBACK_CHECKS,
)
from leasehold.testing.check_feed_faults import CLOCK_CHECKS, CLOSE_CHECKS, ROLLBACK_CHECKS
from leasehold.testing.run_check import run_check


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedUnderTest:
    """A feed and the means to fill it."""

    feed: Feed
    send: Callable[[str, Sequence[bytes]], Awaitable[None]]
    """Append events with these bodies to a partition, as one batch."""
    open_again: Callable[[], Awaitable[Feed]]
    """The same feed as another process would see it."""
    forget: Callable[[str, int], Awaitable[None]] | None = None
    """Remove a partition's batches that end before a sequence number."""
    add_partition: Callable[[], Awaitable[None]] | None = None
    copy: Callable[[], Awaitable[Callable[[], Awaitable[FeedUnderTest]]]] | None = None
    """Copy the storage as it is now. What comes of it closes the feed, puts the copy in its place
    and opens it again, as after a restart."""
    step_clock: Callable[[float], Awaitable[None]] | None = None
    """Set the wall clock of those who write by so many seconds."""
    sent: Callable[[Any], bytes] = attrgetter("body")
    """What was sent, from the event that came of it; a feed may hold it in a form of its own."""
    secrets: Sequence[str] = ()
    """What the feed connects with and nobody may see."""
    tells_whole_seconds: bool = False
    """Of its events' times. An event of the second that a start names may be before or after it, so
    it must not be skipped."""
    close: Callable[[], Awaitable[None]] | None = None


LOOKS = 10
MakeFeed = Callable[[], Awaitable[FeedUnderTest]]
Check = Callable[[FeedUnderTest], Awaitable[None]]

CHECKS: list[Check] = []
RETENTION_CHECKS: list[Check] = []
GROWTH_CHECKS: list[Check] = []


def check(rule: Check) -> Check:
    CHECKS.append(rule)
    return rule


async def check_feed(
    make: MakeFeed,
    *,
    retention: bool = True,
    growth: bool = True,
    rollback: bool = True,
    clock: bool = True,
    columns: bool = True,
) -> None:
    """Leave out what a test cannot do to the feed, and ``columns`` if Spark cannot read it."""
    rules = CHECKS + CLOSE_CHECKS + RETENTION_CHECKS * retention + GROWTH_CHECKS * growth
    rules += ROLLBACK_CHECKS * rollback + CLOCK_CHECKS * clock
    if columns:
        rules += COLUMN_CHECKS + COLUMN_RETENTION_CHECKS * retention
        rules += COLUMN_ROLLBACK_CHECKS * rollback
    for rule in rules:
        await run_check(rule, make)


@check
async def partitions_are_at_least_two_and_named_apart(subject: FeedUnderTest) -> None:
    ids = await _partitions(subject)
    assert len(ids) >= 2
    assert len(set(ids)) == len(ids)
    assert await _partitions(subject) == ids


@check
async def an_empty_partition_gives_no_events_and_stays_where_it_is(subject: FeedUnderTest) -> None:
    for partition in await _partitions(subject):
        start = await subject.feed.locate(partition, "earliest")
        batch = await subject.feed.read(partition, start, 10)
        assert len(batch.events) == 0
        assert batch.next == start
        assert not batch.children
        assert await subject.feed.locate(partition, "latest") == start


@check
async def events_come_back_in_the_order_of_sending(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 5))
    await subject.send(partition, _bodies(5, 12))
    events, _ = await _read_all(subject.feed, partition)
    assert _sent(subject, events) == _bodies(0, 12)
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences))
    times = [event.enqueued_at for event in events]
    assert times == sorted(times)
    assert all(time.tzinfo is not None for time in times)
    assert {event.partition for event in events} == {partition}


@check
async def any_bytes_may_be_a_body(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    bodies = [b"x", bytes(range(256)), "h\u00e9\u4e16".encode(), b"\x00" * 1000, b"y" * 50_000]
    await subject.send(partition, bodies)
    events, _ = await _read_all(subject.feed, partition)
    assert _sent(subject, events) == bodies


@check
async def partitions_do_not_mix(subject: FeedUnderTest) -> None:
    first, second, *_ = await _partitions(subject)
    await subject.send(first, [b"a1", b"a2"])
    await subject.send(second, [b"b1"])
    await subject.send(first, [b"a3"])
    assert _sent(subject, (await _read_all(subject.feed, first))[0]) == [b"a1", b"a2", b"a3"]
    assert _sent(subject, (await _read_all(subject.feed, second))[0]) == [b"b1"]


@check
async def a_read_keeps_to_max_events_and_a_chain_of_reads_misses_none(
    subject: FeedUnderTest,
) -> None:
    partition = (await _partitions(subject))[0]
    for first in (0, 7, 8, 30):
        await subject.send(partition, _bodies(first, {0: 7, 7: 8, 8: 30, 30: 41}[first]))
    for max_events in (1, 3, 7, 40, 1000):
        events, _ = await _read_all(subject.feed, partition, max_events)
        assert _sent(subject, events) == _bodies(0, 41)


@check
async def the_same_position_gives_the_same_events_again(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 20))
    start = await subject.feed.locate(partition, "earliest")
    middle = (await subject.feed.read(partition, start, 8)).next
    once = await subject.feed.read(partition, middle, 5)
    assert _sent(subject, once.events) == _bodies(8, 13)
    await subject.feed.read(partition, start, 20)
    again = await subject.feed.read(partition, middle, 5)
    assert list(again.events) == list(once.events)
    assert again.next == once.next


@check
async def any_event_can_be_checkpointed_by_its_sequence_and_offset(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 4))
    await subject.send(partition, _bodies(4, 9))
    events, end = await _read_all(subject.feed, partition)
    for place, event in enumerate(events):
        after = Checkpoint(next_sequence=event.sequence + 1, token=event.offset)
        rest, _ = await _read_all(subject.feed, partition, start=after)
        assert rest == events[place + 1 :]
    assert end == Checkpoint(next_sequence=events[-1].sequence + 1, token=events[-1].offset)


@check
async def events_can_be_indexed_and_cut_like_a_list(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 9))
    start = await subject.feed.locate(partition, "earliest")
    events = (await subject.feed.read(partition, start, 9)).events
    everything = list(events)
    assert events[0] == everything[0]
    assert events[-1] == everything[-1]
    assert list(events[:4]) + list(events[4:]) == everything
    assert len(events[4:]) == 5


@check
async def latest_means_only_what_comes_later(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 3))
    start = await subject.feed.locate(partition, "latest")
    assert len((await subject.feed.read(partition, start, 10)).events) == 0
    await subject.send(partition, _bodies(3, 5))
    events, _ = await _read_all(subject.feed, partition, start=start)
    assert _sent(subject, events) == _bodies(3, 5)


@check
async def a_sequence_or_an_offset_begins_with_that_event(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 6))
    await subject.send(partition, _bodies(6, 11))
    events, end = await _read_all(subject.feed, partition)
    for place, event in enumerate(events):
        for start in (f"sequence:{event.sequence}", f"offset:{event.offset}"):
            position = await subject.feed.locate(partition, start)
            rest, _ = await _read_all(subject.feed, partition, start=position)
            assert rest == events[place:], start
    assert await subject.feed.locate(partition, end.next_sequence) == end


@check
async def a_time_begins_with_the_first_event_not_older(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    for number in range(4):
        await subject.send(partition, _bodies(number, number + 1))
        await asyncio.sleep(0.02)
    events, end = await _read_all(subject.feed, partition)
    moment = timedelta(microseconds=1)
    for wanted in [e.enqueued_at + d for e in events for d in (-moment, 0 * moment, moment)]:
        position = await subject.feed.locate(partition, wanted)
        rest, _ = await _read_all(subject.feed, partition, start=position)
        told = wanted.replace(microsecond=0) if subject.tells_whole_seconds else wanted
        assert rest == [event for event in events if event.enqueued_at >= told]
    assert await subject.feed.locate(partition, datetime(1970, 1, 2, tzinfo=UTC)) == (
        await subject.feed.locate(partition, "earliest")
    )
    later = events[-1].enqueued_at + timedelta(days=1)
    assert await subject.feed.locate(partition, later) == end


@check
async def a_start_that_means_nothing_is_refused(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    no_group = "committed:no-such-group"
    for start in ("yesterday", "sequence:-1", "time:noon", no_group, None, datetime(2026, 1, 1)):
        await _refused(subject.feed.locate(partition, start))


@check
async def an_unknown_partition_is_refused(subject: FeedUnderTest) -> None:
    await _refused(subject.feed.locate("no-such-partition", "earliest"))
    await _refused(subject.feed.read("no-such-partition", Checkpoint(next_sequence=0), 10))


@check
async def a_position_beyond_the_end_is_said_to_be_gone(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 3))
    end = await subject.feed.locate(partition, "latest")
    beyond = Checkpoint(next_sequence=end.next_sequence + 1000)
    gone = await _gone(subject.feed.read(partition, beyond, 10))
    assert gone.reason == "beyond end"
    assert (gone.partition, gone.position) == (partition, beyond)
    assert gone.latest == end
    assert gone.earliest == await subject.feed.locate(partition, "earliest")
    assert (await _gone(subject.feed.locate(partition, beyond.next_sequence))).latest == end


@check
async def ends_that_are_told_are_where_a_read_finds_nothing(subject: FeedUnderTest) -> None:
    feed = subject.feed
    if not isinstance(feed, TellsEnds):
        return
    before = await feed.ends()
    assert sorted(before) == sorted(await _partitions(subject))
    first = min(before)
    await subject.send(first, _bodies(0, 5))
    ends = await feed.ends()
    assert [partition for partition in ends if ends[partition] != before[partition]] == [first]
    for partition, end in ends.items():
        _, position = await _read_all(feed, partition)
        assert position == end
        assert (await feed.read(partition, end, 10)).next == end


@check
async def extents_tell_what_is_kept_and_when_the_newest_came(subject: FeedUnderTest) -> None:
    first, second, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 3))
    await subject.send(first, _bodies(3, 8))
    events, end = await _read_all(subject.feed, first)
    extents = {extent.partition: extent for extent in await subject.feed.extents()}
    assert list(extents) == await _partitions(subject)
    assert (extents[first].first, extents[first].end) == (events[0].sequence, end.next_sequence)
    last_enqueued_at = extents[first].last_enqueued_at
    assert last_enqueued_at is None or _same(last_enqueued_at, events[-1].enqueued_at)
    empty = await subject.feed.locate(second, "earliest")
    assert extents[second].first == extents[second].end == empty.next_sequence
    assert extents[second].last_enqueued_at is None


@check
async def event_times_are_those_of_the_events_or_left_out(subject: FeedUnderTest) -> None:
    first, second, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 3))
    await asyncio.sleep(0.02)
    await subject.send(first, _bodies(3, 8))
    events, end = await _read_all(subject.feed, first)
    other = await subject.feed.locate(second, "latest")
    before = await subject.feed.locate(first, "earliest")
    for event in events:
        unmarked = Checkpoint(next_sequence=event.sequence)
        for position in (before, unmarked):
            times = await subject.feed.event_times({first: position, second: other})
            assert set(times) <= {first}
            for time in times.values():
                assert isinstance(time, float)
                assert _same(time, event.enqueued_at)
        before = Checkpoint(next_sequence=event.sequence + 1, token=event.offset)
    assert await subject.feed.event_times({first: end}) == {}
    await _refused(subject.feed.event_times({"no-such-partition": end}))


@check
async def a_position_of_another_feed_has_no_time(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 3))
    end = await subject.feed.locate(partition, "latest")
    beyond = Checkpoint(next_sequence=end.next_sequence + 1000)
    for found in (await subject.feed.event_times({partition: beyond})).values():
        assert isinstance(found, PositionGone)
        assert (found.partition, found.position, found.reason) == (partition, beyond, "beyond end")


@check
async def another_reader_sees_the_same(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 6))
    other = await subject.open_again()
    assert (other.namespace, other.name) == (subject.feed.namespace, subject.feed.name)
    assert await _read_all(other, partition) == await _read_all(subject.feed, partition)
    await subject.send(partition, _bodies(6, 8))
    assert _sent(subject, (await _read_all(other, partition))[0]) == _bodies(0, 8)


@check
async def partitions_can_be_read_at_the_same_time(subject: FeedUnderTest) -> None:
    partitions = await _partitions(subject)
    for number, partition in enumerate(partitions):
        await subject.send(partition, _bodies(number, number + 30))
    found = await asyncio.gather(*(_read_all(subject.feed, p, 7) for p in partitions))
    for number, (events, _) in enumerate(found):
        assert _sent(subject, events) == _bodies(number, number + 30)


@check
async def a_position_looked_up_while_events_come_is_one_to_read_from(
    subject: FeedUnderTest,
) -> None:
    partition = (await _partitions(subject))[0]
    sent = 0
    for _ in range(LOOKS):
        (extent,) = [e for e in await subject.feed.extents() if e.partition == partition]
        sending = asyncio.ensure_future(subject.send(partition, _bodies(sent, sent + 2)))
        end = await subject.feed.locate(partition, AtSequence(extent.end))
        await sending
        sent += 2
        told = await subject.feed.event_times({partition: end})
        assert not isinstance(told.get(partition), PositionGone), told
        events, _ = await _read_all(subject.feed, partition, start=end)
        assert _sent(subject, events) == _bodies(sent - 2, sent)


@check
async def a_cancelled_read_does_no_harm(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 30))
    start = await subject.feed.locate(partition, "earliest")
    for _ in range(5):
        reading = asyncio.ensure_future(subject.feed.read(partition, start, 30))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
    events, _ = await _read_all(subject.feed, partition)
    assert _sent(subject, events) == _bodies(0, 30)


async def a_position_before_the_oldest_kept_event_is_said_to_be_gone(
    subject: FeedUnderTest,
) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 4))
    await subject.send(partition, _bodies(4, 9))
    events, end = await _read_all(subject.feed, partition)
    old = await subject.feed.locate(partition, "earliest")
    await _forget(subject, partition, events[4].sequence)
    gone = await _gone(subject.feed.read(partition, old, 10))
    assert gone.reason == "retention"
    assert gone.earliest == await subject.feed.locate(partition, "earliest")
    rest, _ = await _read_all(subject.feed, partition, start=gone.earliest)
    assert rest == events[4:]
    extents = {extent.partition: extent for extent in await subject.feed.extents()}
    assert (extents[partition].first, extents[partition].end) == (
        events[4].sequence,
        end.next_sequence,
    )
    for found in (await subject.feed.event_times({partition: old})).values():
        assert isinstance(found, PositionGone)
        assert found.reason == "retention"
    assert (await _gone(subject.feed.locate(partition, events[1].sequence))).reason == "retention"
    assert gone.latest == end


async def a_partition_of_which_nothing_is_kept_goes_on_at_its_end(subject: FeedUnderTest) -> None:
    partition = (await _partitions(subject))[0]
    await subject.send(partition, _bodies(0, 4))
    _, end = await _read_all(subject.feed, partition)
    await _forget(subject, partition, end.next_sequence)
    assert await subject.feed.locate(partition, "earliest") == end
    assert await subject.feed.locate(partition, datetime(1970, 1, 2, tzinfo=UTC)) == end
    await subject.send(partition, _bodies(4, 6))
    events, _ = await _read_all(subject.feed, partition, start=end)
    assert _sent(subject, events) == _bodies(4, 6)


async def a_new_partition_is_noticed_by_every_open_reader(subject: FeedUnderTest) -> None:
    before = await _partitions(subject)
    other = await subject.open_again()
    assert subject.add_partition is not None
    await subject.add_partition()
    after = await _partitions(subject)
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1
    assert [partition.id for partition in await other.partitions()] == after
    assert [extent.partition for extent in await other.extents()] == after
    await subject.send(after[-1], [b"new"])
    assert _sent(subject, (await _read_all(other, after[-1]))[0]) == [b"new"]


RETENTION_CHECKS += [
    a_position_before_the_oldest_kept_event_is_said_to_be_gone,
    a_partition_of_which_nothing_is_kept_goes_on_at_its_end,
]
GROWTH_CHECKS += [a_new_partition_is_noticed_by_every_open_reader]


def _bodies(first: int, stop: int) -> list[bytes]:
    """Of different lengths, so that offsets cannot be right by accident."""
    return [b"%d:" % number + b"." * (number * 7 % 31) for number in range(first, stop)]


def _sent(subject: FeedUnderTest, events: Sequence[Any]) -> list[bytes]:
    return [subject.sent(event) for event in events]


async def _partitions(subject: FeedUnderTest) -> list[str]:
    return [partition.id for partition in await subject.feed.partitions()]


async def _read_all(
    feed: Feed, partition: str, max_events: int = 1000, start: Checkpoint | None = None
) -> tuple[list[Any], Checkpoint]:
    position = start or await feed.locate(partition, "earliest")
    events: list[Any] = []
    while True:
        batch = await feed.read(partition, position, max_events)
        assert len(batch.events) <= max_events
        if not batch.events:
            assert batch.next == position
            return events, position
        assert batch.next.next_sequence > position.next_sequence
        events.extend(batch.events)
        position = batch.next


def _same(unix_time: float, time: datetime) -> bool:
    return abs(unix_time - time.timestamp()) < 1e-5


async def _forget(subject: FeedUnderTest, partition: str, sequence: int) -> None:
    assert subject.forget is not None
    await subject.forget(partition, sequence)


async def _refused(call: Awaitable[Any]) -> None:
    try:
        answer = await call
    except BadInput:
        return
    raise AssertionError(f"answered {answer!r} where BadInput was due")


async def _gone(call: Awaitable[Any]) -> PositionGone:
    try:
        answer = await call
    except PositionGone as gone:
        return gone
    raise AssertionError(f"answered {answer!r} where PositionGone was due")
