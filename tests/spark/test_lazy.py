"""Ranges in place of events: what a pump is given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import leasehold as lh
from leasehold.core.model import Checkpoint
from leasehold.errors import PositionGone
from leasehold.spark.lazy import LazyChanges, LazyHub


def hub_with(path: Path, events: dict[int, int]) -> lh.Hub:
    hub = lh.Hub.create(path / "hub.db", name="sensors", namespace="test", partitions=4)
    for partition, count in events.items():
        hub.send([lh.EventData(f"{i}".encode()) for i in range(count)], partition_id=partition)
    return hub


def read(lazy: LazyHub, max_events: int, *partitions: str, at: int = 0) -> list[lh.ports.Batch]:
    async def main() -> list[lh.ports.Batch]:
        asked = [lazy.read(p, Checkpoint(next_sequence=at), max_events) for p in partitions]
        return list(await asyncio.gather(*asked))

    return asyncio.run(main())


def test_a_range_is_cut_like_the_events_it_stands_for(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {1: 10})
    (batch,) = read(LazyHub(hub), 100, "1")
    events = batch.events
    assert len(events) == 10
    assert [event.body for event in (events[0], events[3:][2], events[-1])] == [b"0", b"5", b"9"]
    assert (events[2:7].range.first, events[2:7].range.end) == (2, 7)
    assert len(events[5:5]) == 0
    with pytest.raises(IndexError):
        events[10]


def test_the_position_behind_a_range_is_the_feed_s_own(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {1: 10})
    (batch,) = read(LazyHub(hub), 4, "1")
    assert batch.next == hub.read_batch("1", Checkpoint(next_sequence=0), 4).next


def test_partitions_that_begin_together_share_the_bound(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 100, 1: 100, 2: 3, 3: 0})
    sizes = [len(batch.events) for batch in read(LazyHub(hub), 43, "0", "1", "2", "3")]
    assert sizes == [20, 20, 3, 0]


def test_all_partitions_are_told_by_one_look(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 5, 1: 5, 2: 5})
    lazy = LazyHub(hub)
    read(lazy, 100, "0", "1", "2")  # the first time, each asks besides whether it is the same hub
    before = hub.requests["extents"]
    read(lazy, 100, "0", "1", "2")
    assert hub.requests["extents"] - before == 1


def test_a_position_of_another_hub_is_noticed(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, {0: 5})

    async def main() -> None:
        await LazyHub(hub).read("0", Checkpoint(next_sequence=2, token="12345"), 10)

    with pytest.raises(PositionGone, match="another hub"):
        asyncio.run(main())


def test_changes_are_counted_although_their_numbers_have_gaps(tmp_path: Path) -> None:
    box = lh.Container.create(
        tmp_path / "box.db", name="alerts", namespace="test", partition_key="/home"
    )
    for i in range(10):
        box.upsert({"id": f"{i % 5}", "home": "h"})

    async def main() -> lh.ports.Batch:
        return await LazyChanges(box.feed()).read("0", Checkpoint(next_sequence=1), 100)

    events = asyncio.run(main()).events
    assert len(events) == 5
    lsns = [change.lsn for change in events]
    cut = events[1:3]
    assert (cut.range.first, cut.range.end) == (lsns[1], lsns[3])
    assert events[3:].range.end == lsns[-1] + 1
