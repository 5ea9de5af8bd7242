"""What an estimator asks a hub: both ends of every partition, and the times of events."""

import asyncio
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.blocking import result_of
from support.clocks import FakeClocks

from leasehold.core.event import EventData
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint
from leasehold.errors import PositionGone
from leasehold.feeds.hub import Hub


def test_a_new_hub_has_an_empty_extent_per_partition(hub: Hub) -> None:
    assert result_of(hub.extents()) == [Extent(partition=str(n), first=0, end=0) for n in range(4)]


def test_all_extents_cost_one_request(hub: Hub) -> None:
    asyncio.run(hub.extents())
    assert hub.requests == {"extents": 1}


def test_every_event_has_a_time_although_none_is_decoded(tmp_path: Path) -> None:
    clocks = FakeClocks(100.0)
    with Hub.create(
        tmp_path / "hub.db", name="h", namespace="n", partitions=2, clocks=clocks
    ) as hub:
        hub.send([EventData(b"x" * n) for n in (5, 0, 3)], partition_id=0)
        clocks.now = 107.5
        hub.send([EventData(b"x" * n) for n in (1, 2)], partition_id=0)
        positions = [Checkpoint(next_sequence=n) for n in range(5)]
        times = [result_of(hub.event_times({"0": position}))["0"] for position in positions]
        assert times == [100.0] * 3 + [107.5] * 2
        assert result_of(hub.extents())[0] == Extent(
            partition="0", first=0, end=5, last_enqueued_at=107.5
        )


@settings(max_examples=25)
@example([[7, 0], [0, 0, 3]])
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=5))
def test_every_true_position_is_known_and_one_of_another_hub_is_not(
    tmp_path_factory, sends
) -> None:
    folder = tmp_path_factory.mktemp("hubs")
    with (
        Hub.create(folder / "a.db", name="h", namespace="n", partitions=1) as hub,
        Hub.create(folder / "b.db", name="h", namespace="n", partitions=1) as anew,
    ):
        for sizes in sends:
            for each in (hub, anew):
                each.send([EventData(b"x" * size) for size in sizes], partition_id=0)
        position, end = hub.position_of(0, "earliest"), hub.position_of(0, "latest")
        while position != end:
            assert isinstance(result_of(hub.event_times({"0": position}))["0"], float)
            gone = result_of(anew.event_times({"0": position}))["0"]
            assert isinstance(gone, PositionGone)
            assert gone.reason == "other feed"
            position = hub.read_batch(0, position, 1).next
        assert result_of(hub.event_times({"0": end})) == {}
        assert isinstance(result_of(anew.event_times({"0": end}))["0"], PositionGone)


def test_a_position_that_is_not_there_has_a_reason_instead_of_a_time(hub: Hub) -> None:
    hub.send([EventData(b"x" * 9)] * 3, partition_id=1)
    hub.send(EventData(b"x"), partition_id=1)
    token = int(hub.position_of(1, "earliest").token)
    reasons = {
        Checkpoint(next_sequence=5): "beyond end",
        Checkpoint(next_sequence=0, token="abc"): "other feed",
        Checkpoint(next_sequence=0, token=str(token + 1)): "other feed",
        Checkpoint(next_sequence=2, token=str(token + 1)): "other feed",
        Checkpoint(next_sequence=2, token=str(token + 30)): "other feed",
        Checkpoint(next_sequence=4, token=str(token)): "other feed",
    }
    for position, reason in reasons.items():
        gone = result_of(hub.event_times({"1": position}))["1"]
        assert isinstance(gone, PositionGone)
        assert (gone.reason, gone.partition, gone.position) == (reason, "1", position)
    hub.trim_before(1, 3)
    gone = result_of(hub.event_times({"1": Checkpoint(next_sequence=2)}))["1"]
    assert isinstance(gone, PositionGone)
    assert gone.reason == "retention"
