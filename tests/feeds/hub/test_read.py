import asyncio
import pickle
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.clocks import FakeClocks

from leasehold.core.event import EventData
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.arrow_events import EVENT_SCHEMA
from leasehold.feeds.hub import Hub
from leasehold.feeds.hub.offsets import STEP

DAY_S = 86_400


def test_a_read_gives_arrow_columns(hub: Hub) -> None:
    hub.send([EventData(b"a", {"n": 1}), EventData(b"bcd")], partition_key="k")
    (number,) = [p for p in range(4) if hub.partition_properties(p).events]
    first = int(hub.position_of(number, "earliest").token)
    found = hub.read_arrow(number, 0)
    assert found.schema == EVENT_SCHEMA
    assert found.column("body").to_pylist() == [b"a", b"bcd"]
    assert found.column("sequence").to_pylist() == [0, 1]
    one, two = found.column("offset").to_pylist()
    assert (first < one, two - one) == (True, STEP)
    assert found.column("partition_key").to_pylist() == ["k", "k"]
    assert found.column("properties").to_pylist() == ['{"n": 1}', None]
    found.validate(full=True)


def test_batches_with_and_without_keys_and_properties_read_as_one(hub: Hub) -> None:
    hub.send_columns(None, [b"0"], partition_id=1)
    hub.send_columns(["k"], [b"1"], partition_id=1)
    hub.send_columns(None, [b"2"], ['{"a": 1}'], partition_id=1)
    hub.send_columns(["k"], [b"3"], ['{"a": 2}'], partition_id=1)
    hub.send_columns(["k"], [b"4"], [None], partition_id=1)
    found = hub.read_arrow(1, 0)
    assert found.column("body").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert found.column("partition_key").to_pylist() == [None, "k", None, "k", "k"]
    assert found.column("properties").to_pylist() == [None, None, '{"a": 1}', '{"a": 2}', None]


def test_what_comes_while_the_end_is_looked_up_leaves_a_position_of_this_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.send_columns(None, [b"before"], partition_id=0)
    wanted = hub.position_of(0, "latest")
    file = hub._file
    real = file.places

    def places(sequences: Any) -> Any:
        found = real(sequences)
        hub.send_columns(None, [b"meanwhile"], partition_id=0)
        return found

    monkeypatch.setattr(file, "places", places)
    found = hub.position_of(0, "sequence:1")
    monkeypatch.undo()
    assert found == wanted
    assert [event.body for event in hub.read_batch(0, found, 10).events] == [b"meanwhile"]


def test_reading_in_small_steps_decodes_a_large_batch_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.send_columns(None, [b"%d" % n for n in range(1000)], partition_id=0)
    decoded = []
    real = pa.ipc.read_record_batch
    monkeypatch.setattr(pa.ipc, "read_record_batch", lambda *a: decoded.append(1) or real(*a))
    for start in range(0, 1000, 100):
        found = hub.read_arrow(0, start, 100)
        assert found.column("body").to_pylist() == [b"%d" % n for n in range(start, start + 100)]
    assert len(decoded) == 1


def test_a_kept_decoded_batch_is_found_again_in_the_middle_of_a_read(hub: Hub) -> None:
    for number in range(4):
        hub.send_columns(
            None, [b"%d" % n for n in range(10 * number, 10 * number + 10)], partition_id=0
        )
    hub.read_arrow(0, 20, 5)
    assert hub.read_arrow(0, 3, 100).column("body").to_pylist() == [b"%d" % n for n in range(3, 40)]


def test_a_kept_decoded_batch_is_not_taken_for_the_one_before_it(hub: Hub) -> None:
    hub.send_columns(None, [b"first"], partition_id=0)
    hub.send_columns(None, [b"%d" % n for n in range(100)], partition_id=0)
    for _ in range(2):
        found = hub.read_arrow(0, 0, 3)
        assert found.column("body").to_pylist() == [b"first", b"0", b"1"]


def test_a_read_from_the_middle_of_a_batch_goes_on_into_the_next(hub: Hub) -> None:
    for _ in range(3):
        hub.send([EventData(b"x")] * 10, partition_id=0)
    assert hub.read_arrow(0, 7, 10).column("sequence").to_pylist() == list(range(7, 17))


def test_a_read_stops_at_max_bytes_but_gives_at_least_one_batch(hub: Hub) -> None:
    for _ in range(10):
        hub.send([EventData(b"x" * 1000)] * 10, partition_id=0)
    assert hub.read_arrow(0, 0, 1000, max_bytes=1).num_rows == 10
    assert hub.read_arrow(0, 0, 1000, max_bytes=25_000).num_rows == 30
    assert hub.read_arrow(0, 0, 1000).num_rows == 100


def test_no_events_may_not_be_asked_for(hub: Hub) -> None:
    with pytest.raises(BadInput, match="max_events is 0"):
        hub.read_arrow(0, 0, 0)
    with pytest.raises(BadInput, match="the first one is 0"):
        hub.read_arrow(0, -1)


def test_a_checkpoint_of_an_earlier_hub_at_the_same_path_is_noticed(tmp_path: Path) -> None:
    def make() -> Hub:
        path = tmp_path / "hub.db"
        path.unlink(missing_ok=True)
        return Hub.create(path, name="h", namespace="n", partitions=1)

    with make() as old:
        old.send([EventData(b"same")] * 5, partition_id=0)
        middle = old.read_batch(0, old.position_of(0, "earliest"), 3).next
        end = old.position_of(0, "latest")
        identity = old.identity
    with make() as new:
        assert new.identity != identity
        with pytest.raises(PositionGone, match="was the hub recreated") as beyond:
            new.read_batch(0, middle, 10)
        assert beyond.value.reason == "beyond end"
        new.send([EventData(b"same")] * 5, partition_id=0)
        for position in (middle, end):
            with pytest.raises(PositionGone, match="position of another hub") as gone:
                new.read_batch(0, position, 10)
            assert gone.value.reason == "other feed"
            assert gone.value.earliest == new.position_of(0, "earliest")
            assert len(new.read_batch(0, gone.value.earliest, 10).events) == 5


def test_a_position_without_a_token_is_taken_by_its_sequence(hub: Hub) -> None:
    hub.send([EventData(b"a"), EventData(b"b")], partition_id=0)
    for token in ("", "-1"):
        batch = hub.read_batch(0, Checkpoint(next_sequence=1, token=token), 10)
        assert [event.body for event in batch.events] == [b"b"]


def test_enqueued_times_never_run_back_though_the_clock_does(tmp_path: Path) -> None:
    clocks = FakeClocks(2e9)
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=2, clocks=clocks)
    for number, wall in enumerate((2e9, 2e9 - DAY_S, 2e9 - DAY_S + 1, 2e9 + 1)):
        clocks.boot, clocks.ahead = f"boot {number}", wall - clocks.now
        hub.send([EventData(b"x")], partition_id=0)
    times = [
        event.enqueued_at.timestamp()
        for event in hub.read_batch(0, hub.position_of(0, "earliest"), 10).events
    ]
    assert times == [2e9, 2e9, 2e9, 2e9 + 1]
    assert hub.partition_properties(1).last_enqueued_at is None


def test_a_partition_that_saw_no_event_of_the_future_is_not_held_back_by_one_that_did(
    tmp_path: Path,
) -> None:
    clocks = FakeClocks(2e9)
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=2, clocks=clocks)
    hub.send([EventData(b"x")], partition_id=0)
    clocks.now, clocks.boot = 1.5e9, "another"
    hub.send([EventData(b"x")], partition_id=1)
    latest = hub.partition_properties(1).last_enqueued_at
    assert latest is not None
    assert latest.timestamp() == 1.5e9


def test_properties_tell_the_ends_times_and_sizes(hub: Hub) -> None:
    hub.send([EventData(b"12345")] * 20, partition_id=2)
    one = hub.partition_properties("2")
    assert (one.first_sequence, one.next_sequence, one.last_sequence) == (0, 20, 19)
    assert (one.events, one.body_bytes) == (20, 100)
    assert one.stored_bytes > 0
    assert one.last_offset == hub.position_of(2, "latest").token
    empty = hub.partition_properties("0")
    assert (empty.last_sequence, empty.events, empty.stored_bytes) == (-1, 0, 0)
    whole = hub.properties()
    assert (whole.namespace, whole.name, whole.identity) == (hub.namespace, hub.name, hub.identity)
    assert whole.partition_ids == ("0", "1", "2", "3")
    assert (whole.events, whole.body_bytes, whole.stored_bytes) == (20, 100, one.stored_bytes)
    assert whole.file_bytes >= hub.path.stat().st_size


def test_a_hub_can_be_handed_to_another_process(hub: Hub) -> None:
    hub.send([EventData(b"x")], partition_id=0)
    with pickle.loads(pickle.dumps(hub)) as other:
        assert other.identity == hub.identity
        assert other.read_arrow(0, 0).num_rows == 1


def test_calls_are_counted(hub: Hub) -> None:
    async def use() -> None:
        await hub.partitions()
        position = await hub.locate("0", "latest")
        await hub.read("0", position, 10)
        await hub.read("0", position, 10)

    hub.send([EventData(b"x")])
    asyncio.run(use())
    assert hub.requests == {"send": 1, "partitions": 1, "locate": 1, "read": 2}


def test_reading_does_not_wait_for_handlers_that_block_the_loops_own_threads(hub: Hub) -> None:
    hub.send([EventData(b"x")], partition_id=0)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        release = threading.Event()
        blocked = [loop.run_in_executor(None, release.wait) for _ in range(64)]
        try:
            batch = await asyncio.wait_for(hub.read("0", Checkpoint(next_sequence=0), 10), 30)
        finally:
            release.set()
            await asyncio.gather(*blocked)
        return len(batch.events)

    assert asyncio.run(main()) == 1
