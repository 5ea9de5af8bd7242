"""What every feed whose partitions split must do besides ``check_feed`` (requirement C10).

``CHECKS`` lists the rules one by one; ``check_split`` runs them all. Each gets a new, empty feed.
Events are sent under keys, because a key decides which child it goes to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from leasehold.core.balance import leasable, missing
from leasehold.core.model import Checkpoint, Group, Lease, Partition, Snapshot
from leasehold.ports import Feed, TellsEnds
from leasehold.testing.run_check import run_check


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFeedUnderTest:
    """A feed, and the means to fill it and to split its partitions."""

    feed: Feed
    send: Callable[[str, bytes], Awaitable[None]]
    """Append one event under a key. No two events have the same bytes."""
    split: Callable[[str], Awaitable[None]]
    """Split a partition in two, such that both get some of ``KEYS``."""
    open_again: Callable[[], Awaitable[Feed]]
    """The same feed as another process would see it."""
    sent: Callable[[Any], bytes] = attrgetter("body")
    """What was sent, from the event that came of it."""
    ends_at_once: bool = False
    """A partition that was split cannot be read any more: it names its children at once, and they
    go on from any of its positions, with all that was sent before the split as well."""
    time_step_s: float = 0.02
    """Events that are sent so far apart have different times."""
    close: Callable[[], Awaitable[None]] | None = None


MakeSplitFeed = Callable[[], Awaitable[SplitFeedUnderTest]]
Check = Callable[[SplitFeedUnderTest], Awaitable[None]]

KEYS = tuple(f"home-{number}" for number in range(40))
"""Enough that every partition and every child has some."""
GROUP = Group(namespace="check", feed="split", name="readers")
CHECKS: list[Check] = []


def check(rule: Check) -> Check:
    CHECKS.append(rule)
    return rule


async def check_split(make: MakeSplitFeed) -> None:
    """Every rule for a feed whose partitions split. An assertion fails where one is broken."""
    for rule in CHECKS:
        await run_check(rule, make)


@check
async def children_take_their_parents_place_and_know_their_ancestors(
    subject: SplitFeedUnderTest,
) -> None:
    before = await subject.feed.partitions()
    parent = before[0]
    left, right = await _split(subject, parent.id)
    after = await subject.feed.partitions()
    assert {p.id for p in after} == {p.id for p in before} - {parent.id} | {left.id, right.id}
    assert left.ancestors == right.ancestors == (parent.id, *parent.ancestors)
    for grandchild in await _split(subject, left.id):
        assert grandchild.ancestors == (left.id, parent.id, *parent.ancestors)
        assert grandchild.id not in {left.id, right.id, *(p.id for p in before)}


@check
async def a_reader_that_is_open_notices_a_split(subject: SplitFeedUnderTest) -> None:
    other = await subject.open_again()
    parent = (await other.partitions())[0]
    position = await other.locate(parent.id, "latest")
    assert not (await other.read(parent.id, position, 10)).children
    children = await _split(subject, parent.id)
    assert set((await other.read(parent.id, position, 10)).children) == {c.id for c in children}
    assert {p.id for p in await other.partitions()} >= {c.id for c in children}


@check
async def ends_that_are_told_have_no_split_partition_among_them(
    subject: SplitFeedUnderTest,
) -> None:
    if not isinstance(subject.feed, TellsEnds):
        return
    parent = (await subject.feed.partitions())[0].id
    assert parent in await subject.feed.ends()
    children = await _split(subject, parent)
    ends = await subject.feed.ends()
    assert parent not in ends
    assert {child.id for child in children} <= ends.keys()


@check
async def a_parent_is_read_to_its_end_before_it_names_its_children(
    subject: SplitFeedUnderTest,
) -> None:
    await _send(subject, 1)
    parent, sent = await _fullest(subject)
    start = await subject.feed.locate(parent, "earliest")
    children = await _split(subject, parent)
    await _send(subject, 2)
    if subject.ends_at_once:
        batch = await subject.feed.read(parent, start, 3)
        assert not batch.events
        assert set(batch.children) == {child.id for child in children}
        found = [await _read_all(subject, child, at) for child, at in batch.children.items()]
        assert set(sent) <= set(chain(*found))
        return
    events: list[Any] = []
    position = start
    while True:
        batch = await subject.feed.read(parent, position, 3)
        if not batch.events:
            break
        assert not batch.children
        events += batch.events
        position = batch.next
    assert [subject.sent(event) for event in events] == sent
    assert {event.partition for event in events} == {parent}
    assert set(batch.children) == {child.id for child in children}
    assert (await subject.feed.read(parent, position, 3)).children == batch.children
    assert (await (await subject.open_again()).read(parent, position, 3)).children == batch.children


@check
async def an_empty_parent_names_its_children_at_once(subject: SplitFeedUnderTest) -> None:
    parent = (await subject.feed.partitions())[0].id
    start = await subject.feed.locate(parent, "earliest")
    children = await _split(subject, parent)
    batch = await subject.feed.read(parent, start, 10)
    assert not batch.events
    assert set(batch.children) == {child.id for child in children}


@check
async def children_go_on_where_the_parent_ended(subject: SplitFeedUnderTest) -> None:
    await _send(subject, 1)
    parent, _ = await _fullest(subject)
    keys = await _keys_of(subject, parent)
    end = await subject.feed.locate(parent, "latest")
    await _split(subject, parent)
    begins = (await subject.feed.read(parent, end, 10)).children
    for child, begin in begins.items():
        assert not (await subject.feed.read(child, begin, 10)).events
    await _send(subject, 2, 3)
    found = {child: await _read_all(subject, child, begin) for child, begin in begins.items()}
    assert all(found.values())
    assert sorted(chain(*found.values())) == sorted(_bodies(keys, 2, 3))
    for events in found.values():
        for key in keys:
            mine = [event for event in events if event.startswith(f"{key} ".encode())]
            assert mine in ([], _bodies([key], 2, 3))


@check
async def a_group_with_progress_gets_everything_once_and_each_key_in_order(
    subject: SplitFeedUnderTest,
) -> None:
    """As the processor does it: leases of parents are replaced by leases of their children."""
    group = _Readers(subject)
    await group.look("earliest")
    await _send(subject, 1)
    await group.read_some(5)
    await _split(subject, (await _fullest(subject))[0])
    await _send(subject, 2)
    await group.read_some(3)
    await _split(subject, (await subject.feed.partitions())[-1].id)
    await _send(subject, 3)
    await group.look("earliest")
    await group.read_to_the_end()
    await _send(subject, 4)
    await group.read_to_the_end()
    group.require(1, 2, 3, 4)


@check
async def a_group_that_stood_still_through_splits_of_splits_misses_nothing(
    subject: SplitFeedUnderTest,
) -> None:
    group = _Readers(subject)
    await group.look("earliest")
    await _send(subject, 1)
    (left, _), number = await _split(subject, (await _fullest(subject))[0]), 2
    for _ in range(2):
        await _send(subject, number)
        left, _ = await _split(subject, left.id)
        number += 1
    await _send(subject, number)
    await group.look("earliest")
    await group.read_to_the_end()
    group.require(*range(1, number + 1))


@check
async def a_group_that_begins_after_a_split_gets_what_was_before_it(
    subject: SplitFeedUnderTest,
) -> None:
    await _send(subject, 1)
    parent, _ = await _fullest(subject)
    left, _ = await _split(subject, parent)
    await _send(subject, 2)
    await _split(subject, left.id)
    await _send(subject, 3)
    group = _Readers(subject)
    await group.look("earliest")
    await group.read_to_the_end()
    group.require(1, 2, 3)


@check
async def latest_and_a_time_mean_the_same_in_children(subject: SplitFeedUnderTest) -> None:
    await _send(subject, 1)
    await asyncio.sleep(subject.time_step_s)
    await _send(subject, 2)
    parent, _ = await _fullest(subject)
    keys = await _keys_of(subject, parent)
    start = await subject.feed.locate(parent, "earliest")
    events = (await subject.feed.read(parent, start, 1000)).events
    second = next(e for e in events if subject.sent(e).endswith(b" 2")).enqueued_at
    children = await _split(subject, parent)
    latest = {child.id: await subject.feed.locate(child.id, "latest") for child in children}
    await _send(subject, 3)
    found, later = [], []
    for child in children:
        begin = await subject.feed.locate(child.id, second)
        found += await _read_all(subject, child.id, begin)
        later += await _read_all(subject, child.id, latest[child.id])
    assert sorted(found) == sorted(_bodies(keys, 2, 3))
    assert sorted(later) == sorted(_bodies(keys, 3))


@check
async def a_split_partition_keeps_its_extent_and_its_times(subject: SplitFeedUnderTest) -> None:
    await _send(subject, 1)
    parent, _ = await _fullest(subject)
    start = await subject.feed.locate(parent, "earliest")
    first = (await subject.feed.read(parent, start, 1)).events[0]
    before = {extent.partition: extent for extent in await subject.feed.extents()}
    children = await _split(subject, parent)
    await _send(subject, 2)
    after = {extent.partition: extent for extent in await subject.feed.extents()}
    if subject.ends_at_once:
        assert after.keys() >= {child.id for child in children}
        assert parent not in after
        return
    assert (after[parent].first, after[parent].end) == (before[parent].first, before[parent].end)
    assert after.keys() >= {child.id for child in children}
    for time in (await subject.feed.event_times({parent: start})).values():
        assert isinstance(time, float)
        assert abs(time - first.enqueued_at.timestamp()) < 1e-5


@check
async def a_range_may_split_while_it_is_being_written_and_read(
    subject: SplitFeedUnderTest,
) -> None:
    group = _Readers(subject)
    await group.look("earliest")

    async def write() -> None:
        for number in range(1, 5):
            await _send(subject, number)

    writing = asyncio.ensure_future(write())
    while not writing.done():
        await _split(subject, (await subject.feed.partitions())[0].id)
        await group.read_some(4)
        await asyncio.sleep(0)
        if len(await subject.feed.partitions()) > 12:
            break
    await writing
    await group.look("earliest")
    await group.read_to_the_end()
    group.require(1, 2, 3, 4)


class _Readers:
    """A group's leases, without a store: what ``core.balance`` says there should be."""

    def __init__(self, subject: SplitFeedUnderTest) -> None:
        self._subject = subject
        self._leases: dict[str, Checkpoint] = {}
        self._replaced: set[str] = set()
        self.found: list[bytes] = []

    async def look(self, start: Any) -> None:
        known = await self._subject.feed.partitions()
        for partition in missing(self._snapshot(), known):
            self._leases[partition] = await self._subject.feed.locate(partition, start)
        assert {lease.partition for lease in leasable(self._snapshot(), known)} == set(self._leases)

    async def read_some(self, max_events: int) -> bool:
        """One read of each lease; whether anything came of it."""
        moved = False
        for partition, position in tuple(self._leases.items()):
            batch = await self._subject.feed.read(partition, position, max_events)
            assert len(batch.events) <= max_events
            self.found += [self._subject.sent(event) for event in batch.events]
            self._leases[partition] = batch.next
            if batch.children and not batch.events:
                self._replace(partition, batch.children)
            moved = moved or bool(batch.events) or bool(batch.children)
        return moved

    async def read_to_the_end(self) -> None:
        while await self.read_some(7):
            pass
        ends = {each.partition: each.end for each in await self._subject.feed.extents()}
        for partition, position in self._leases.items():
            assert position.next_sequence == ends[partition], f"{partition}: not at its end"

    def require(self, *numbers: int) -> None:
        assert sorted(self.found) == sorted(_bodies(KEYS, *numbers))
        for key in KEYS:
            mine = [event for event in self.found if event.startswith(f"{key} ".encode())]
            assert mine == _bodies([key], *numbers)

    def _replace(self, parent: str, children: Mapping[str, Checkpoint]) -> None:
        del self._leases[parent]
        self._replaced.add(parent)
        assert not self._replaced & set(children)
        assert not set(self._leases) & set(children)
        self._leases |= children

    def _snapshot(self) -> Snapshot:
        leases = tuple(
            Lease(group=GROUP, partition=p, checkpoint=c) for p, c in self._leases.items()
        )
        return Snapshot(leases=leases, replaced=frozenset(self._replaced))


def _bodies(keys: Sequence[str], *numbers: int) -> list[bytes]:
    return [f"{key} {number}".encode() for number in numbers for key in keys]


async def _send(subject: SplitFeedUnderTest, *numbers: int) -> None:
    """One event under each key, for each number."""
    for number in numbers:
        for key in KEYS:
            await subject.send(key, f"{key} {number}".encode())


async def _split(subject: SplitFeedUnderTest, parent: str) -> tuple[Partition, Partition]:
    before = {partition.id for partition in await subject.feed.partitions()}
    await subject.split(parent)
    left, right = (p for p in await subject.feed.partitions() if p.id not in before)
    return left, right


async def _fullest(subject: SplitFeedUnderTest) -> tuple[str, list[bytes]]:
    """The partition with the most events, and what was sent to it."""
    found = {}
    for partition in await subject.feed.partitions():
        start = await subject.feed.locate(partition.id, "earliest")
        found[partition.id] = await _read_all(subject, partition.id, start)
    return max(found.items(), key=lambda item: len(item[1]))


async def _keys_of(subject: SplitFeedUnderTest, partition: str) -> list[str]:
    start = await subject.feed.locate(partition, "earliest")
    events = await _read_all(subject, partition, start)
    return sorted({event.decode().split(" ")[0] for event in events})


async def _read_all(
    subject: SplitFeedUnderTest, partition: str, position: Checkpoint
) -> list[bytes]:
    found: list[bytes] = []
    while events := (batch := await subject.feed.read(partition, position, 7)).events:
        assert len(events) <= 7
        found += [subject.sent(event) for event in events]
        position = batch.next
    return found
