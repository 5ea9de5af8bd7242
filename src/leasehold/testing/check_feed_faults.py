"""What a feed must do when its storage goes back in time, its clock steps, or it was closed.

These belong to ``check_feed``. ``ROLLBACK_CHECKS`` are for feeds whose storage a test can copy and
put back; ``CLOCK_CHECKS`` for feeds whose writers' clock it can set. ``CLOSE_CHECKS`` are for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, LeaseholdError, PositionGone
from leasehold.ports import Feed

DAY_S = 86_400.0
Check = Callable[[Any], Awaitable[None]]
"""Of a ``FeedUnderTest``, which ``check_feed`` has."""

ROLLBACK_CHECKS: list[Check] = []
CLOCK_CHECKS: list[Check] = []
CLOSE_CHECKS: list[Check] = []


def rollback_check(rule: Check) -> Check:
    ROLLBACK_CHECKS.append(rule)
    return rule


@rollback_check
async def a_position_in_what_was_lost_is_gone_whatever_was_written_since(subject: Any) -> None:
    first, second = [p.id for p in await subject.feed.partitions()][:2]
    await subject.send(first, _bodies("kept", 5))
    put_back = await subject.copy()
    await subject.send(first, _bodies("lost", 10))
    lost = await _positions(subject.feed, first, 6)
    subject = await put_back()
    kept = await _sent_from(subject, first, "earliest")
    assert kept == _bodies("kept", 5)
    for sent in (0, 4, 6, 20):
        await subject.send(second, _bodies("elsewhere", 1))
        if sent:
            await subject.send(first, _bodies(f"new {sent}", sent))
        for position in lost:
            gone = await _gone(subject.feed, first, position)
            assert gone.reason in ("beyond end", "rolled back", "other feed")
            told = await subject.feed.event_times({first: position})
            assert isinstance(told.get(first, gone), PositionGone)
            # All that came after the loss is read, and nothing of it left out.
            rest = await _sent_from(subject, first, gone.resume)
            everything = await _sent_from(subject, first, "earliest")
            assert rest == everything[len(everything) - len(rest) :]
            assert len(rest) >= len(everything) - len(kept)


@rollback_check
async def a_position_in_what_was_kept_is_good_as_before(subject: Any) -> None:
    partition = (await subject.feed.partitions())[0].id
    await subject.send(partition, _bodies("kept", 5))
    kept = await _positions(subject.feed, partition, 1)
    put_back = await subject.copy()
    await subject.send(partition, _bodies("lost", 5))
    subject = await put_back()
    await subject.send(partition, _bodies("new", 7))
    expected = _bodies("kept", 5) + _bodies("new", 7)
    for place, position in enumerate(kept, 1):
        assert await _sent_from(subject, partition, position) == expected[place:]


@rollback_check
async def a_feed_that_was_put_back_agrees_with_itself(subject: Any) -> None:
    partitions = [p.id for p in await subject.feed.partitions()]
    for partition in partitions:
        await subject.send(partition, _bodies(partition, 3))
    put_back = await subject.copy()
    for partition in partitions:
        await subject.send(partition, _bodies("lost", 4))
    subject = await put_back()
    assert [p.id for p in await subject.feed.partitions()] == partitions
    extents = {each.partition: each for each in await subject.feed.extents()}
    for partition in partitions:
        begin = await subject.feed.locate(partition, "earliest")
        end = await subject.feed.locate(partition, "latest")
        assert (extents[partition].first, extents[partition].end) == (
            begin.next_sequence,
            end.next_sequence,
        )
        assert await _sent_from(subject, partition, begin) == _bodies(partition, 3)
        assert await _sent_from(subject, partition, end) == []


@rollback_check
async def writers_that_start_again_cost_readers_nothing(subject: Any) -> None:
    """A position of a former generation is as good as one of the newest."""
    partition = (await subject.feed.partitions())[0].id
    expected: list[bytes] = []
    positions: list[Checkpoint] = []
    for number in range(3):
        bodies = _bodies(f"start {number}", 3)
        await subject.send(partition, bodies)
        expected += bodies
        positions += await _positions(subject.feed, partition, len(positions) + 1)
        subject = await (await subject.copy())()
    for place, position in enumerate(positions, 1):
        assert await _sent_from(subject, partition, position) == expected[place:]


async def steps_of_the_clock_remove_nothing_and_times_stay_in_order(subject: Any) -> None:
    partition = (await subject.feed.partitions())[0].id
    for number, seconds in enumerate((0.0, 8 * DAY_S, -16 * DAY_S, 4000 * DAY_S, -4000 * DAY_S)):
        await subject.step_clock(seconds)
        await subject.send(partition, _bodies(str(number), 2))
    events = await _read(subject.feed, partition, await subject.feed.locate(partition, "earliest"))
    assert [subject.sent(event) for event in events] == [
        body for number in range(5) for body in _bodies(str(number), 2)
    ]
    times = [event.enqueued_at for event in events]
    assert times == sorted(times)
    for wanted in times:
        position = await subject.feed.locate(partition, wanted)
        rest = await _read(subject.feed, partition, position)
        assert rest == [event for event in events if event.enqueued_at >= wanted]


async def a_closed_feed_says_so_and_may_be_closed_again(subject: Any) -> None:
    partition = (await subject.feed.partitions())[0].id
    await subject.send(partition, _bodies("x", 3))
    start = await subject.feed.locate(partition, "earliest")
    subject.feed.close()
    subject.feed.close()
    calls: Sequence[Callable[[], Awaitable[Any]]] = (
        subject.feed.partitions,
        subject.feed.extents,
        lambda: subject.feed.locate(partition, "earliest"),
        lambda: subject.feed.read(partition, start, 10),
        lambda: subject.feed.event_times({partition: start}),
    )
    for call in calls:
        try:
            answer = await call()
        except BadInput as error:
            answer = str(error)
        assert "closed" in str(answer), f"a closed feed answered {answer!r}"


async def a_feed_closed_while_it_is_asked_says_so(subject: Any) -> None:
    """Whoever waits is told, and not taken for somebody who was cancelled."""
    partition = (await subject.feed.partitions())[0].id
    await subject.send(partition, _bodies("kept", 5))
    start = await subject.feed.locate(partition, "earliest")
    for turns in (0, 1, 2, 4):
        feed: Feed = await subject.open_again()
        await feed.partitions()
        calls: list[Awaitable[Any]] = []
        for _ in range(10):
            calls += [feed.partitions(), feed.extents(), feed.event_times({partition: start})]
            calls += [feed.locate(partition, "latest"), feed.read(partition, start, 10)]
        asked = [asyncio.ensure_future(call) for call in calls]
        for _ in range(turns):
            await asyncio.sleep(0)
        feed.close()
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, LeaseholdError), repr(answer)


CLOCK_CHECKS += [steps_of_the_clock_remove_nothing_and_times_stay_in_order]
CLOSE_CHECKS += [
    a_closed_feed_says_so_and_may_be_closed_again,
    a_feed_closed_while_it_is_asked_says_so,
]


def _bodies(what: str, count: int) -> list[bytes]:
    """Of one length for one count: only what is told besides the bytes tells two apart."""
    return [f"{what:>12} {number:03}".encode() for number in range(count)]


async def _read(feed: Feed, partition: str, position: Checkpoint) -> list[Any]:
    events: list[Any] = []
    while len(found := (batch := await feed.read(partition, position, 4)).events):
        events += found
        position = batch.next
    return events


async def _sent_from(subject: Any, partition: str, start: Any) -> list[bytes]:
    position = (
        start if isinstance(start, Checkpoint) else await subject.feed.locate(partition, start)
    )
    return [subject.sent(event) for event in await _read(subject.feed, partition, position)]


async def _positions(feed: Feed, partition: str, first: int) -> list[Checkpoint]:
    """After each event from the ``first`` one on, counted from 1."""
    events = await _read(feed, partition, await feed.locate(partition, "earliest"))
    return [
        Checkpoint(next_sequence=event.sequence + 1, token=event.offset)
        for event in events[first - 1 :]
    ]


async def _gone(feed: Feed, partition: str, position: Checkpoint) -> PositionGone:
    try:
        batch = await feed.read(partition, position, 10)
    except PositionGone as gone:
        return gone
    raise AssertionError(f"{position} was lost, and a read gave {list(batch.events)!r}")
