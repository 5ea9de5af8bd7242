"""Ranges in place of events: what a pump is given."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.pump_rig import BURY, NOON, Desk, ListFeed, Rig

import leasehold as lh
from leasehold.core.change import Change
from leasehold.core.event import Event
from leasehold.core.lag import Extent
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint
from leasehold.core.ranges import Range
from leasehold.core.start import AtSequence
from leasehold.errors import PositionGone
from leasehold.feeds.change_chunks import ChangeChunk
from leasehold.processor.handlers import Outcome
from leasehold.spark.range_feed import EPOCH, CountedFeed, LazyEvents, Limits, RangeFeed
from leasehold.testing.sim_time import run_virtual


def hub_with(path: Path, events: dict[int, int]) -> lh.Hub:
    hub = lh.Hub.create(path / "hub.db", name="sensors", namespace="test", partitions=4)
    for partition, count in events.items():
        hub.send([lh.EventData(f"{i}".encode()) for i in range(count)], partition_id=partition)
    return hub


def read(lazy: RangeFeed, max_events: int, *partitions: str, at: int = 0) -> list[lh.ports.Batch]:
    async def main() -> list[lh.ports.Batch]:
        asked = [lazy.read(p, Checkpoint(next_sequence=at), max_events) for p in partitions]
        return list(await asyncio.gather(*asked))

    return asyncio.run(main())


def test_a_range_is_cut_like_the_events_it_stands_for(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {1: 10})
    (batch,) = read(RangeFeed(hub), 100, "1")
    events = batch.events
    assert len(events) == 10
    assert [event.body for event in (events[0], events[3:][2], events[-1])] == [b"0", b"5", b"9"]
    assert (events[2:7].range.first, events[2:7].range.end) == (2, 7)
    assert len(events[5:5]) == 0
    with pytest.raises(IndexError):
        events[10]


def test_the_position_behind_a_range_is_the_feed_s_own(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {1: 10})
    (batch,) = read(RangeFeed(hub), 4, "1")
    assert batch.next == hub.read_batch("1", Checkpoint(next_sequence=0), 4).next


def test_partitions_that_begin_together_share_the_bound(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 100, 1: 100, 2: 3, 3: 0})
    sizes = [len(batch.events) for batch in read(RangeFeed(hub), 43, "0", "1", "2", "3")]
    assert sizes == [20, 20, 3, 0]


def limits(**more: Any) -> Callable[[], Limits]:
    found: dict[str, Any] = {"events": 60, "events_each": 50, "bytes": 1 << 40, "held": {"0", "1"}}
    return lambda: Limits(**found | more)


def test_partitions_that_were_let_go_take_no_share(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 100, 1: 100, 2: 100})
    lazy = RangeFeed(hub, limits(held={"0", "1", "2"}))
    assert [len(batch.events) for batch in read(lazy, 1000, "0", "1", "2")] == [20, 20, 20]
    lazy = RangeFeed(hub, limits())
    lazy._positions["2"] = 0
    assert [len(batch.events) for batch in read(lazy, 1000, "0", "1")] == [30, 30]
    assert [len(batch.events) for batch in read(RangeFeed(hub, limits()), 1000, "0")] == [50]


def test_large_events_are_taken_in_smaller_numbers(tmp_path: Path) -> None:
    hub = lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="test", partitions=2)
    for partition, size in ((0, 10), (1, 10_000)):
        events = [lh.EventData(b"x" * size) for _ in range(100)]
        hub.send(events, partition_id=partition)
    lazy = RangeFeed(hub, limits(bytes=100_000))
    small, large = read(lazy, 1000, "0", "1")
    assert len(large.events) <= 10, "whichever of them was looked at first"
    ranges = [batch.events.range for batch in (small, large)]  # type: ignore[attr-defined]
    assert 30_000 < lazy.bytes_in(ranges) <= 100_000 + 10_100
    assert lazy.bytes_in([ranges[0]]) == len(ranges[0]) * 74, "no matter what it was read with"


def test_changes_are_shared_equally_since_nobody_knows_how_many_there_are(tmp_path: Path) -> None:
    box = lh.Container.create(
        tmp_path / "box.db", name="alerts", namespace="test", partition_key="/home"
    )
    for i in range(400):
        box.upsert({"id": f"{i}", "home": f"h{i}"})

    async def main() -> lh.ports.Batch:
        feed = CountedFeed(box.feed(), limits(held={"0", "1", "2", "3"}))
        return await feed.read("0", Checkpoint(next_sequence=1), 1000)

    assert len(asyncio.run(main()).events) == 15


def test_all_partitions_are_told_by_one_look(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 5, 1: 5, 2: 5})
    lazy = RangeFeed(hub)
    read(lazy, 100, "0", "1", "2")  # the first time, each asks besides whether it is the same hub
    before = hub.requests["extents"]
    read(lazy, 100, "0", "1", "2")
    assert hub.requests["extents"] - before == 1


def test_a_look_without_an_answer_keeps_nobody_waiting_who_comes_later(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 5, 1: 5})
    lazy, extents, silent = RangeFeed(hub), hub.extents, [True]

    async def maybe_never() -> object:
        if silent:
            await asyncio.Event().wait()
        return await extents()

    hub.extents = maybe_never  # type: ignore[method-assign,assignment]

    async def main() -> None:
        waiting = [
            asyncio.ensure_future(lazy.read(p, Checkpoint(next_sequence=0), 10)) for p in "01"
        ]
        await asyncio.wait(waiting, timeout=0.2)
        silent.clear()
        waiting[0].cancel()
        await asyncio.wait(waiting, timeout=0)
        assert len((await lazy.read("0", Checkpoint(next_sequence=0), 10)).events) == 5
        waiting[1].cancel()

    asyncio.run(main())


def test_a_position_of_another_hub_is_noticed(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 5})

    async def main() -> None:
        await RangeFeed(hub).read("0", Checkpoint(next_sequence=2, token="12345"), 10)

    with pytest.raises(PositionGone, match="another hub"):
        asyncio.run(main())


class LateFeed(ListFeed):
    """Its events are read when somebody asks for one, and only then."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.readers: list[threading.Thread] = []

    async def locate(self, partition: str, start: AtSequence) -> Checkpoint:
        return Checkpoint(next_sequence=start.sequence, token=f"of {start.sequence}")

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> lh.ports.Batch:
        found = await super().read(partition, position, max_events)
        first, end = position.next_sequence, found.next.next_sequence
        wanted = Range(partition=partition, first=first, end=end)
        return replace(found, events=LazyEvents(wanted, self._read_at) if end > first else [])

    def _read_at(self, partition: str, sequence: int) -> list[Event]:
        self.readers.append(threading.current_thread())
        return [Event(b"x", sequence, str(sequence), NOON, partition)]


class RangeDesk(Desk):
    async def handle(self, events: LazyEvents, stop: Any) -> Outcome:
        wanted = set(range(events.range.first, events.range.end))
        if poison := wanted & self.bad:
            return Outcome(done=0, error=ValueError(f"bad {poison}"))
        self.done += sorted(wanted)
        return Outcome(done=len(events))


def test_upkeep_waits_for_no_read_while_a_poison_event_is_found_and_buried() -> None:
    """A broker that does not answer would cost the instance all its leases."""

    async def scene() -> None:
        rig = Rig()
        rig.feed, rig.desk = LateFeed(10), RangeDesk(rig.clock, bad={3})
        await rig.start(retry=BURY)
        while rig.checkpoint < 10:  # noqa: ASYNC110  # virtual time does not wait for threads
            await asyncio.sleep(0.01)
        assert rig.desk.done == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert [sequence for sequence, *_ in rig.desk.buried] == [3]
        assert rig.feed.readers
        assert threading.current_thread() not in rig.feed.readers
        rig.desk.pump.let_go(None, Reason.SHUTDOWN)
        await rig.task

    run_virtual(scene())


def test_changes_are_counted_although_their_numbers_have_gaps(tmp_path: Path) -> None:
    box = lh.Container.create(
        tmp_path / "box.db", name="alerts", namespace="test", partition_key="/home", ranges=1
    )
    for i in range(10):
        box.upsert({"id": f"{i % 5}", "home": "h"})

    async def main() -> lh.ports.Batch:
        return await CountedFeed(box.feed()).read("0", Checkpoint(next_sequence=1), 100)

    events = asyncio.run(main()).events
    assert len(events) == 5
    lsns = [change.lsn for change in events]
    cut = events[1:3]
    assert (cut.range.first, cut.range.end) == (lsns[1], lsns[3])
    assert events[3:].range.end == lsns[-1] + 1


class Transactions:
    """A feed of changes, of which three share LSN 4 and none has LSN 6."""

    namespace, name, unit, requests = "test", "homes", "change", Counter[str]()
    has_gaps = True
    lsns = (1, 2, 3, 4, 4, 4, 5, 7)

    async def extents(self) -> list[Extent]:
        return [Extent(partition="0", first=1, end=8)]

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return Checkpoint(next_sequence=start.sequence)

    async def event_times(self, positions: Any) -> dict[str, float]:
        return {}

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> lh.ports.Batch:
        _, _, last = position.token.partition(".")
        left = [
            change
            for n, change in enumerate(self._changes(partition))
            if (n > int(last) if last else change.lsn >= position.next_sequence)
        ][:max_events]
        at = [Checkpoint(next_sequence=each.lsn + 1, token=each.offset) for each in left]
        return lh.ports.Batch(events=left, next=at[-1] if at else position)

    def read_columns(self, ranges: Sequence[Range]) -> Iterator[ChangeChunk]:
        for each in ranges:
            changes = self._changes(each.partition)
            found = [change for change in changes if each.first <= change.lsn < each.end]
            if found:
                yield ChangeChunk(found)

    def _changes(self, partition: str) -> list[Change]:
        return [
            Change({"id": f"{n}"}, "upsert", lsn, f"{lsn}.{n}", EPOCH, partition)
            for n, lsn in enumerate(self.lsns)
        ]

    def __getattr__(self, name: str) -> Any:
        """What is not asked for here."""
        return None


def test_all_changes_of_a_transaction_that_cannot_be_handled_become_letters() -> None:
    async def main() -> Any:
        rig = Rig(at=1, bad={4})
        rig.feed = RangeFeed(Transactions())
        rig.desk.bury = bury  # type: ignore[method-assign]
        await rig.start(retry=BURY)
        await asyncio.sleep(120)
        rig.task.cancel()
        return rig.desk.done, rig.checkpoint

    async def bury(event: Any, error: Any, attempts: int) -> None:
        buried.append(event.offset)

    buried: list[str] = []
    done, checkpoint = run_virtual(main())
    assert buried == ["4.3", "4.4", "4.5"]
    assert [lsn for lsn in done if lsn in Transactions.lsns] == [1, 2, 3, 5, 7]
    assert checkpoint == 8


def test_a_range_that_is_cut_behind_a_transaction_goes_on_behind_all_of_it() -> None:
    (batch,) = read(RangeFeed(Transactions()), 100, "0", at=1)
    assert batch.events[3].offset == "4.5"
    assert [change.sequence for change in batch.events[2:5]] == [3, 4, 4, 4, 5]


@pytest.mark.parametrize(
    ("token", "first"), [("4.3", 4), ("4.4", 4), ("4.5", 5), ("", 5)], ids=lambda value: f"{value}"
)
def test_a_transaction_that_was_begun_elsewhere_is_done_again(token: str, first: int) -> None:
    """By a plain processor, which stops between any two changes."""
    at = Checkpoint(next_sequence=5, token=token)
    batch = asyncio.run(RangeFeed(Transactions()).read("0", at, 100))
    assert next(change.sequence for change in batch.events) == first
    assert batch.next.next_sequence == 8


def test_a_transaction_that_was_begun_elsewhere_is_done_again_at_the_end() -> None:
    feed = Transactions()
    feed.lsns = (1, 2, 3, 4, 4, 4, 7, 7)
    at = Checkpoint(next_sequence=8, token="7.6")
    batch = asyncio.run(RangeFeed(feed).read("0", at, 100))
    assert [change.offset for change in batch.events] == ["7.6", "7.7"]
