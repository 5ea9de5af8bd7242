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
from hypothesis import given
from hypothesis import strategies as st
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
from leasehold.spark.event_sizes import EventSizes
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


def hub_of(path: Path, *partitions: list[tuple[int, int]]) -> lh.Hub:
    """Of each partition: how many events in a row, and of how many bytes."""
    hub = lh.Hub.create(path / "hub.db", name="sensors", namespace="t", partitions=len(partitions))
    for number, runs in enumerate(partitions):
        for count, size in runs:
            hub.send_columns(None, [b"x" * size] * count, partition_id=number)
    return hub


def true_bytes(hub: lh.Hub, wanted: Range) -> int:
    chunks = hub.read_columns([wanted])
    return sum(
        64 + len(event.body) for chunk in chunks for event in chunk.events(range(len(chunk)))
    )


def claims(lazy: RangeFeed, partition: str, end: int) -> list[Range]:
    """One after the other, as a pump asks for them."""

    async def main() -> list[Range]:
        found, at = list[Range](), Checkpoint(next_sequence=0)
        while at.next_sequence < end:
            batch = await lazy.read(partition, at, 1 << 30)
            found.append(batch.events.range)  # type: ignore[attr-defined]
            at = batch.next
        return found

    return asyncio.run(main())


def test_partitions_that_begin_together_share_the_bytes_though_only_some_were_looked_at(
    tmp_path: Path,
) -> None:
    hub = hub_of(tmp_path, *[[(300, 1_000)]] * 4)
    lazy = RangeFeed(hub, limits(events=10_000, events_each=10_000, bytes=100_000, held="0123"))
    ranges = [batch.events.range for batch in read(lazy, 10_000, *"0123")]  # type: ignore[attr-defined]
    assert 80_000 < sum(true_bytes(hub, each) for each in ranges) <= 100_000


def test_an_event_of_a_size_that_nobody_knows_counts_as_much_as_the_largest_known(
    tmp_path: Path,
) -> None:
    hub = hub_of(tmp_path, [(300, 1_000)], [(300, 1_000)])
    lazy = RangeFeed(hub, limits(events=10_000, events_each=10_000, bytes=100_000, held="01"))
    lazy._positions["1"] = 0
    (batch,) = read(lazy, 10_000, "0")
    assert 40 < len(batch.events) <= 50
    assert lazy.bytes_in([Range(partition="1", first=0, end=10)]) == 10 * 1_064


LARGE = limits(events=1 << 30, events_each=1 << 30, bytes=1_000_000, held="0")


@pytest.mark.parametrize("small", [0, 1, 9, 100, 699, 20_000])
def test_events_that_become_giant_are_noticed_before_they_are_taken(
    tmp_path: Path, small: int
) -> None:
    hub = hub_of(tmp_path, [(small, 10), (700, 20_000)])
    lazy = RangeFeed(hub, LARGE)
    hub.requests.clear()
    found = claims(lazy, "0", small + 700)
    sizes = [true_bytes(hub, each) for each in found]
    assert max(sizes) <= 1_100_000
    assert len(found) < 60, "nor is the rest taken in small pieces"
    assert hub.requests["read"] < 150, "looks and claims"


def test_giant_events_that_come_while_it_runs_are_noticed_within_a_few_cycles(
    tmp_path: Path,
) -> None:
    """There never is a backlog that shows them beforehand."""
    hub = hub_of(tmp_path, [(10, 10)])
    lazy = RangeFeed(hub, LARGE)

    async def main() -> list[tuple[int, int]]:
        at, found = Checkpoint(next_sequence=0), []
        for cycle in range(200):
            batch = await lazy.read("0", at, 1 << 30)
            at, wanted = batch.next, batch.events.range  # type: ignore[attr-defined]
            found.append((lazy.bytes_in([wanted]), true_bytes(hub, wanted)))
            size = 10 if cycle < 134 else 200_000
            hub.send_columns(None, [b"x" * size] * 20, partition_id=0)
        return found

    found = asyncio.run(main())
    before, after = found[:135], found[135:]
    assert all(told == true for told, true in before)
    late = next(n for n, (told, true) in enumerate(after) if told > 0.9 * true)
    assert late <= 8
    for told, true in after[late:]:
        assert true <= 1_100_000
        assert 0.9 * true < told < 1.1 * true


def test_usual_cycles_take_few_looks_at_sizes(tmp_path: Path) -> None:
    hub = hub_of(tmp_path, [(100, 250)])
    lazy = RangeFeed(hub, limits(bytes=100_000_000, events=1 << 30, events_each=1 << 30))
    at = Checkpoint(next_sequence=0)

    async def main() -> None:
        nonlocal at
        for _ in range(64):
            at = (await lazy.read("0", at, 1 << 30)).next
            hub.send([lh.EventData(b"x" * 250) for _ in range(100)], partition_id=0)

    asyncio.run(main())
    assert hub.requests["read"] <= 64 / 8 + 1


@given(
    places=st.dictionaries(st.integers(0, 99), st.integers(1, 1_000), max_size=8),
    first=st.integers(0, 99),
    length=st.integers(1, 100),
    max_bytes=st.integers(1, 10_000),
)
def test_what_fits_has_no_more_bytes_than_that(
    places: dict[int, int], first: int, length: int, max_bytes: int
) -> None:
    sizes = EventSizes()
    for sequence, size in places.items():
        sizes.note("0", sequence, size)
    wanted = Range(partition="0", first=first, end=first + length)
    end = sizes.fitting(wanted, max_bytes)
    assert first < end <= wanted.end
    assert end == first + 1 or sizes.bytes_in(replace(wanted, end=end)) <= max_bytes
    for sequence, size in places.items():
        if wanted.first < sequence < wanted.end - 1:
            assert sizes.bytes_in(wanted) >= size
    assert sizes.bytes_in(wanted) >= len(wanted) * min(places.values(), default=0)


def test_changes_of_a_size_that_nobody_knows_are_few_at_first(tmp_path: Path) -> None:
    box = lh.Container.create(
        tmp_path / "box.db", name="alerts", namespace="test", partition_key="/home", ranges=1
    )
    for i in range(200):
        box.upsert({"id": f"{i}", "home": "h", "text": "x" * 10_000})

    async def main() -> list[int]:
        feed, at = CountedFeed(box.feed(), LARGE), Checkpoint(next_sequence=1)
        found = []
        for _ in range(3):
            batch = await feed.read("0", at, 1_000)
            found.append(len(batch.events))
            at = batch.next
        return found

    first, *others = asyncio.run(main())
    assert first == 32
    assert all(80 < each < 100 for each in others[:1])


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


def test_a_look_at_sizes_that_fails_keeps_no_partition_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors read it, and may well succeed."""
    hub = hub_with(tmp_path, {1: 10})
    limits = Limits(events=5, events_each=5, bytes=1 << 30, held={"1"})

    async def fails(*_: object) -> lh.ports.Batch:
        raise lh.FeedUnavailable("not from here")

    monkeypatch.setattr(hub, "read", fails)
    (batch,) = read(RangeFeed(hub, lambda: limits), 100, "1")
    assert len(batch.events) == 5


def test_a_counted_feed_that_tells_no_sizes_is_read_in_full(tmp_path: Path) -> None:
    class Counted(ListFeed):
        unit, requests, has_gaps = "change", Counter[str](), False

        def __getattr__(self, name: str) -> Any:
            return None

    limits = Limits(events=1_000, events_each=1_000, bytes=1 << 30, held={"0"})
    feed: Any = Counted(5_000)
    lazy, found = CountedFeed(feed, lambda: limits), list[int]()

    async def main() -> None:
        at = Checkpoint(next_sequence=0)
        for _ in range(3):
            batch = await lazy.read("0", at, 1_000)
            found.append(len(batch.events))
            at = batch.next

    asyncio.run(main())
    assert found[1:] == [1_000, 1_000], "the first one is small, for nothing is known yet"
