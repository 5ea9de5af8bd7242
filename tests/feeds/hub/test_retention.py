import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.clocks import FakeClocks

from leasehold.core.event import EventData
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds.hub import Hub
from leasehold.feeds.hub import writer as hub_writer
from leasehold.feeds.hub.file import TRIM_ROWS, HubFile, RemovedEvents
from leasehold.local import sqlite as sqlite_file


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def aging(tmp_path: Path, clocks: FakeClocks) -> Hub:
    """Five batches of ten events in each of two partitions, a hundred seconds apart."""
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=2, clocks=clocks)
    for _ in range(5):
        for partition in (0, 1):
            hub.send([EventData(os.urandom(100))] * 10, partition_id=partition)
        clocks.now += 100
    return hub


def firsts(hub: Hub) -> list[int]:
    return [hub.partition_properties(partition).first_sequence for partition in (0, 1)]


def test_batches_older_than_the_age_are_removed_and_no_others(aging: Hub) -> None:
    assert aging.trim(max_age_s=600) == RemovedEvents(0, 0)
    before = aging.properties().stored_bytes
    removed = aging.trim(max_age_s=350)
    assert removed.events == 40
    assert removed.stored_bytes == before - aging.properties().stored_bytes
    assert firsts(aging) == [20, 20]
    assert aging.properties().events == 60
    assert aging.properties().body_bytes == 6000


def test_a_batch_of_exactly_the_age_is_kept(aging: Hub) -> None:
    aging.trim(max_age_s=300)
    assert firsts(aging) == [20, 20]


def test_the_batches_sent_first_are_removed_until_the_rest_fits(aging: Hub) -> None:
    per_batch = aging.properties().stored_bytes / 10
    aging.trim(max_bytes=int(per_batch * 7.5))
    assert firsts(aging) == [20, 10]
    assert aging.properties().stored_bytes <= per_batch * 7.5
    aging.trim(max_bytes=0)
    assert firsts(aging) == [50, 50]
    assert aging.properties().stored_bytes == 0


def test_sequences_go_on_after_everything_was_removed(aging: Hub) -> None:
    aging.trim(max_bytes=0)
    end = aging.position_of(0, "latest")
    (appended,) = aging.send([EventData(b"x")], partition_id=0)
    assert appended.first_sequence == 50
    assert len(aging.read_batch(0, end, 10).events) == 1


def test_reading_before_retention_says_so_and_where_to_go_on(aging: Hub) -> None:
    aging.trim(max_age_s=350)
    with pytest.raises(PositionGone, match="sequence 19 is older than what the hub keeps") as gone:
        aging.read_arrow(0, 19)
    assert "keeps sequences 20 to 49" in str(gone.value)
    assert gone.value.reason == "retention"
    assert gone.value.position == Checkpoint(next_sequence=19)
    assert aging.read_batch(0, gone.value.earliest, 1).events[0].sequence == 20


def test_an_offset_before_retention_or_beyond_the_end_is_gone(aging: Hub) -> None:
    first = aging.read_batch(0, aging.position_of(0, "earliest"), 1).events[0].offset
    end = int(aging.position_of(0, "latest").token)
    aging.trim(max_age_s=350)
    for offset, reason in ((first, "retention"), (0, "retention"), (end + 1, "beyond end")):
        with pytest.raises(PositionGone, match=f"offset {offset} is") as gone:
            aging.position_of(0, f"offset:{offset}")
        assert gone.value.reason == reason
    with pytest.raises(BadInput, match="whole numbers"):
        aging.position_of(0, "offset:abc")


def test_an_offset_between_two_events_means_the_later_one(aging: Hub) -> None:
    events = aging.read_batch(0, aging.position_of(0, "earliest"), 50).events
    assert aging.position_of(0, f"offset:{int(events[24].offset) - 1}").next_sequence == 24
    assert aging.position_of(0, f"offset:{int(events[24].offset) + 1}").next_sequence == 25


def test_the_hubs_own_retention_applies_when_nothing_else_is_said(aging: Hub) -> None:
    assert aging.trim() == RemovedEvents(0, 0)
    aging.set_retention(retention_s=250)
    assert aging.properties().retention_s == 250
    aging.trim()
    assert firsts(aging) == [30, 30]


def test_producers_keep_the_retention_as_they_send(
    aging: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    aging.set_retention(retention_s=250)
    aging.send([EventData(b"x")], partition_id=0)
    assert firsts(aging) == [0, 0]
    monkeypatch.setattr(hub_writer, "TRIM_INTERVAL_S", 0)
    aging.send([EventData(b"x")], partition_id=0)
    assert firsts(aging) == [30, 30]


def test_a_send_is_not_refused_because_old_events_cannot_be_removed(
    tmp_path: Path,
    clocks: FakeClocks,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(hub_writer, "TRIM_INTERVAL_S", 0)
    append = HubFile.append
    with (
        Hub.create(
            tmp_path / "h.db", name="h", namespace="n", partitions=1, retention_s=50, clocks=clocks
        ) as hub,
        closing(sqlite3.connect(hub.path, isolation_level=None)) as other,
    ):

        def append_and_keep_busy(self: HubFile, *args: Any) -> Any:
            stored = append(self, *args)
            other.execute("BEGIN IMMEDIATE")
            return stored

        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(HubFile, "append", append_and_keep_busy)
                assert hub.send_columns(["a", "b"], [b"1", b"2"])[0].events == 2
            other.execute("ROLLBACK")
            clocks.now += 100
        assert hub.properties().events == 6
        (said,) = caplog.messages
        assert "old events are not removed: the hub" in said
        assert "kept busy by another process" in said
        hub.send([EventData(b"x")])
        assert hub.properties().events == 1


@pytest.mark.parametrize(
    "error", [FeedUnavailable("full"), BadInput("damaged"), sqlite3.Error("odd"), OSError("gone")]
)
def test_each_trouble_with_old_events_is_said_once(
    aging: Hub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    aging.set_retention(retention_s=250)
    monkeypatch.setattr(hub_writer, "TRIM_INTERVAL_S", 0)

    def remove_before(*_: object, **__: object) -> None:
        raise error

    for round_ in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(HubFile, "remove_before", remove_before)
            for _ in range(3):
                aging.send([EventData(b"x")], partition_id=0)
        assert len(caplog.messages) == round_
        aging.send([EventData(b"x")], partition_id=0)
    assert aging.partition_properties(0).next_sequence == 50 + 8
    assert firsts(aging) == [30, 30]


def test_whoever_trims_is_told_what_went_wrong(aging: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_before(*_: object, **__: object) -> None:
        raise FeedUnavailable("full")

    monkeypatch.setattr(HubFile, "remove_before", remove_before)
    with pytest.raises(FeedUnavailable, match="full"):
        aging.trim(max_age_s=1)


def test_events_may_be_kept_for_ever(aging: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    aging.set_retention(retention_s=float("inf"))
    monkeypatch.setattr(hub_writer, "TRIM_INTERVAL_S", 0)
    aging.send([EventData(b"x")], partition_id=0)
    assert firsts(aging) == [0, 0]


def test_one_partition_can_be_trimmed_up_to_a_sequence(aging: Hub) -> None:
    assert aging.trim_before(1, 35).events == 30
    assert firsts(aging) == [0, 30]


def test_many_small_batches_are_removed_in_several_steps_and_the_file_shrinks(
    tmp_path: Path,
) -> None:
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=1)
    for _ in range(2 * TRIM_ROWS + 5):
        hub.send([EventData(os.urandom(3000))], partition_id=0)
    hub.close()
    before = hub.path.stat().st_size
    with Hub.open(hub.path) as again:
        assert again.trim_before(0, 2 * TRIM_ROWS + 1).events == 2 * TRIM_ROWS + 1
        assert again.partition_properties(0).events == 4
    assert hub.path.stat().st_size < before / 10


def test_nonsense_retention_is_refused(aging: Hub) -> None:
    for call in (aging.trim, aging.set_retention):
        key = "max_age_s" if call == aging.trim else "retention_s"
        with pytest.raises(BadInput, match="give 0 or more"):
            call(**{key: -1})
        with pytest.raises(BadInput, match="give 0 or more"):
            call(**{key: float("nan")})
