"""Pieces of ranges, as they come from real feeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.blocking import result_of

import leasehold as lh
from leasehold.core.ranges import Range
from leasehold.errors import FeedUnavailable, PositionGone
from leasehold.feeds import change_chunks as container_chunks
from leasehold.feeds.arrow_events import EVENT_COLUMNS
from leasehold.feeds.change_chunks import CHANGE_COLUMNS
from leasehold.feeds.hub import chunks as hub_chunks


def hub_with(folder: Path, events: int) -> lh.Hub:
    hub = lh.Hub.create(folder / "h.db", name="h", namespace="t", partitions=2)
    sent = [lh.EventData(f"{n}".encode(), properties={"n": n}) for n in range(events)]
    hub.send(sent, partition_key="k")
    return hub


def partition_of(hub: lh.Hub) -> str:
    return next(each.partition for each in result_of(hub.extents()) if each.end)


def test_a_range_of_a_hub_has_exactly_its_events_with_every_column(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 20)
    partition = partition_of(hub)
    (chunk,) = hub.read_columns([Range(partition=partition, first=5, end=12)])
    table = chunk.columns(EVENT_COLUMNS.schema.names)
    assert table.schema == EVENT_COLUMNS.schema
    assert table["body"].to_pylist() == [f"{n}".encode() for n in range(5, 12)]
    assert table["sequence"].to_pylist() == list(range(5, 12))
    assert set(table["partition"].to_pylist()) == {partition}
    assert set(table["partition_key"].to_pylist()) == {"k"}
    assert json.loads(table["properties"][0].as_py()) == {"n": 5}
    plain = hub.read_batch(partition, lh.Checkpoint(next_sequence=5), 7).events
    assert list(chunk.events(range(7))) == list(plain)
    assert [event.offset for event in plain] == table["offset"].to_pylist()
    assert [event.enqueued_at for event in plain] == table["enqueued_at"].to_pylist()
    assert [event.sequence for event in chunk.events([2, 4])] == [7, 9]


def test_a_long_range_comes_in_pieces_that_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hub_with(tmp_path, 100)
    monkeypatch.setattr(hub_chunks, "CHUNK_EVENTS", 30)
    found = list(hub.read_columns([Range(partition=partition_of(hub), first=0, end=100)]))
    assert [len(each) for each in found] == [30, 30, 30, 10]
    assert [row for each in found for row in each.columns(["body"])["body"].to_pylist()] == [
        f"{n}".encode() for n in range(100)
    ]


def test_bodies_are_bounded_by_their_size_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = lh.Hub.create(tmp_path / "h.db", name="h", namespace="t", partitions=1)
    for _ in range(10):
        hub.send([lh.EventData(b"x" * 100_000)])
    monkeypatch.setattr(hub_chunks, "CHUNK_BYTES", 250_000)
    found = list(hub.read_columns([Range(partition="0", first=0, end=10)]))
    assert sum(len(each) for each in found) == 10
    assert max(len(each) for each in found) < 5


def test_a_range_that_the_hub_does_not_have_is_an_error_and_not_less(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 5)
    partition = partition_of(hub)
    with pytest.raises(FeedUnavailable, match="sequence 5 cannot be read"):
        list(hub.read_columns([Range(partition=partition, first=0, end=9)]))
    hub.trim_before(partition, 5)
    with pytest.raises(PositionGone):
        list(hub.read_columns([Range(partition=partition, first=0, end=5)]))


def test_a_range_of_a_container_has_its_changes_and_deletes_as_null(tmp_path: Path) -> None:
    with lh.Container.create(
        tmp_path / "c.db",
        name="c",
        namespace="t",
        partition_key="/key",
        ranges=1,
        versions_s=1e9,
    ) as container:
        for id in "abc":
            container.upsert({"id": id, "key": "k", "é": 1})
        container.delete("b", "k")
        container.upsert({"id": "later", "key": "k"})
        (chunk,) = container.feed("all").read_columns([Range(partition="0", first=1, end=5)])
        table = chunk.columns(CHANGE_COLUMNS.schema.names)
        assert table.schema == CHANGE_COLUMNS.schema
        assert table["lsn"].to_pylist() == [1, 2, 3, 4]
        assert table["operation"].to_pylist() == ["insert", "insert", "insert", "delete"]
        documents = table["document"].to_pylist()
        assert json.loads(documents[0])["é"] == 1
        assert documents[3] is None
        assert json.loads(table["previous"].to_pylist()[3])["id"] == "b"
        assert table["document"].null_count == 1
        assert [change.lsn for change in chunk.events([3])] == [4]
        # In the feed of newest states, what changed later is not there any more.
        (chunk,) = container.feed("latest").read_columns([Range(partition="0", first=1, end=5)])
        assert chunk.columns(["lsn"])["lsn"].to_pylist() == [1, 3]


def test_many_changes_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_chunks, "CHUNK_CHANGES", 4)
    with lh.Container.create(
        tmp_path / "c.db", name="c", namespace="t", partition_key="/id", ranges=1
    ) as container:
        for number in range(10):
            container.upsert({"id": str(number)})
        found = list(container.feed().read_columns([Range(partition="0", first=1, end=11)]))
        assert [len(each) for each in found] == [4, 4, 2]
