"""Where a stream's batches begin and end, without Spark."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocking import result_of

import leasehold as lh
from leasehold.core.ranges import Range
from leasehold.core.start import Earliest, Latest, parse_per_partition
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.spark.source import positions
from leasehold.spark.source.positions import Offset

EARLIEST = {"*": Earliest()}


def asked(name: str) -> Callable[..., Any]:
    """As a plain function: these tests write to the feed between two questions."""
    return lambda *given, **settings: asyncio.run(getattr(positions, name)(*given, **settings))


initial, newest, advance = asked("initial"), asked("newest"), asked("advance")
located, still_there = asked("located"), asked("still_there")


def make_hub(path: Path, *counts: int) -> lh.Hub:
    hub = lh.Hub.create(path, name="h", namespace="t", partitions=len(counts))
    for partition, count in enumerate(counts):
        send(hub, partition, count)
    return hub


def send(hub: lh.Hub, partition: int, count: int) -> None:
    if count:
        hub.send([lh.EventData(b"x")] * count, partition_id=partition)


def make_container(path: Path, ranges: int = 1) -> lh.Container:
    return lh.Container.create(
        path,
        name="c",
        namespace="t",
        partition_key="/key",
        ranges=ranges,
        versions_s=1e9,
        split_documents=None,
    )


def kept(offset: Offset) -> Offset:
    """As it comes back out of Spark's checkpoint."""
    return Offset.parse(json.loads(json.dumps(offset.json())))


def sizes(ranges: list[Range]) -> dict[str, int]:
    return {each.partition: len(each) for each in ranges}


def events_in(feed: Any, ranges: list[Range]) -> list[Any]:
    found: list[Any] = []
    for chunk in feed.read_columns(ranges):
        found += chunk.events(range(len(chunk)))
    return found


def test_a_batch_takes_all_there_is_or_as_much_as_it_may(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 5, 0, 30)
    start = initial(hub, EARLIEST, "fail")
    assert sizes(advance(hub, start).ranges_after(start)) == {"0": 5, "2": 30}
    some = advance(hub, start, max_events=20)
    assert sizes(some.ranges_after(start)) == {"0": 5, "2": 15}
    rest = advance(hub, some, max_events=20)
    assert sizes(rest.ranges_after(some)) == {"2": 15}


def test_with_nothing_to_read_the_position_stays_the_same_to_the_letter(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 3, 3)
    start = initial(hub, EARLIEST, "fail")
    hub.raise_partitions(3)
    end = kept(advance(hub, start))
    assert end.begin == {"2": 0}
    assert json.dumps(advance(hub, end).json()) == json.dumps(end.json())


def test_fewer_events_than_partitions_still_reach_all_of_them(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 4, 4, 4, 4, 4)
    at = initial(hub, EARLIEST, "fail")
    for _ in range(3):
        at = advance(hub, at, max_events=2)
    assert sorted(at.next.values()) == [1, 1, 1, 1, 2]


def test_a_partition_that_appears_is_read_from_its_beginning(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 3)
    start = initial(hub, {"*": Latest()}, "fail")
    hub.raise_partitions(2)
    send(hub, 1, 7)
    end = kept(advance(hub, start))
    assert sizes(end.ranges_after(start)) == {"1": 7}
    assert sizes(still_there(hub, start, end, "fail")) == {"1": 7}


def test_what_comes_after_a_target_is_left_for_the_next_query(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 3)
    start, target = initial(hub, EARLIEST, "fail"), newest(hub)
    send(hub, 0, 10)
    hub.raise_partitions(2)
    send(hub, 1, 10)
    end = advance(hub, start, target=target)
    assert end.next == {"0": 3}
    assert advance(hub, end, target=target) is end
    assert advance(hub, end).next == {"0": 13, "1": 10}


def test_a_target_bounds_the_children_of_a_later_split(tmp_path: Path) -> None:
    with make_container(tmp_path / "c.db") as container:
        for number in range(20):
            container.upsert({"id": str(number), "key": str(number)})
        feed = container.feed()
        start, target = initial(feed, EARLIEST, "fail"), newest(feed)
        container.split("0")
        for number in range(20, 40):
            container.upsert({"id": str(number), "key": str(number)})
        end = advance(feed, start, target=target)
        ids = {change.document["id"] for change in events_in(feed, end.ranges_after(start))}
        assert ids == {str(number) for number in range(20)}
        assert advance(feed, end, target=target) is end


def test_a_limit_counts_changes_and_not_the_distance_of_lsns(tmp_path: Path) -> None:
    with make_container(tmp_path / "c.db", ranges=2) as container:
        for _ in range(50):
            container.upsert({"id": "same", "key": "same"})
        for number in range(10):
            container.upsert({"id": str(number), "key": str(number)})
        feed = container.feed()
        at, batches = initial(feed, EARLIEST, "fail"), []
        while (end := advance(feed, at, max_events=4)) is not at:
            batches.append(len(events_in(feed, end.ranges_after(at))))
            at = end
        assert batches == [4, 4, 3]


def test_events_that_retention_took_stop_the_query_or_are_passed_over(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 0, 2)
    start = initial(hub, EARLIEST, "fail")
    send(hub, 0, 5)
    planned = advance(hub, start)
    send(hub, 0, 5)
    hub.trim_before(0, 5)
    with pytest.raises(
        BadInput, match=r"partition 0.*older than.*checkpointLocation.*'onPositionGone'"
    ):
        advance(hub, start)
    with pytest.raises(BadInput, match=r"partition 0.*older than"):
        still_there(hub, start, planned, "fail")
    assert sizes(still_there(hub, start, planned, "earliest")) == {"1": 2}
    end = kept(advance(hub, start, on_position_gone="earliest"))
    assert sizes(still_there(hub, start, end, "fail")) == {"0": 5, "1": 2}


def test_a_feed_made_anew_stops_the_query_or_is_read_from_its_beginning(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 5)
    start = initial(hub, EARLIEST, "fail")
    end = advance(hub, start)
    hub.close()
    for file in tmp_path.iterdir():
        file.unlink()
    hub = make_hub(tmp_path / "h.db", 3, 1)
    for call in (lambda: advance(hub, end), lambda: still_there(hub, start, end, "fail")):
        with pytest.raises(BadInput, match=r"recreated since.*checkpointLocation"):
            call()
    assert still_there(hub, start, end, "earliest") == []
    after = kept(advance(hub, end, on_position_gone="earliest"))
    assert sizes(still_there(hub, end, after, "fail")) == {"0": 3, "1": 1}
    with pytest.raises(FeedUnavailable, match="recreated while"):
        advance(hub, after, target=end)


def test_a_position_of_another_source_is_refused() -> None:
    for other in ({"0": 5}, {"feed": "a"}, [1]):
        with pytest.raises(BadInput, match="checkpointLocation of its own"):
            Offset.parse(other)  # type: ignore[arg-type]


def test_positions_are_found_by_partition(tmp_path: Path) -> None:
    hub = make_hub(tmp_path / "h.db", 9, 9, 9)
    wanted = parse_per_partition({"0": "sequence:4", "1": "latest"})
    assert located(hub, wanted) == {"0": 4, "1": 9, "2": 0}
    with pytest.raises(BadInput, match="no partition 7; it has 0, 1, 2"):
        located(hub, parse_per_partition({"7": "latest"}))
    with pytest.raises(PositionGone, match="beyond the end"):
        located(hub, parse_per_partition(10))
    hub.trim_before(0, 9)
    with pytest.raises(PositionGone, match="older than"):
        located(hub, wanted)
    assert located(hub, wanted, "earliest") == {"0": 9, "1": 9, "2": 0}


def test_an_lsn_may_lie_beyond_the_end_of_a_quiet_range(tmp_path: Path) -> None:
    with make_container(tmp_path / "c.db", ranges=2) as container:
        for number in range(10):
            container.upsert({"id": str(number), "key": "same"})
        found = located(container.feed(), parse_per_partition(5))
        assert sorted(found.values()) == [1, 5]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 9), st.integers(1, 8)),
        st.tuples(st.just("grow"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("batch"), st.integers(1, 12), st.booleans()),
    ),
    max_size=20,
)


@settings(max_examples=30)
@given(steps=STEPS)
def test_batches_of_a_hub_have_every_event_once(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, make_hub(Path(folder) / "h.db", 2) as hub:
        at, seen = initial(hub, EARLIEST, "fail"), Counter[tuple[str, int]]()

        def batch(limit: int | None) -> Offset:
            end = kept(advance(hub, at, max_events=limit))
            events = events_in(hub, still_there(hub, at, end, "fail"))
            assert limit is None or len(events) <= limit
            seen.update((event.partition, event.sequence) for event in events)
            return end

        for kind, a, b in steps:
            if kind == "write":
                send(hub, a % len(hub.properties().partition_ids), b)
            elif kind == "grow":
                hub.raise_partitions(len(hub.properties().partition_ids) + 1)
            else:
                at = batch(None if b else a)
        batch(None)
        sent = {(each.partition, n) for each in result_of(hub.extents()) for n in range(each.end)}
        assert seen == Counter(sent)


@settings(max_examples=30)
@given(steps=STEPS, mode=st.sampled_from(["latest", "all"]))
def test_batches_of_a_container_have_every_change_once_through_splits(
    steps: list[tuple[str, int, int]], mode: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder, make_container(Path(folder) / "c.db") as box:
        feed = box.feed(mode)
        at, seen = initial(feed, EARLIEST, "fail"), list[Any]()

        def batch(limit: int | None) -> Offset:
            end = kept(advance(feed, at, max_events=limit))
            changes = events_in(feed, still_there(feed, at, end, "fail"))
            assert limit is None or len(changes) <= limit
            seen.extend(changes)
            return end

        written = 0
        for kind, a, b in steps:
            if kind == "write":
                for number in range(b):
                    written += 1
                    box.upsert({"id": str(a + number), "key": str(a + number), "n": written})
            elif kind == "grow":
                leaves = result_of(feed.partitions())
                box.split(leaves[a % len(leaves)].id)
            else:
                at = batch(None if b else a)
        batch(None)
        lsns = [change.lsn for change in seen]
        assert len(set(lsns)) == len(lsns)
        if mode == "all":
            assert sorted(lsns) == list(range(1, written + 1))
        newest_states = {change.document["id"]: change.document["n"] for change in seen}
        stored = [
            change
            for leaf in result_of(feed.partitions())
            for change in events_in(feed, [Range(partition=leaf.id, first=1, end=written + 1)])
        ]
        assert newest_states == {change.document["id"]: change.document["n"] for change in stored}


@pytest.mark.parametrize("written", [0, 2, 4, 9])
def test_a_feed_that_lost_events_stops_the_query_or_is_read_from_where_it_lost_them(
    tmp_path: Path, written: int
) -> None:
    path, saved = tmp_path / "h.db", tmp_path / "saved.db"
    hub = make_hub(path, 5)
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(saved)) as copy:
        db.backup(copy)
    start = initial(hub, EARLIEST, "fail")
    hub.send([lh.EventData(b"lost")] * 4, partition_id=0)
    end = Offset.parse(advance(hub, start).json())
    assert end.next == {"0": 9}
    hub.close()
    for file in tmp_path.glob("h.db*"):
        file.unlink()
    saved.replace(path)
    with lh.Hub.open(path) as hub:
        if written:
            hub.send([lh.EventData(b"came")] * written, partition_id=0)
        for call in (lambda: advance(hub, end), lambda: still_there(hub, start, end, "fail")):
            with pytest.raises(BadInput, match=r"restored.*checkpointLocation"):
                call()
        assert still_there(hub, start, end, "earliest") == []
        after = kept(advance(hub, end, on_position_gone="earliest"))
        assert after.next == {"0": 5 + written}
        assert sizes(still_there(hub, end, after, "fail")) == ({"0": written} if written else {})


def test_an_offset_of_an_earlier_version_is_taken_by_its_sequences(tmp_path: Path) -> None:
    with make_hub(tmp_path / "h.db", 5) as hub:
        old = Offset.parse({"feed": hub.identity, "next": {"0": 3}})
        assert sizes(still_there(hub, old, advance(hub, old), "fail")) == {"0": 2}
        hub_end = Offset.parse({"feed": hub.identity, "next": {"0": 5}})
        assert advance(hub, hub_end) is hub_end
