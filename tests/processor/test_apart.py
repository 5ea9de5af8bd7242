"""Upkeep runs apart from the user's code: whatever that does to its loop, leases are renewed."""

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.processing import (
    FAST,
    Seen,
    checkpoints,
    each,
    look,
    make_hub,
    make_processor,
    open_leases,
    running,
    until,
    wait_until,
)

import leasehold as lh
from leasehold.processor.apart import apart, call_on, run_on, using

TTL_S = 6.0


@pytest.fixture
def store(tmp_path):
    return open_leases(tmp_path)


@pytest.fixture
def other_loop():
    """A loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def test_an_async_handler_that_blocks_its_loop_longer_than_the_time_to_live_costs_no_lease(
    tmp_path, store
):
    seen, hub = Seen(), make_hub(tmp_path, partitions=4, events=2)
    others = Seen()
    timing = {**FAST, "lease_ttl_s": TTL_S, "balance_interval_s": 0.5}

    blocks, joined = [1.5 * TTL_S], threading.Event()

    async def on_event(event):
        await asyncio.to_thread(joined.wait, 60)
        if blocks:
            time.sleep(blocks.pop())  # noqa: ASYNC251
        seen.event(event)

    peer = make_processor(
        hub, open_leases(tmp_path), on_event=others.event, instance="peer", **timing
    )

    async def main():
        processor = make_processor(hub, store, on_event=on_event, instance="blocked", **timing)
        with ThreadPoolExecutor(1) as threads:
            async with running(processor):
                await until(lambda: len(processor.partitions) == 4)
                running_peer = threads.submit(peer.run)
                await until(lambda: peer._host._met >= {"peer", "blocked"})
                joined.set()
                await until(lambda: seen.count + others.count == 8)
                # Two it keeps, under the epoch it had: the others it has passed on in order.
                leases = (await look(store)).leases
                epochs = [lease.epoch for lease in leases if lease.owner == "blocked"]
                assert epochs == [1, 1]
            peer.stop()
            running_peer.result(60)

    asyncio.run(main())
    for partition in map(str, range(4)):
        assert sorted(seen.by_partition[partition] + others.by_partition[partition]) == [0, 1]


def test_a_handler_that_blocks_its_loop_for_too_long_is_told_and_its_lease_yields(tmp_path, store):
    seen, told, go = Seen(), [], threading.Event()
    hub = make_hub(tmp_path, partitions=1, events=3)

    async def on_event(event):
        if event.sequence == 1 and not told:
            go.wait(60)  # the loop does nothing else until the watchdog has spoken
        seen.event(event)

    def on_error(error):
        if isinstance(error, lh.HandlerHung):  # on a busy machine the store may be late, too
            told.append(error)
            go.set()

    processor = make_processor(
        hub,
        store,
        on_event=on_event,
        on_error=on_error,
        handler_timeout_s=0.3,
        request_timeout_s=0.5,
    )
    processor.run(until_drained=True)
    assert told
    assert set(seen.by_partition["0"]) == {0, 1, 2}
    assert checkpoints(store) == {"0": 3}


def test_async_functions_run_on_the_loop_of_whoever_runs_the_processor(tmp_path, store):
    loops, values = set(), set()
    variable = contextvars.ContextVar("variable")
    hub = make_hub(tmp_path, partitions=2, events=2)

    async def on_batch(events, context):
        loops.add(asyncio.get_running_loop())
        values.add(variable.get())
        await context.checkpoint_async()

    async def note(*given):
        loops.add(asyncio.get_running_loop())

    async def main():
        variable.set("mine")
        processor = make_processor(
            hub,
            store,
            on_batch=on_batch,
            on_partition_open=lambda context: note(),
            on_partition_close=lambda reason, context: note(),
            checkpoint=lh.manual(),
        )
        await processor.run_async(until_drained=True)
        return asyncio.get_running_loop()

    home = asyncio.run(main())
    assert (loops, values) == ({home}, {"mine"})
    assert apart() is not home
    assert checkpoints(store) == {"0": 2, "1": 2}


def test_a_processor_whose_loop_was_closed_ends(tmp_path, store):
    seen, hub = Seen(), make_hub(tmp_path, partitions=2, events=3)
    processor = make_processor(hub, store, on_event=seen.event)

    async def start():
        task = asyncio.ensure_future(processor.run_async())
        await until(lambda: seen.count == 6)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(start())
    task._log_destroy_pending = False
    loop.close()
    wait_until(lambda: not processor.partitions)
    drained = Seen()
    make_processor(hub, store, on_event=drained.event, instance=processor.instance).run(
        until_drained=True
    )
    assert drained.count == 0


def test_a_context_may_be_used_from_any_loop_and_thread(tmp_path, store, other_loop):
    hub = make_hub(tmp_path, partitions=1, events=6)
    stored = []

    def on_batch(events, context):
        context.checkpoint(events[1])
        stored.append(checkpoints(open_leases(tmp_path))["0"])
        elsewhere = context.checkpoint_async(events[3])
        asyncio.run_coroutine_threadsafe(elsewhere, other_loop).result(30)
        stored.append(checkpoints(open_leases(tmp_path))["0"])
        asyncio.run(context.checkpoint_async(events[4]))
        stored.append(checkpoints(open_leases(tmp_path))["0"])

    make_processor(hub, store, on_batch=on_batch).run(until_drained=True)
    assert stored == [2, 4, 5]


def test_work_that_is_cancelled_is_waited_for_until_it_is_over(other_loop):
    async def main():
        began, go, over = threading.Event(), threading.Event(), []

        async def work():
            began.set()
            try:
                await asyncio.sleep(3600)
            finally:
                go.wait(30)
                over.append("over")

        call = asyncio.ensure_future(call_on(other_loop, work()))
        await until(began.is_set)
        call.cancel()
        await asyncio.sleep(0.05)
        assert not call.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert over == ["over"]

    asyncio.run(main())


def test_work_that_is_cancelled_twice_is_not_waited_for(other_loop):
    async def main():
        began, go = threading.Event(), threading.Event()

        async def work():
            began.set()
            go.wait(30)

        call = asyncio.ensure_future(call_on(other_loop, work()))
        await until(began.is_set)
        for _ in range(2):
            call.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await call
        go.set()

    asyncio.run(main())


def test_work_cancelled_before_it_began_never_begins(other_loop):
    async def main():
        go, began = threading.Event(), []

        async def work():
            began.append(1)

        other_loop.call_soon_threadsafe(go.wait, 30)
        call = asyncio.ensure_future(call_on(other_loop, work()))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert began == []

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("x"), StopAsyncIteration("x"), lh.LeaseLost("x")])
def test_what_comes_of_work_elsewhere_comes_back(other_loop, error):
    async def work():
        raise error

    async def value():
        return asyncio.get_running_loop()

    async def main():
        with pytest.raises(type(error)):
            await call_on(other_loop, work())
        assert await call_on(other_loop, value()) is other_loop
        with pytest.raises(type(error)):
            await run_on(other_loop, work(), lambda: None)

    asyncio.run(main())


def test_a_loop_that_is_closed_takes_no_work():
    async def main():
        loop = asyncio.new_event_loop()
        loop.close()
        with pytest.raises(RuntimeError, match="closed"):
            await call_on(loop, asyncio.sleep(0))

    asyncio.run(main())


def test_the_last_processor_to_use_a_store_closes_it_for_its_loop():
    class Store:
        closed = 0

        async def close(self):
            self.closed += 1

    async def main():
        store = Store()
        async with using(store):
            async with using(store):
                pass
            assert store.closed == 0
        assert store.closed == 1

    asyncio.run(main())


def test_processors_of_one_process_share_a_loop_and_work_side_by_side(tmp_path):
    """Of two on one loop and one in a thread, each has its share, and all is handled once."""
    seen, hub = Seen(), make_hub(tmp_path, partitions=6, events=50)
    made = [
        make_processor(hub, open_leases(tmp_path), on_batch=seen.batch, instance=f"i{number}")
        for number in range(3)
    ]
    with ThreadPoolExecutor(1) as threads:
        third = threads.submit(made[2].run)

        async def main():
            async with running(*made[:2]):
                await until(lambda: seen.count == 300)
                await until(lambda: all(len(one.partitions) == 2 for one in made))
            made[2].stop()

        asyncio.run(main())
        third.result(60)
    assert seen.by_partition == each(6, 50)


@pytest.mark.parametrize("limit_s", [None, 600.0])
def test_a_loop_that_cancels_all_its_tasks_still_ends_its_processor_in_order(
    tmp_path, store, limit_s
):
    """As ``asyncio.run`` does at its end: the handler under way is cancelled, and nothing else."""
    seen, told, hub = Seen(), [], make_hub(tmp_path, partitions=1, events=6)

    async def on_event(event):
        if event.sequence == 4:
            await asyncio.sleep(3600)
        seen.event(event)

    async def main():
        processor = make_processor(
            hub,
            store,
            on_event=on_event,
            on_error=told.append,
            checkpoint=lh.every(events=1000),
            handler_timeout_s=limit_s,
        )
        main.task = asyncio.ensure_future(processor.run_async())
        await until(lambda: seen.count == 4)

    asyncio.run(main())
    assert main.task.cancelled()
    assert [type(error) for error in told] == [lh.CallCancelled]
    (lease,) = asyncio.run(look(open_leases(tmp_path))).leases
    assert (lease.checkpoint.next_sequence, lease.owner, lease.attempts) == (4, None, 0)


@pytest.mark.parametrize("callback", ["on_partition_open", "on_partition_close"])
def test_a_callback_that_is_cancelled_with_its_loop_costs_no_release(tmp_path, store, callback):
    seen, hub, began = Seen(), make_hub(tmp_path, partitions=1, events=3), threading.Event()

    async def hang(*given):
        if not began.is_set():
            began.set()
            await asyncio.sleep(3600)

    async def main():
        functions = {"on_partition_open": lambda context: None, callback: hang}
        processor = make_processor(hub, store, on_event=seen.event, **functions)
        main.task = asyncio.ensure_future(processor.run_async())
        if callback == "on_partition_close":
            await until(lambda: seen.count == 3)
            processor.stop()
        await until(began.is_set)

    asyncio.run(main())
    (lease,) = asyncio.run(look(open_leases(tmp_path))).leases
    assert lease.owner is None


@pytest.mark.parametrize("end", ["closed", "left"])
def test_a_processor_whose_loop_runs_no_more_ends_with_its_handlers(tmp_path, store, end):
    """Or its leases would be renewed for ever, and nobody would handle anything."""
    hub, began = make_hub(tmp_path, partitions=1, events=3), threading.Event()

    async def on_event(event):
        began.set()
        await asyncio.sleep(3600)

    processor = make_processor(hub, store, on_event=on_event, lease_ttl_s=1.0)

    async def start():
        task = asyncio.ensure_future(processor.run_async())
        await until(began.is_set)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(start())
    if end == "closed":
        loop.close()
    wait_until(lambda: not processor.partitions)
    task._log_destroy_pending = False
    for each_task in () if end == "closed" else asyncio.all_tasks(loop):
        each_task.cancel()
    if end == "left":
        loop.run_until_complete(asyncio.wait([task]))
        assert task.cancelled()
        loop.close()
