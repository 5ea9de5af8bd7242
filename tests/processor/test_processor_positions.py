"""Where a processor begins, what it writes down, and what it does about positions that are gone."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from support.clocks import FakeClocks
from support.processing import (
    Seen,
    checkpoints,
    each,
    fill,
    look,
    make_hub,
    make_processor,
    open_leases,
    running,
    until,
)

import leasehold as lh


@pytest.fixture
def store(tmp_path):
    return open_leases(tmp_path)


def drain(hub, store, **settings):
    seen = Seen()
    make_processor(hub, store, **{"on_event": seen.event, **settings}).run(until_drained=True)
    return dict(seen.by_partition)


def offset_of(hub, partition, sequence):
    return str(hub.read_arrow(partition, sequence, 1).column("offset")[0].as_py())


def test_a_group_without_checkpoint_begins_at_the_earliest_unless_told_otherwise(tmp_path, store):
    assert drain(make_hub(tmp_path, events=5), store) == each(4, 5)


def test_latest_means_only_what_comes_from_now_on(tmp_path, store):
    hub = make_hub(tmp_path, events=5)
    assert drain(hub, store, start="latest") == {}
    fill(hub, 2)
    assert drain(hub, store, start="earliest") == each(4, 2, first=5)  # it is written down


@pytest.mark.parametrize("start", [3, "sequence:3"])
def test_a_start_by_sequence(tmp_path, store, start):
    assert drain(make_hub(tmp_path, events=5), store, start=start) == each(4, 2, first=3)


def test_a_start_by_offset(tmp_path, store):
    hub = make_hub(tmp_path, partitions=1, events=5)
    start = f"offset:{offset_of(hub, 0, 3)}"
    assert drain(hub, store, start=start) == {"0": [3, 4]}


@pytest.mark.parametrize("text", [True, False])
def test_a_start_by_time(tmp_path, store, text):
    clocks = FakeClocks(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp())
    hub = make_hub(tmp_path, clocks=clocks)
    for _ in range(5):
        fill(hub, 2)
        clocks.now += 60
    start = datetime(2026, 1, 31, 12, 2, 30, tzinfo=UTC)
    start = f"time:{start.isoformat()}" if text else start
    assert drain(hub, store, start=start) == each(4, 4, first=6)


def test_a_start_for_each_partition_and_one_for_the_rest(tmp_path, store):
    hub = make_hub(tmp_path, partitions=5, events=5)
    start = {
        "0": "latest",
        1: 3,
        "2": f"offset:{offset_of(hub, 2, 4)}",
        "3": "earliest",
        "*": "sequence:2",
    }
    assert drain(hub, store, start=start) == {
        "1": [3, 4],
        "2": [4],
        "3": [0, 1, 2, 3, 4],
        "4": [2, 3, 4],
    }


@pytest.mark.parametrize("start", ["sequence:6", f"offset:{1 << 60}", "offset:x"])
def test_a_start_that_is_not_there_is_refused_at_once(tmp_path, store, start):
    hub = make_hub(tmp_path, events=5)
    with pytest.raises((lh.PositionGone, lh.BadInput), match=r"beyond the end|whole numbers"):
        drain(hub, store, start=start)
    assert checkpoints(store) == {}


@pytest.mark.parametrize(
    ("policy", "writes"),
    [
        (None, 4),  # per batch
        (lh.every(events=1), 40),
        (lh.every(events=7), 6),
        (lh.every(batches=2), 2),
        (lh.every(seconds=1000), 1),
        (lh.every(events=1000, batches=3), 2),
    ],
)
@pytest.mark.parametrize("how", ["on_event", "on_batch"])
def test_checkpoints_are_as_often_as_the_policy_says(tmp_path, store, how, policy, writes):
    seen = Seen()
    handler = seen.event if how == "on_event" else seen.batch
    hub = make_hub(tmp_path, partitions=1, events=40)
    before = store.requests["checkpoint"]
    make_processor(hub, store, checkpoint=policy, max_events=10, **{how: handler}).run(
        until_drained=True
    )
    assert (seen.by_partition, checkpoints(store)) == (each(1, 40), {"0": 40})
    by_batch = {(7,): 4, (1,): 4}  # a batch is one call: what is due within it is due behind it
    events = () if policy is None else (policy.events,)
    expected = by_batch.get(events, writes) if how == "on_batch" else writes
    assert store.requests["checkpoint"] - before == expected


def test_a_timed_checkpoint_is_written_while_nothing_comes(tmp_path, store):
    seen = Seen()
    hub = make_hub(tmp_path, partitions=1, events=3)

    async def main():
        processor = make_processor(
            hub, store, on_event=seen.event, checkpoint=lh.every(seconds=0.3)
        )
        async with running(processor):
            await until(lambda: seen.count == 3)
            while (await look(store)).leases[0].checkpoint.next_sequence < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["on_event", "on_batch"])
def test_by_hand_only_the_handlers_own_checkpoints_count(tmp_path, store, how, is_async):
    def wanted(given):
        """The event with sequence 6, wherever it comes."""
        events = [given] if how == "on_event" else given
        return next((event for event in events if event.sequence == 6), None)

    def plain(given, context):
        if event := wanted(given):
            context.checkpoint(event)

    async def on_loop(given, context):
        if event := wanted(given):
            await context.checkpoint_async(event)

    hub = make_hub(tmp_path, partitions=2, events=10)
    handler = on_loop if is_async else plain
    make_processor(hub, store, checkpoint=lh.manual(), **{how: handler}).run(until_drained=True)
    assert checkpoints(store) == {"0": 7, "1": 7}
    assert drain(hub, store) == each(2, 3, first=7)


def test_a_checkpoint_by_hand_comes_on_top_of_the_policy(tmp_path, store):
    stored = []

    def on_event(event, context):
        if event.sequence == 4:
            context.checkpoint()
            stored.append(checkpoints(open_leases(tmp_path))["0"])

    hub = make_hub(tmp_path, partitions=1, events=10)
    make_processor(hub, store, on_event=on_event).run(until_drained=True)
    assert (stored, checkpoints(store)) == ([5], {"0": 10})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_context_whose_lease_is_lost_can_write_nothing(tmp_path, store, is_async):
    errors, began, go = [], threading.Event(), threading.Event()

    def plain(events, context):
        if not began.is_set():  # whatever the epoch: a slow machine may lose the first
            began.set()
            go.wait(60)
            context.checkpoint()

    async def on_loop(events, context):
        if not began.is_set():
            began.set()
            while not go.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await context.checkpoint_async()

    hub = make_hub(tmp_path, partitions=1, events=5)

    async def main():
        processor = make_processor(
            hub, store, on_batch=on_loop if is_async else plain, on_error=errors.append
        )
        async with running(processor):
            await until(began.is_set)
            while not await store.rewind((await look(store)).leases):
                pass  # a renewal came between; once it works, the owner is fenced off
            go.set()
            await until(lambda: errors)
            await until(lambda: processor.partitions)

    asyncio.run(main())
    assert isinstance(errors[0], lh.LeaseLost)
    assert "partition 0 of homes/sensors/g" in str(errors[0])


def test_a_context_kept_beyond_the_end_can_write_nothing(tmp_path, store):
    kept = []
    hub = make_hub(tmp_path, partitions=1, events=5)

    async def main():
        processor = make_processor(
            hub, store, on_event=lambda event, context: kept.append((event, context))
        )
        await processor.run_async(until_drained=True)
        event, context = kept[0]
        with pytest.raises(lh.LeaseLost):
            await context.checkpoint_async(event)

    asyncio.run(main())
    with pytest.raises(lh.LeaseLost, match="has stopped"):
        kept[0][1].checkpoint(kept[0][0])
    assert checkpoints(store) == {"0": 5}


@pytest.mark.parametrize("refill", [3, 7, 20])
def test_a_hub_made_anew_is_read_from_its_beginning_and_that_is_said(tmp_path, store, refill):
    """Whether the new hub is shorter, as long or longer than where the group was."""
    with make_hub(tmp_path, partitions=2, events=7) as hub:
        drain(hub, store)
    for part in tmp_path.glob("hub.db*"):
        part.unlink()
    told = []
    hub = make_hub(tmp_path, partitions=2, events=refill)
    found = drain(hub, store, on_error=lambda error, context: told.append((error, context)))
    assert found == each(2, refill)
    assert checkpoints(store) == {"0": refill, "1": refill}
    assert {context.partition for _, context in told} == {"0", "1"}
    for error, _ in told:
        assert isinstance(error, lh.PositionGone)
        assert "recreated" in str(error)
        assert error.position.next_sequence == 7


@pytest.mark.parametrize("late", [0, 3, 8, 15])
def test_a_hub_that_lost_events_is_read_from_where_it_lost_them(tmp_path, store, late):
    """Whether what came since is less, as much or more than what was lost."""
    path, saved = tmp_path / "hub.db", tmp_path / "saved.db"
    with make_hub(tmp_path, partitions=2, events=5) as hub:
        with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(saved)) as copy:
            db.backup(copy)
        fill(hub, 8)
        assert drain(hub, store) == each(2, 13)
    for part in tmp_path.glob("hub.db-*"):
        part.unlink()
    saved.replace(path)
    told = []
    with lh.Hub.open(path) as hub:
        fill(hub, late)
        found = drain(hub, store, on_error=told.append)
        assert found == (each(2, late, first=5) if late else {})
        assert checkpoints(store) == {"0": 5 + late, "1": 5 + late}
    assert {(error.reason, error.shared.next_sequence) for error in told} == {
        ("beyond end" if late < 8 else "rolled back", 5)
    }


def test_a_processor_may_stop_where_its_hub_lost_events(tmp_path, store):
    path, saved = tmp_path / "hub.db", tmp_path / "saved.db"
    with make_hub(tmp_path, partitions=1, events=5) as hub:
        with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(saved)) as copy:
            db.backup(copy)
        fill(hub, 5)
        drain(hub, store)
    for part in tmp_path.glob("hub.db-*"):
        part.unlink()
    saved.replace(path)
    with lh.Hub.open(path) as hub:
        fill(hub, 15)
        with pytest.raises(lh.PositionGone, match="has lost"):
            drain(hub, store, on_position_gone="fail")
    assert checkpoints(store) == {"0": 10}


def test_a_hub_made_anew_with_fewer_partitions_leaves_the_other_leases_alone(tmp_path, store):
    with make_hub(tmp_path, partitions=3, events=2) as hub:
        drain(hub, store)
    for part in tmp_path.glob("hub.db*"):
        part.unlink()
    assert drain(make_hub(tmp_path, partitions=1, events=1), store) == {"0": [0]}
    assert checkpoints(store) == {"0": 1, "1": 2, "2": 2}


def test_a_hub_made_anew_and_still_empty_is_noticed_too(tmp_path, store):
    with make_hub(tmp_path, partitions=1, events=7) as hub:
        drain(hub, store)
    for part in tmp_path.glob("hub.db*"):
        part.unlink()
    told = []
    hub = make_hub(tmp_path, partitions=1)

    async def main():
        seen = Seen()
        processor = make_processor(hub, store, on_event=seen.event, on_error=told.append)
        async with running(processor):
            await until(lambda: told)
            fill(hub, 9)
            await until(lambda: seen.count == 9)
        return seen

    assert asyncio.run(main()).by_partition == each(1, 9)
    assert len(told) == 1


def test_a_hub_made_anew_under_a_running_processor_is_said_until_it_is_started_again(
    tmp_path, store
):
    told = []
    hub = make_hub(tmp_path, partitions=1, events=7)

    async def main():
        seen = Seen()
        processor = make_processor(hub, store, on_event=seen.event, on_error=told.append)
        async with running(processor):
            await until(lambda: seen.count == 7)
            for part in tmp_path.glob("hub.db*"):
                part.unlink()
            make_hub(tmp_path, partitions=1, events=3).close()
            await until(lambda: len(told) > 3)
            assert isinstance(told[-1], lh.BadInput)
            assert "recreated; open it again" in str(told[-1])

    asyncio.run(main())
    assert drain(lh.Hub.open(tmp_path / "hub.db"), store) == each(1, 3)


def test_retention_that_passes_the_checkpoint_is_said_and_reading_goes_on(tmp_path, store):
    hub = make_hub(tmp_path, partitions=1)
    for _ in range(10):
        fill(hub, 5)
    drain(hub, store, start="latest")
    for _ in range(10):
        fill(hub, 5)
    hub.trim_before(0, 80)
    told = []
    assert drain(hub, store, on_error=told.append) == {"0": list(range(80, 100))}
    (gone,) = told
    assert (gone.reason, gone.earliest.next_sequence) == ("retention", 80)
    assert "sequence 50 is older than what the hub keeps" in str(gone)


def test_retention_that_leaves_nothing_is_said_once(tmp_path, store):
    hub = make_hub(tmp_path, partitions=1)
    drain(hub, store)
    fill(hub, 5)
    hub.trim_before(0, 5)
    told = []
    assert drain(hub, store, on_error=told.append) == {}
    assert drain(hub, store, on_error=told.append) == {}
    assert [gone.reason for gone in told] == ["retention"]
    assert checkpoints(store) == {"0": 5}


def test_a_position_that_is_gone_ends_the_processor_if_so_chosen(tmp_path, store):
    hub = make_hub(tmp_path, partitions=1)
    drain(hub, store)
    fill(hub, 5)
    fill(hub, 5)
    hub.trim_before(0, 5)
    with pytest.raises(lh.PositionGone, match="older than what the hub keeps"):
        drain(hub, store, on_position_gone="fail")
    assert checkpoints(store) == {"0": 0}


def test_rewound_by_an_operator_the_events_come_again(tmp_path, store):
    hub = make_hub(tmp_path, partitions=1, events=10)
    drain(hub, store)

    async def rewind():
        (lease,) = (await look(store)).leases
        position = await hub.locate("0", "sequence:6")
        assert await store.rewind([replace(lease, checkpoint=position)])
        await store.close()

    asyncio.run(rewind())
    assert drain(hub, store) == {"0": [6, 7, 8, 9]}


def test_what_a_dead_instance_had_not_written_down_comes_again(tmp_path, store):
    """From exactly where it was, or slightly before; never after."""
    seen, go = Seen(), threading.Event()

    def on_event(event):
        seen.event(event)
        if event.sequence == 5:
            go.wait(60)

    hub = make_hub(tmp_path, partitions=1, events=10)

    async def die():
        processor = make_processor(
            hub, store, instance="a", on_event=on_event, checkpoint=lh.every(events=4)
        )
        task = asyncio.ensure_future(processor.run_async())
        await until(lambda: seen.count == 6)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.1)
        await asyncio.wait([task])
        await store.close()

    asyncio.run(die())
    go.set()
    began = time.monotonic()
    # Under its own name it takes up its lease at once, long before it expires.
    assert drain(hub, store, instance="a") == {"0": [4, 5, 6, 7, 8, 9]}
    assert time.monotonic() - began < 30
