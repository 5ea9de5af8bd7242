"""What a feed that Spark can read must do besides: the rules of ``ColumnarFeed``.

These belong to ``check_feed``, which leaves them out for a feed that has no columns.
``COLUMN_RETENTION_CHECKS`` and ``COLUMN_ROLLBACK_CHECKS`` are for feeds whose old events a test can
remove, and whose storage it can put back.
"""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds import open_feed
from leasehold.ports import ColumnarFeed, TellsHistory

Check = Callable[[Any], Awaitable[None]]
"""Of a ``FeedUnderTest``, which ``check_feed`` has."""

COLUMN_CHECKS: list[Check] = []
COLUMN_RETENTION_CHECKS: list[Check] = []
COLUMN_ROLLBACK_CHECKS: list[Check] = []


def column_check(rule: Check) -> Check:
    COLUMN_CHECKS.append(rule)
    return rule


@column_check
async def its_address_opens_the_same_feed_elsewhere(subject: Any) -> None:
    feed = _columnar(subject)
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 7))
    address = pickle.loads(pickle.dumps(feed.address))
    assert isinstance(address, str)
    other = open_feed(address)
    try:
        assert isinstance(other, ColumnarFeed)
        assert (other.namespace, other.name, other.identity, other.address) == (
            feed.namespace,
            feed.name,
            feed.identity,
            feed.address,
        )
        assert (other.columns, other.has_gaps) == (feed.columns, feed.has_gaps)
        wanted = await _everything(other)
        assert _events(other, wanted) == _events(feed, wanted)
    finally:
        other.close()


@column_check
async def no_secret_is_in_its_address_or_in_how_it_is_shown(subject: Any) -> None:
    feed = _columnar(subject)
    for secret in subject.secrets:
        assert secret not in feed.address, "the address holds a secret"
        assert secret not in repr(feed), "its repr holds a secret"


@column_check
async def whoever_opens_it_sees_the_same_identity(subject: Any) -> None:
    other = await subject.open_again()
    assert other.identity == _columnar(subject).identity != ""


@column_check
async def its_columns_have_a_partition_a_sequence_and_a_body(subject: Any) -> None:
    columns = _columnar(subject).columns
    kinds = {field.name: str(field.type) for field in columns.schema}
    assert len(kinds) == len(columns.schema)
    assert (kinds[columns.partition], kinds[columns.sequence]) == ("string", "int64")
    assert kinds[columns.body] in ("binary", "string")


@column_check
async def columns_hold_what_a_plain_read_gives(subject: Any) -> None:
    feed = _columnar(subject)
    for number, partition in enumerate(await _partitions(subject)):
        await subject.send(partition, _bodies(number, 2 * number + 3))
        await subject.send(partition, _bodies(50, 55))
        events = await _read_all(feed, partition)
        (wanted,) = await _everything(feed, partition)
        assert _events(feed, [wanted]) == events
        assert _column(feed, [wanted], feed.columns.sequence) == [e.sequence for e in events]
        assert _column(feed, [wanted], feed.columns.partition) == [partition] * len(events)
        assert None not in _column(feed, [wanted], feed.columns.body)


@column_check
async def columns_come_as_asked_for_and_of_the_type_that_was_said(subject: Any) -> None:
    feed = _columnar(subject)
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 5))
    wanted = await _everything(feed, first)
    names = list(feed.columns.schema.names)
    for asked in (names, names[::-1], *([name] for name in names)):
        for chunk in feed.read_columns(wanted):
            got = chunk.columns(asked)
            assert got.num_rows == len(chunk)
            assert list(got.schema.names) == asked
            for field in got.schema:
                assert field.type == feed.columns.schema.field(field.name).type, field.name


@column_check
async def some_events_of_a_chunk_can_be_had_as_a_handler_gets_them(subject: Any) -> None:
    feed = _columnar(subject)
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 9))
    for chunk in feed.read_columns(await _everything(feed, first)):
        everything = list(chunk.events(range(len(chunk))))
        rows = list(range(0, len(chunk), 2))
        assert list(chunk.events(rows)) == [everything[row] for row in rows]
        assert list(chunk.events([])) == []


@column_check
async def a_range_has_exactly_its_events(subject: Any) -> None:
    feed = _columnar(subject)
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 6))
    await subject.send(first, _bodies(6, 11))
    events = await _read_all(feed, first)
    cuts = sorted({at for event in events for at in (event.sequence, event.sequence + 1)})
    for begin in cuts:
        for end in (at for at in cuts if at >= begin):
            wanted = Range(partition=first, first=begin, end=end)
            inside = [event for event in events if begin <= event.sequence < end]
            assert _events(feed, [wanted]) == inside


@column_check
async def several_ranges_are_read_whole_and_each_in_order(subject: Any) -> None:
    feed = _columnar(subject)
    wanted, sent = [], {}
    for number, partition in enumerate(await _partitions(subject)):
        await subject.send(partition, _bodies(number, number + 10))
        events = sent[partition] = await _read_all(feed, partition)
        (whole,) = await _everything(feed, partition)
        middle = events[4].sequence
        wanted += [
            Range(partition=partition, first=whole.first, end=middle),
            Range(partition=partition, first=middle, end=whole.end),
        ]
    found: dict[str, list[Any]] = {partition: [] for partition in sent}
    for chunk in feed.read_columns(wanted):
        (partition,) = set(chunk.columns([feed.columns.partition]).column(0).to_pylist())
        found[partition] += chunk.events(range(len(chunk)))
    for partition, events in found.items():
        assert sorted(events, key=lambda event: event.sequence) == sent[partition]
        for half in (events[:4], events[4:]) if events[0] == sent[partition][0] else ():
            assert all(a.sequence < b.sequence for a, b in pairwise(half))


@column_check
async def nothing_is_read_for_no_range_and_for_an_empty_one(subject: Any) -> None:
    feed = _columnar(subject)
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 3))
    (whole,) = await _everything(feed, first)
    assert _events(feed, []) == []
    empty = Range(partition=first, first=whole.first, end=whole.first)
    assert _events(feed, [empty]) == []


@column_check
async def without_gaps_every_sequence_holds_an_event(subject: Any) -> None:
    feed = _columnar(subject)
    if feed.has_gaps:
        return
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 4))
    await subject.send(first, _bodies(4, 9))
    (whole,) = await _everything(feed, first)
    sequences = [event.sequence for event in _events(feed, [whole])]
    assert sequences == list(range(whole.first, whole.end))
    beyond = Range(partition=first, first=whole.first, end=whole.end + 5)
    _raises((FeedUnavailable, PositionGone), feed, beyond)


@column_check
async def a_closed_feed_gives_no_columns(subject: Any) -> None:
    feed = _columnar(subject)
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 3))
    (wanted,) = await _everything(feed, first)
    feed.close()
    _raises(BadInput, feed, wanted)


@column_check
async def a_token_names_the_position_of_a_sequence_and_its_history(subject: Any) -> None:
    feed = _columnar(subject)
    if not isinstance(feed, TellsHistory):
        return
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 5))
    for event in await _read_all(feed, first):
        at = event.sequence + 1
        assert feed.tokens_of({first: at}) == {first: event.offset}
        assert feed.lost({first: (at, feed.history_of(event.offset))}) == {}
    assert feed.history_of("") == 0
    assert feed.lost({}) == {}
    assert feed.tokens_of({}) == {}


async def a_range_before_the_oldest_kept_event_is_said_to_be_gone(subject: Any) -> None:
    feed = _columnar(subject)
    first, *_ = await _partitions(subject)
    await subject.send(first, _bodies(0, 4))
    await subject.send(first, _bodies(4, 9))
    events = await _read_all(feed, first)
    (whole,) = await _everything(feed, first)
    await subject.forget(first, events[4].sequence)
    _raises(PositionGone, feed, whole)
    (rest,) = await _everything(feed, first)
    assert _events(feed, [rest]) == events[4:]


async def a_lost_position_is_told_by_the_number_of_its_history(subject: Any) -> None:
    feed = _columnar(subject)
    if not isinstance(feed, TellsHistory):
        return
    first = (await _partitions(subject))[0]
    await subject.send(first, _bodies(0, 5))
    put_back = await subject.copy()
    kept = [event.offset for event in await _read_all(feed, first)]
    await subject.send(first, _bodies(5, 12))
    before = {
        event.sequence + 1: (event.offset, feed.history_of(event.offset))
        for event in await _read_all(feed, first)
    }
    subject = await put_back()
    await subject.send(first, _bodies(50, 70))
    for at, (offset, number) in before.items():
        assert (first in subject.feed.lost({first: (at, number)})) == (offset not in kept), at


COLUMN_RETENTION_CHECKS += [a_range_before_the_oldest_kept_event_is_said_to_be_gone]
COLUMN_ROLLBACK_CHECKS += [a_lost_position_is_told_by_the_number_of_its_history]


def _columnar(subject: Any) -> ColumnarFeed:
    feed = subject.feed
    assert isinstance(feed, ColumnarFeed), f"{feed!r} lacks a part of ColumnarFeed"
    return feed


def _bodies(first: int, stop: int) -> list[bytes]:
    """Of different lengths, so that sequences cannot be right by accident."""
    return [b"%d:" % number + b"." * (number * 7 % 31) for number in range(first, stop)]


async def _partitions(subject: Any) -> list[str]:
    return [partition.id for partition in await subject.feed.partitions()]


async def _everything(feed: ColumnarFeed, *partitions: str) -> list[Range]:
    """All that is kept, as it would be planned."""
    extents: Sequence[Extent] = await feed.extents()
    return [
        Range(partition=each.partition, first=each.first, end=each.end)
        for each in extents
        if not partitions or each.partition in partitions
    ]


async def _read_all(feed: ColumnarFeed, partition: str) -> list[Any]:
    position: Checkpoint = await feed.locate(partition, "earliest")
    events: list[Any] = []
    while (batch := await feed.read(partition, position, 1000)).events:
        events += batch.events
        position = batch.next
    return events


def _events(feed: ColumnarFeed, ranges: Sequence[Range]) -> list[Any]:
    return [e for chunk in feed.read_columns(ranges) for e in chunk.events(range(len(chunk)))]


def _column(feed: ColumnarFeed, ranges: Sequence[Range], name: str) -> list[Any]:
    chunks = feed.read_columns(ranges)
    return [value for chunk in chunks for value in chunk.columns([name]).column(0).to_pylist()]


def _raises(errors: Any, feed: ColumnarFeed, wanted: Range) -> None:
    try:
        found = _events(feed, [wanted])
    except errors:
        return
    raise AssertionError(f"read {len(found)} events of {wanted} where an error was due")
