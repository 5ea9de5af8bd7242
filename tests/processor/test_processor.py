"""Processors on a real hub file and a real lease store, in real time."""

import asyncio
import random
import sys
import threading
import time

import pytest
from support.clocks import clocks_of
from support.processing import (
    FAST,
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
    wait_until,
)

import leasehold as lh
from leasehold.clock import SystemClock
from leasehold.processor import processor as module
from leasehold.testing.faulty_store import Faults, FaultyStore


@pytest.fixture
def store(tmp_path):
    return open_leases(tmp_path)


def handlers_of_every_kind(seen):
    def plain_event(event):
        seen.event(event)

    def plain_event_with_context(event, context):
        assert (context.partition, context.group.name) == (event.partition, "g")
        seen.event(event)

    async def async_event(event):
        seen.event(event)

    async def async_event_with_context(event, context):
        plain_event_with_context(event, context)

    def plain_batch(events):
        seen.batch(events)

    def plain_batch_with_context(events, context):
        assert context.latest == events[-1]
        seen.batch(events)

    async def async_batch(events):
        seen.batch(events)

    async def async_batch_with_context(events, context):
        plain_batch_with_context(events, context)

    return [each for each in locals().values() if callable(each)]


KINDS = [function.__name__ for function in handlers_of_every_kind(None)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_is_handled_once_and_in_order_by_any_kind_of_handler(tmp_path, store, kind):
    seen = Seen()
    (handler,) = [each for each in handlers_of_every_kind(seen) if each.__name__ == kind]
    hub = make_hub(tmp_path, partitions=3, events=250)
    how = "on_event" if "event" in kind else "on_batch"
    make_processor(hub, store, max_events=100, **{how: handler}).run(until_drained=True)
    assert seen.by_partition == each(3, 250)
    assert checkpoints(store) == {"0": 250, "1": 250, "2": 250}


def test_a_batch_holds_no_more_events_than_asked_for(tmp_path, store):
    sizes = []
    hub = make_hub(tmp_path, partitions=1, events=250)
    processor = make_processor(
        hub, store, on_batch=lambda events: sizes.append(len(events)), max_events=100
    )
    processor.run(until_drained=True)
    assert sizes == [100, 100, 50]


def test_plain_handlers_that_wait_hold_up_no_other_partition(tmp_path, store):
    """However many they are: there is no fixed number of threads to use up."""
    seen, go = Seen(), threading.Event()

    def on_event(event):
        if event.partition != "99":
            go.wait(60)
        seen.event(event)

    hub = make_hub(tmp_path, partitions=100, events=2)

    async def main():
        async with running(make_processor(hub, store, on_event=on_event)):
            await until(lambda: seen.by_partition["99"] == [0, 1])
            assert seen.count == 2
            go.set()
            await until(lambda: seen.count == 200)

    asyncio.run(main())
    assert seen.by_partition == each(100, 2)


def test_async_handlers_that_wait_hold_up_no_other_partition(tmp_path, store):
    async def main():
        seen, go = Seen(), asyncio.Event()

        async def on_batch(events):
            if events[0].partition != "3":
                await go.wait()
            seen.batch(events)

        async with running(make_processor(hub, store, on_batch=on_batch)):
            await until(lambda: seen.by_partition["3"] == [0, 1])
            assert seen.count == 2
            go.set()
            await until(lambda: seen.count == 8)

    hub = make_hub(tmp_path, events=2)
    asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_partition_has_one_call_at_a_time(tmp_path, store, is_async):
    busy, together = set(), []

    def enter(partition):
        assert partition not in busy
        busy.add(partition)
        together.append(len(busy))

    def plain(event):
        enter(event.partition)
        time.sleep(0.001)
        busy.remove(event.partition)

    async def on_loop(event):
        enter(event.partition)
        await asyncio.sleep(0.001)
        busy.remove(event.partition)

    problems = []
    hub = make_hub(tmp_path, events=40)
    make_processor(
        hub,
        store,
        on_event=on_loop if is_async else plain,
        on_error=problems.append,
        max_events=7,
    ).run(until_drained=True)
    assert problems == []
    assert len(together) == 160
    assert max(together) > 1


def test_opening_and_closing_are_told_with_the_reason(tmp_path, store):
    told = []

    def processor(name):
        return make_processor(
            hub,
            store,
            instance=name,
            on_event=lambda event: None,
            on_partition_open=lambda context: told.append((name, "open", context.partition)),
            on_partition_close=lambda reason, context: told.append(
                (name, reason, context.partition)
            ),
        )

    async def main():
        a, b = processor("a"), processor("b")
        async with running(a):
            await until(lambda: len(told) == 2)
            assert sorted(told) == [("a", "open", "0"), ("a", "open", "1")]
            async with running(b):
                await until(lambda: len(told) == 4)
                (moved,) = b.partitions
                assert told[2:] == [("a", "balanced", moved), ("b", "open", moved)]
                del told[:]
                lease = next(x for x in (await look(store)).leases if x.owner == "b")
                await store.rewind([lease])  # an operator fences the owner off
                await until(lambda: ("b", "lost", moved) in told)
            del told[:]
            await until(lambda: len(a.partitions) == 2)
        assert sorted(each for each in told if each[1] == "shutdown") == [
            ("a", "shutdown", "0"),
            ("a", "shutdown", "1"),
        ]

    hub = make_hub(tmp_path, partitions=2)
    asyncio.run(main())


def test_on_error_is_told_of_a_failing_handler_and_the_batch_comes_again(tmp_path, store):
    seen, told = Seen(), []

    def on_batch(events):
        if len(told) < 2:
            raise ValueError(f"try {len(told)}")
        seen.batch(events)

    hub = make_hub(tmp_path, partitions=1, events=5)
    make_processor(
        hub,
        store,
        on_batch=on_batch,
        on_error=lambda error, context: told.append((str(error), context.partition)),
        retry=lh.Retry(backoff_s=0.01),
    ).run(until_drained=True)
    assert told == [("try 0", "0"), ("try 1", "0")]
    assert seen.by_partition == each(1, 5)


def test_on_error_is_told_of_troubles_with_the_store(tmp_path, store):
    seen, told = Seen(), []
    faults = Faults(outage=True)
    shaky = FaultyStore(store, faults, random.Random(0), SystemClock())
    hub = make_hub(tmp_path, events=5)

    async def on_error(error, context):
        told.append((error, context))

    async def main():
        async with running(make_processor(hub, shaky, on_event=seen.event, on_error=on_error)):
            await until(lambda: told)
            faults.outage = False
            await until(lambda: seen.count == 20)

    asyncio.run(main())
    assert isinstance(told[0][0], lh.StoreUnavailable)
    assert told[0][1] is None


@pytest.mark.parametrize("is_async", [False, True])
def test_an_on_error_that_raises_does_no_harm(tmp_path, store, is_async):
    seen, told = Seen(), []

    def fail(event):
        if event.sequence == 3 and len(told) < 2:
            raise ValueError("bad")
        seen.event(event)

    def plain(error):
        told.append(error)
        raise RuntimeError("nor can I")

    async def on_loop(error):
        plain(error)

    hub = make_hub(tmp_path, events=10)
    make_processor(
        hub,
        store,
        on_event=fail,
        on_error=on_loop if is_async else plain,
        retry=lh.Retry(backoff_s=0.01),
    ).run(until_drained=True)
    assert seen.by_partition == each(4, 10)
    assert len(told) >= 2


def test_tries_count_although_on_error_raises(tmp_path, store):
    tries = []

    def on_batch(events):
        tries.append(len(events))
        raise ValueError("bad")

    def on_error(error):
        raise RuntimeError("nor can I")

    hub = make_hub(tmp_path, partitions=1, events=2)
    retry = lh.Retry(attempts=3, then="stop", backoff_s=0.01)
    with pytest.raises(ValueError, match="bad"):
        make_processor(hub, store, on_batch=on_batch, on_error=on_error, retry=retry).run()
    assert tries == [2, 2, 2]


def test_a_handler_that_fails_holds_up_no_other_partition(tmp_path, store):
    seen, errors = Seen(), []

    def on_event(event):
        if event.partition == "1":
            raise ValueError("always")
        seen.event(event)

    hub = make_hub(tmp_path, partitions=2, events=20)

    async def main():
        processor = make_processor(
            hub, store, on_event=on_event, on_error=errors.append, retry=lh.Retry(backoff_s=60)
        )
        async with running(processor):
            await until(lambda: seen.by_partition == {"0": list(range(20))} and errors)

    asyncio.run(main())
    assert len(errors) == 1  # and it does not spin


def test_draining_an_empty_hub_ends_and_has_written_the_start_down(tmp_path, store):
    seen, tries, create = Seen(), [], store.create

    async def create_in_the_end(*arguments):
        tries.append(1)
        if len(tries) < 3:
            raise lh.StoreUnavailable("not now")
        await create(*arguments)

    store.create = create_in_the_end
    hub = make_hub(tmp_path)
    make_processor(hub, store, on_event=seen.event, start="latest").run(until_drained=True)
    fill(hub, 3)
    make_processor(hub, store, on_event=seen.event, start="latest").run(until_drained=True)
    assert seen.by_partition == each(4, 3)


def test_draining_ends_although_events_keep_coming(tmp_path, store):
    seen = Seen()

    def on_event(event):
        seen.event(event)
        fill(hub, 1, [event.partition])  # one more for each

    hub = make_hub(tmp_path, partitions=2, events=20)
    make_processor(hub, store, on_event=on_event, max_events=10).run(until_drained=True)
    for partition in ("0", "1"):
        handled = seen.by_partition[partition]
        assert len(handled) >= 20
        assert handled == list(range(len(handled)))
        assert checkpoints(store)[partition] == len(handled)


@pytest.mark.parametrize(
    "policy", [lh.every(events=1000), lh.every(seconds=1000), lh.every(batches=1000)]
)
def test_draining_writes_down_what_no_checkpoint_was_due_for(tmp_path, store, policy):
    """Two instances, each of which waits for the other's partitions."""
    seen = Seen()
    hub = make_hub(tmp_path, events=5)

    async def main():
        both = [
            make_processor(hub, store, instance=name, on_event=seen.event, checkpoint=policy)
            for name in "ab"
        ]
        await asyncio.gather(*(each.run_async(until_drained=True) for each in both))

    asyncio.run(main())
    assert seen.by_partition == each(4, 5)
    assert set(checkpoints(store).values()) == {5}


def test_draining_ends_where_the_user_checkpoints_by_hand_and_did_not(tmp_path, store):
    seen = Seen()
    hub = make_hub(tmp_path, events=5)
    for _ in range(2):
        make_processor(hub, store, on_event=seen.event, checkpoint=lh.manual()).run(
            until_drained=True
        )
    assert seen.by_partition == {p: [*range(5), *range(5)] for p in "0123"}


def test_processors_of_one_loop_share_the_partitions_and_stop_together(tmp_path, store):
    seen = Seen()
    hub = make_hub(tmp_path, partitions=6, events=100)

    async def main():
        three = [make_processor(hub, store, instance=n, on_event=seen.event) for n in "abc"]
        async with running(*three):
            await until(lambda: all(len(each.partitions) == 2 for each in three))
            fill(hub, 100)
            await until(lambda: seen.count >= 1200)

    asyncio.run(main())
    assert seen.by_partition == each(6, 200)


def test_processors_in_threads_share_the_partitions(tmp_path):
    seen = Seen()
    hub = make_hub(tmp_path, partitions=4, events=100)
    both = [
        make_processor(hub, open_leases(tmp_path), instance=name, on_batch=seen.batch)
        for name in "ab"
    ]
    threads = [threading.Thread(target=each.run) for each in both]
    for thread in threads:
        thread.start()
    wait_until(lambda: seen.count == 400 and all(len(each.partitions) == 2 for each in both))
    for processor in both:
        processor.stop()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert seen.by_partition == each(4, 100)


def test_groups_know_nothing_of_one_another(tmp_path, store):
    """Requirement E13: one stores, one routes; a slow one holds up only itself."""
    slow, quick, go = Seen(), Seen(), threading.Event()
    hub = make_hub(tmp_path, events=10)

    def wait(event):
        go.wait(60)
        slow.event(event)

    async def main():
        async with running(
            make_processor(hub, store, group="store", on_event=wait),
            make_processor(hub, store, group="route", on_event=quick.event),
        ):
            await until(lambda: quick.count == 40)
            assert slow.count == 0
            go.set()
            await until(lambda: slow.count == 40)

    asyncio.run(main())
    assert slow.by_partition == quick.by_partition == each(4, 10)
    assert checkpoints(store, "store") == checkpoints(store, "route")


def test_of_two_instances_with_one_name_the_older_stops_and_says_why(tmp_path, store):
    hub = make_hub(tmp_path)

    async def main():
        old, new = (
            make_processor(hub, store, instance="worker-1", on_event=lambda event: None)
            for _ in range(2)
        )
        first = asyncio.ensure_future(old.run_async())
        await until(lambda: len(old.partitions) == 4)
        async with running(new):
            with pytest.raises(lh.InstanceReplaced, match="worker-1"):
                await first
            assert not old.partitions
            await until(lambda: len(new.partitions) == 4)

    asyncio.run(main())


def test_names_that_nobody_gave_differ(tmp_path, store):
    hub = make_hub(tmp_path)
    names = {make_processor(hub, store, on_event=print).instance for _ in range(10)}
    assert len(names) == 10


def test_setting_the_clock_back_by_a_day_changes_nothing(tmp_path, store, monkeypatch):
    seen, told = Seen(), []
    hub = make_hub(tmp_path, clocks=clocks_of(SystemClock()))

    async def main():
        a, b = (
            make_processor(
                hub,
                store,
                instance=name,
                on_event=seen.event,
                on_error=told.append,
                on_partition_close=told.append,
            )
            for name in "ab"
        )
        async with running(a, b):
            await until(lambda: len(a.partitions) == len(b.partitions) == 2)
            fill(hub, 5)
            await until(lambda: seen.count == 20)
            mine, told[:] = a.partitions, []
            now = time.time
            monkeypatch.setattr(time, "time", lambda: now() - 86_400)
            fill(hub, 5)
            await until(lambda: seen.count == 40)
            await asyncio.sleep(5 * FAST["balance_interval_s"])
            assert (a.partitions, told) == (mine, [])

    asyncio.run(main())
    assert seen.by_partition == each(4, 10)


def test_partitions_that_appear_while_running_are_read_from_their_beginning(tmp_path, store):
    """Also where the group began at the end: what is in a new partition came after that."""
    seen = Seen()
    hub = make_hub(tmp_path, partitions=2, events=3)

    async def main():
        processor = make_processor(hub, store, on_event=seen.event, start="latest")
        async with running(processor):
            await until(lambda: len(processor.partitions) == 2)
            hub.raise_partitions(5)
            fill(hub, 4)
            await until(lambda: seen.count == 20)
            assert processor.partitions == ["0", "1", "2", "3", "4"]

    asyncio.run(main())
    assert seen.by_partition == {
        "0": [3, 4, 5, 6],
        "1": [3, 4, 5, 6],
        **{p: [0, 1, 2, 3] for p in "234"},
    }


@pytest.mark.parametrize("error", [StopIteration("no more"), GeneratorExit(), AssertionError()])
@pytest.mark.parametrize("how", ["on_event", "on_batch"])
def test_odd_exceptions_are_failures_like_any_other(tmp_path, store, how, error):
    told, tries = [], []

    def handler(given):
        tries.append(1)
        if len(tries) < 3:
            raise error

    hub = make_hub(tmp_path, partitions=1, events=1)
    make_processor(
        hub, store, on_error=told.append, retry=lh.Retry(backoff_s=0.01), **{how: handler}
    ).run(until_drained=True)
    assert (len(tries), told) == (3, [error, error])


def wants_to_end(where, is_async):
    """Settings by which ``sys.exit(7)`` is called in one of the user's functions."""

    def leave(*arguments):
        sys.exit(7)

    async def leave_async(*arguments):
        sys.exit(7)

    def fail(event):
        raise ValueError("tell on_error")

    leaving = leave_async if is_async else leave
    return {"on_event": fail if where == "on_error" else print, where: leaving}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("where", ["on_event", "on_error", "on_partition_open"])
def test_sys_exit_in_a_handler_ends_the_program_in_order(tmp_path, store, where, is_async):
    hub = make_hub(tmp_path, partitions=2, events=1)
    closed = []
    processor = make_processor(
        hub, store, on_partition_close=closed.append, **wants_to_end(where, is_async)
    )
    with pytest.raises(SystemExit) as end:
        processor.run()
    assert end.value.code == 7
    assert closed == ["shutdown", "shutdown"]

    async def main():
        seen = await look(store)
        assert seen.members == ()
        assert {(x.owner, x.checkpoint.next_sequence) for x in seen.leases} == {(None, 0)}
        if where == "on_event":
            assert any(x.attempts for x in seen.leases)  # so that a crash loop counts

    asyncio.run(main())


def test_ctrl_c_raised_in_a_handler_ends_the_program_in_order(tmp_path, store):
    def on_batch(events):
        raise KeyboardInterrupt

    hub = make_hub(tmp_path, partitions=2, events=1)
    with pytest.raises(KeyboardInterrupt):
        make_processor(hub, store, on_batch=on_batch).run()
    assert set(checkpoints(store).values()) == {0}


def test_a_processor_told_to_stop_on_failure_says_what_failed(tmp_path, store):
    def on_event(event):
        raise ValueError(f"cannot take {event.sequence}")

    hub = make_hub(tmp_path, partitions=1, events=3)
    retry = lh.Retry(attempts=2, then="stop", backoff_s=0.01)
    with pytest.raises(ValueError, match="cannot take 0"):
        make_processor(hub, store, on_event=on_event, retry=retry).run()
    assert checkpoints(store) == {"0": 0}


def test_a_processor_may_be_stopped_before_it_runs_and_runs_once(tmp_path, store):
    hub = make_hub(tmp_path, events=1)
    seen = Seen()
    processor = make_processor(hub, store, on_event=seen.event)
    processor.stop()
    processor.run()
    processor.stop()
    assert seen.count == 0
    with pytest.raises(lh.BadInput, match="make another one"):
        processor.run()


def test_a_processor_that_is_cancelled_stops_in_order(tmp_path, store):
    seen, began = Seen(), []
    hub = make_hub(tmp_path, partitions=1, events=10)

    async def on_event(event):
        began.append(event)
        await asyncio.sleep(0.05)
        seen.event(event)

    async def main():
        processor = make_processor(hub, store, on_event=on_event, checkpoint=lh.every(events=100))
        task = asyncio.ensure_future(processor.run_async())
        await until(lambda: began)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert 1 <= seen.count == len(began) < 10
        assert not processor.partitions
        (lease,) = (await look(store)).leases
        assert (lease.owner, lease.checkpoint.next_sequence) == (None, seen.count)

    asyncio.run(main())


def test_a_processor_that_is_cancelled_twice_stops_at_once(tmp_path, store):
    began = []
    hub = make_hub(tmp_path, partitions=1, events=10)

    async def on_event(event):
        began.append(event)
        await asyncio.sleep(3600)

    async def main():
        processor = make_processor(hub, store, on_event=on_event)
        task = asyncio.ensure_future(processor.run_async())
        await until(lambda: began)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.2)
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not processor.partitions)

    asyncio.run(main())


def test_a_plain_handler_that_hangs_is_told_and_the_batch_comes_again(tmp_path, store):
    seen, told, closed, go = Seen(), [], [], threading.Event()

    def on_event(event):
        if event.sequence == 2 and not told:
            go.wait(60)
        seen.event(event)

    hub = make_hub(tmp_path, partitions=1, events=5)
    make_processor(
        hub,
        store,
        on_event=on_event,
        on_error=lambda error, context: told.append(error),
        on_partition_close=closed.append,
        handler_timeout_s=2.0,
        retry=lh.Retry(backoff_s=0.01),
    ).run(until_drained=True)
    assert isinstance(told[0], lh.HandlerHung)
    assert "handler_timeout_s=2" in str(told[0])
    assert closed == ["hung", "shutdown"]
    assert seen.by_partition == each(1, 5)  # what was done before it hung is not done again
    go.set()
    wait_until(lambda: seen.count == 6)  # the one that hung ends, and begins nothing more
    time.sleep(0.1)
    assert seen.by_partition["0"] == [0, 1, 2, 3, 4, 2]


def test_the_time_limit_is_for_one_event_not_for_a_run_of_them(tmp_path, store):
    seen, told = Seen(), []

    def on_event(event):
        time.sleep(0.03)
        seen.event(event)

    hub = make_hub(tmp_path, partitions=1, events=100)
    make_processor(hub, store, on_event=on_event, on_error=told.append, handler_timeout_s=2.0).run(
        until_drained=True
    )
    assert (told, seen.by_partition) == ([], each(1, 100))


def test_too_many_hanging_handlers_end_the_instance(tmp_path, store, monkeypatch):
    """Their threads cannot be ended, and a new process is rid of them."""
    monkeypatch.setattr(module, "HUNG_MAX", 3)
    go = threading.Event()
    hub = make_hub(tmp_path, events=1)
    processor = make_processor(
        hub, store, on_event=lambda event: go.wait(60), handler_timeout_s=0.2
    )
    with pytest.raises(lh.HandlerHung):
        processor.run()
    go.set()


def test_a_hanging_on_error_is_not_called_without_end(tmp_path, store, monkeypatch):
    monkeypatch.setattr(module, "TELLING_MAX", 2)
    told, go = [], threading.Event()
    faults = Faults(outage=True)
    shaky = FaultyStore(store, faults, random.Random(0), SystemClock())
    hub = make_hub(tmp_path)

    def on_error(error):
        told.append(error)
        go.wait(60)

    async def main():
        processor = make_processor(hub, shaky, on_event=print, on_error=on_error)
        async with running(processor):
            await until(lambda: len(told) == 2)
            await asyncio.sleep(5 * FAST["balance_interval_s"])
            assert len(told) == 2
            faults.outage = False
            go.set()
            await until(lambda: processor.partitions)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_events": 0}, "max_events must be 1 or more, not 0"),
        ({"max_events": 2.5}, "max_events must be 1 or more, not 2.5"),
        ({"on_position_gone": "x"}, "on_position_gone must be .*, not 'x'"),
        ({"poll_interval_s": 0}, "poll_interval_s must be more than 0"),
        ({"poll_interval_s": float("nan")}, "poll_interval_s must be more than 0"),
        ({"handler_timeout_s": 0}, "handler_timeout_s must be more than 0 .* leave it out"),
        ({"handler_timeout_s": -1}, "handler_timeout_s must be more than 0"),
        ({"start": "yesterday"}, "start 'yesterday' is not one of 'earliest'"),
        ({"start": {"0": "yesterday"}}, "partition 0: start 'yesterday' is not one of"),
        ({"start": -1}, "start -1: a sequence number"),
        ({"lease_ttl_s": 0.3}, "lease_ttl_s=0.3 leaves no time"),
        ({"lease_ttl_s": float("inf")}, "lease_ttl_s must be more than 0 seconds, not inf"),
        ({"balance_interval_s": 0}, "balance_interval_s must be more than 0"),
        ({"shed_timeout_s": 0}, "shed_timeout_s must be more than 0"),
        ({"request_timeout_s": 0}, "request_timeout_s must be more than 0"),
        ({"drain_timeout_s": -1}, "drain_timeout_s must be 0 or more"),
        ({"group": ""}, "group must be a name, for example alerts"),
        ({"group": " "}, "group must be a name, for example alerts"),
        ({"group": None}, "group must be a name, for example alerts"),
        ({"instance": ""}, "instance must be a name, for example worker-1"),
        ({"instance": 5}, "instance must be a name, for example worker-1"),
        ({"store": "sqlite:///data/leases.db"}, "give store=open_store"),
        ({"store": None}, "give store=open_store"),
        ({"checkpoint": 5}, "give checkpoint=every"),
        ({"retry": 5}, "give retry=Retry"),
        ({"max_bytes": -1}, "max_bytes must be 0"),
        ({"max_bytes": "64 MB"}, "max_bytes must be 0"),
        ({"max_bytes": True}, "max_bytes must be 0"),
        ({"dead_letters": "sqlite:///data/dead.db"}, "give dead_letters=open_dead_letters"),
        ({"retry": lh.Retry(then="dead-letter")}, "dead_letters=open_dead_letters"),
        ({"on_batch": print}, "either on_event= .* or on_batch="),
        ({"on_event": None}, "either on_event= .* or on_batch="),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(tmp_path, store, settings, complaint):
    with pytest.raises(lh.BadInput, match=complaint):
        lh.Processor(
            make_hub(tmp_path),
            **{"group": "g", "store": store, "on_event": print, **FAST, **settings},
        )
