"""Reads that give no answer."""

import asyncio
import threading

import pytest
from support.pump_rig import ListFeed, Rig

import leasehold as lh
from leasehold.core.lifecycle import Reason
from leasehold.errors import BadInput, ReadHung
from leasehold.settings import Pace, every
from leasehold.testing.sim_time import run_virtual


class SilentFeed(ListFeed):
    """One that gives no answer to some of its reads: by their number, from 0."""

    def __init__(self, count, silent, late_s=1e9):
        super().__init__(count)
        self.silent, self.late_s = silent, late_s
        self.began = 0

    async def read(self, partition, position, max_events):
        number, self.began = self.began, self.began + 1
        if number in self.silent:
            await asyncio.sleep(self.late_s)
        return await super().read(partition, position, max_events)


def silent(count, reads, **feed):
    rig = Rig(count=count)
    rig.feed = SilentFeed(count, reads, **feed)
    return rig


@pytest.mark.parametrize("reads", [{0}, {1}, {0, 1}, {0, 2, 4}], ids=str)
def test_a_read_without_an_answer_is_told_of_and_tried_again(reads):
    async def main():
        rig = silent(30, reads)
        await rig.start(read_timeout_s=4)
        await asyncio.sleep(60)
        assert rig.desk.done == list(range(30))
        told = [error for _, error in rig.reports if isinstance(error, ReadHung)]
        assert len(told) == len(reads)
        assert "partition 0" in str(told[0])
        assert "read_timeout_s=4" in str(told[0])
        assert rig.desk.errors == [], "no event is to blame"
        assert rig.lease().owner == "a"

    run_virtual(main())


def test_a_late_answer_is_delivered_to_nobody():
    async def main():
        rig = silent(10, {0, 1}, late_s=6)
        await rig.start(read_timeout_s=4)
        await asyncio.sleep(60)
        assert rig.desk.done == list(range(10))

    run_virtual(main())


def test_an_answer_that_came_before_anybody_waited_for_it_is_not_late():
    """Read ahead during a long call: what took longer than the limit is there all the same."""

    async def main():
        rig = silent(20, {1}, late_s=6)
        rig.desk.takes_s = 10.0
        await rig.start(read_timeout_s=4)
        await asyncio.sleep(120)
        assert rig.desk.done == list(range(20))
        assert rig.reports == []

    run_virtual(main())


def test_after_a_few_reads_without_an_answer_in_a_row_the_lease_is_let_go():
    async def main():
        rig = silent(10, set(range(1, 100)))
        await rig.start(read_timeout_s=4, policy=every(events=1000))
        assert await rig.task is Reason.HUNG
        assert 10 < rig.clock.monotonic() < 20
        assert (rig.checkpoint, rig.lease().owner, rig.lease().attempts) == (10, None, 0)
        assert "let go" in str(rig.reports[-1][1])
        assert rig.feed.began == 4, "no more of them than it takes to be sure"

    run_virtual(main())


def test_answers_in_between_count():
    async def main():
        rig = silent(100, {0, 1, 3, 5, 7, 8})
        await rig.start(read_timeout_s=4)
        await asyncio.sleep(200)
        assert rig.desk.done == list(range(100))

    run_virtual(main())


@pytest.mark.parametrize("end", ["let go", "lose"])
def test_a_read_without_an_answer_holds_up_no_stop(end):
    async def main():
        rig = silent(10, set(range(1, 100)))
        pump = await rig.start(policy=every(events=1000))
        await asyncio.sleep(5)
        before = rig.clock.monotonic()
        pump.let_go("b", Reason.SHUTDOWN) if end == "let go" else pump.lose()
        assert await rig.task is (Reason.SHUTDOWN if end == "let go" else Reason.LOST)
        assert rig.clock.monotonic() == before
        assert rig.checkpoint == (10 if end == "let go" else 0)

    run_virtual(main())


def test_a_stop_in_the_moment_a_read_ahead_found_nothing_begins_no_other_read():
    async def main():
        rig = silent(10, set(range(2, 100)))
        read, loop = rig.feed.read, asyncio.get_running_loop()

        def stop_next():
            loop.call_soon(rig.desk.pump.let_go, "b", Reason.SHUTDOWN)

        async def reading(*arguments):
            if rig.feed.began != 1:
                return await read(*arguments)
            await asyncio.sleep(5)  # until it is waited for
            batch = await read(*arguments)
            loop.call_soon(stop_next)  # after the answer, before whoever waits for it goes on
            return batch

        rig.feed.read = reading
        await rig.start()
        assert await rig.task is Reason.SHUTDOWN
        assert rig.clock.monotonic() < 6

    run_virtual(main())


def test_a_read_that_is_cancelled_from_within_is_tried_again():
    async def main():
        rig = Rig(count=5)
        read, calls = rig.feed.read, []

        async def cancelled_once(*arguments):
            calls.append(arguments)
            if len(calls) == 1:
                raise asyncio.CancelledError
            return await read(*arguments)

        rig.feed.read = cancelled_once
        await rig.start()
        await asyncio.sleep(5)
        assert rig.desk.done == list(range(5))
        assert "cancelled" in str(rig.reports[0][1])

    run_virtual(main())


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_time_limit_that_cannot_work_is_refused_by_name(seconds):
    with pytest.raises(BadInput, match="read_timeout_s"):
        Pace(read_timeout_s=seconds).check()


def test_an_instance_stops_at_once_although_a_read_hangs_in_a_thread(tmp_path):
    hub = lh.Hub.create(tmp_path / "hub.db", name="h", namespace="n", partitions=1)
    hub.send([lh.EventData(b"x")] * 3, partition_id="0")
    read, hung, go_on, handled = hub.read, threading.Event(), threading.Event(), []

    async def hang(partition, position, max_events):
        if position.next_sequence == 0:
            return await read(partition, position, max_events)
        hung.set()
        return await asyncio.to_thread(go_on.wait, 60)

    hub.read = hang
    processor = lh.Processor(
        hub,
        group="g",
        store=lh.open_store(f"sqlite:///{tmp_path}/leases.db"),
        on_event=handled.append,
        balance_interval_s=0.2,
        lease_ttl_s=2,
        drain_timeout_s=40,
    )

    async def main():
        running = asyncio.ensure_future(processor.run_async())
        await asyncio.to_thread(hung.wait, 60)
        processor.stop()
        async with asyncio.timeout(30):
            await running
        go_on.set()

    asyncio.run(main())
    assert len(handled) == 3
