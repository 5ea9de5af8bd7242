"""What never comes back or never answers: nobody waits for it without end."""

import asyncio
import threading

import pytest
from support.pump_rig import GROUP, ListFeed, Rig

import leasehold as lh
from leasehold.core.lag import Extent
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Partition
from leasehold.errors import FeedUnavailable, ReadHung, StoreUnavailable
from leasehold.ports import Batch
from leasehold.processor.drain import Drain
from leasehold.processor.handlers import Outcome
from leasehold.settings import PACE
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock, run_virtual

FOREVER_S = 1e9
ONCE = lh.Retry(attempts=1, then="dead-letter", backoff_s=0.1)


class WholeFeed(ListFeed):
    """With what a processor asks for besides events; what is in ``silent`` does not answer once."""

    unit = "event"

    def __init__(self, count, silent=()):
        super().__init__(count)
        self.silent = set(silent)

    async def _answer(self, verb):
        if verb in self.silent:
            self.silent.discard(verb)
            await asyncio.sleep(FOREVER_S)

    async def partitions(self):
        await self._answer("partitions")
        return [Partition(id="0")]

    async def locate(self, partition, start):
        return Checkpoint(next_sequence=0)

    async def extents(self):
        await self._answer("extents")
        return [Extent(partition="0", first=0, end=self.count)]

    async def event_times(self, positions):
        await self._answer("event_times")
        return dict.fromkeys(positions, 0.0)


def hanging(rig):
    async def failed(error):
        rig.desk.errors.append(error)
        await asyncio.sleep(FOREVER_S)

    rig.desk.failed = failed


def test_a_function_for_errors_that_hangs_has_as_long_as_a_handler():
    async def main():
        rig = Rig(count=3, bad=[0])
        hanging(rig)
        await rig.start(handler_timeout_s=5, retry=lh.Retry(backoff_s=1))
        await asyncio.sleep(4)
        assert len(rig.desk.calls) == 1
        rig.desk.bad.clear()
        await asyncio.sleep(4)
        assert rig.desk.done == [0, 1, 2]

    run_virtual(main())


def test_a_position_that_is_gone_does_not_wait_for_a_function_for_errors_that_hangs():
    async def main():
        rig = Rig(count=3)
        hanging(rig)
        rig.feed.first = 1
        await rig.start(handler_timeout_s=5)
        await asyncio.sleep(6)
        assert rig.desk.done == [1, 2]

    run_virtual(main())


@pytest.mark.parametrize("handler_timeout_s", [None, 50.0])
def test_a_stop_does_not_wait_for_a_function_for_errors_that_hangs(handler_timeout_s):
    async def main():
        rig = Rig(count=3, bad=[0])
        hanging(rig)
        pump = await rig.start(handler_timeout_s=handler_timeout_s)
        await asyncio.sleep(20)
        assert len(rig.desk.calls) == 1, "without a time limit it may take any time"
        pump.let_go("b", Reason.SHUTDOWN)
        assert await asyncio.wait_for(rig.task, 0.1) is Reason.SHUTDOWN
        assert (rig.lease().owner, rig.lease().attempts) == (None, 1)

    run_virtual(main())


def test_what_fails_after_a_stop_was_asked_for_is_told_before_the_partition_closes():
    async def main():
        rig = Rig(count=3, bad=[0], takes_s=2)
        order = []

        async def failed(error):
            await asyncio.sleep(1)
            order.append("told")

        async def close(reason):
            order.append("closed")

        rig.desk.failed, rig.desk.close = failed, close
        pump = await rig.start()
        await asyncio.sleep(1)
        pump.let_go("b", Reason.SHUTDOWN)
        await rig.task
        assert order == ["told", "closed"]

    run_virtual(main())


def test_of_a_partition_only_one_call_of_on_error_is_under_way():
    async def main():
        clock, told, tries = SimClock(), [], []

        async def on_batch(events):
            tries.append(clock.monotonic())
            raise ValueError("bad")

        async def on_error(error):
            told.append(error)
            await asyncio.sleep(FOREVER_S)

        processor = lh.Processor(
            WholeFeed(5),
            group="g",
            store=MemoryStore(clock),
            on_batch=on_batch,
            on_error=on_error,
            clock=clock,
            handler_timeout_s=5,
            retry=lh.Retry(backoff_s=1, backoff_max_s=1),
        )
        running = asyncio.ensure_future(processor.run_async())
        await asyncio.sleep(60)
        assert len(told) == 1
        assert len(tries) > 30, "the others cost no time"
        processor.stop()
        await asyncio.wait_for(running, 30)

    run_virtual(main())


class SilentOnce(MemoryStore):
    """A store that never answers the first look."""

    looks = 0

    async def snapshot(self, group):
        self.looks += 1
        if self.looks == 1:
            await asyncio.sleep(FOREVER_S)
        return await super().snapshot(group)


@pytest.mark.parametrize("silent", ["partitions", "extents", "event_times", "snapshot"])
def test_a_silent_answer_does_not_keep_a_drain_from_its_end(silent):
    async def main():
        clock = SimClock()
        feed = WholeFeed(20, {silent})
        store = SilentOnce(clock) if silent == "snapshot" else MemoryStore(clock)
        drain = Drain(feed, store, GROUP, clock=clock, pace=PACE, pause_s=1.0)
        kind = StoreUnavailable if silent == "snapshot" else FeedUnavailable
        with pytest.raises(kind):
            await asyncio.wait_for(drain.is_done({"0": 20.0}), 2 * PACE.read_timeout_s)
        assert await drain.is_done({"0": 20.0})

    run_virtual(main())


def test_a_feed_that_is_slow_rather_than_silent_is_drained_in_the_end():
    class Slow(WholeFeed):
        async def extents(self):
            await asyncio.sleep(3 * PACE.read_timeout_s)
            return await super().extents()

    async def main():
        clock = SimClock()
        drain = Drain(Slow(20), MemoryStore(clock), GROUP, clock=clock, pace=PACE, pause_s=1.0)
        for _ in range(2):
            with pytest.raises(FeedUnavailable):
                await drain.is_done({"0": 20.0})
        assert await drain.is_done({"0": 20.0})

    run_virtual(main())


def change_processor(clock, store, seen):
    async def on_changes(changes):
        seen.extend(changes)

    return lh.ChangeFeedProcessor(
        WholeFeed(20), name="u", on_changes=on_changes, store=store, start="beginning", clock=clock
    )


def test_a_store_that_is_silent_at_the_start_keeps_a_unit_from_nothing():
    async def main():
        clock, seen = SimClock(), []
        processor = change_processor(clock, SilentOnce(clock), seen)
        running = asyncio.ensure_future(processor.run_async())
        await asyncio.sleep(PACE.request_timeout_s + 10)
        assert len(seen) == 20
        processor.stop()
        await asyncio.wait_for(running, 30)

    run_virtual(main())


@pytest.mark.parametrize("stopped_after_s", [0, 1])
def test_a_stop_is_heard_while_the_store_is_silent_at_the_start(stopped_after_s):
    async def main():
        clock, seen = SimClock(), []
        processor = change_processor(clock, SilentOnce(clock), seen)
        running = asyncio.ensure_future(processor.run_async())
        await asyncio.sleep(stopped_after_s)
        processor.stop()
        await asyncio.wait_for(running, 0.5)

    run_virtual(main())


class HeldEvents(list):
    """Events that are read when somebody goes through them, which takes until ``go`` is set."""

    go = threading.Event()

    def sequence_at(self, place):
        return self[place].sequence

    def __getitem__(self, index):
        found = super().__getitem__(index)
        return HeldEvents(found) if isinstance(index, slice) else found

    def __iter__(self):
        self.go.wait(60)
        return super().__iter__()


class HeldFeed(ListFeed):
    async def read(self, partition, position, max_events):
        found = await super().read(partition, position, max_events)
        return Batch(events=HeldEvents(found.events), next=found.next)


@pytest.fixture
def poisoned():
    """A rig whose first event is poison, and can only be read in a thread that hangs."""
    HeldEvents.go.clear()

    def make():
        rig = Rig(count=1)
        rig.feed = HeldFeed(1)

        async def handle(events, stop):
            return Outcome(done=0, error=ValueError("bad"))

        rig.desk.handle = handle
        return rig

    yield make
    HeldEvents.go.set()


def test_a_poison_event_that_cannot_be_read_is_left_to_others(poisoned):
    async def main():
        rig = poisoned()
        await rig.start(retry=ONCE, read_timeout_s=5)
        assert await asyncio.wait_for(rig.task, 60) is Reason.HUNG
        assert [type(error) for _, error in rig.reports] == [ReadHung] * 3

    run_virtual(main())


def test_a_stop_does_not_wait_for_the_read_of_a_poison_event(poisoned):
    async def main():
        rig = poisoned()
        pump = await rig.start(retry=ONCE, read_timeout_s=5)
        await asyncio.sleep(3)
        pump.let_go("b", Reason.SHUTDOWN)
        assert await asyncio.wait_for(rig.task, 0.1) is Reason.SHUTDOWN
        assert (rig.reports, rig.desk.buried) == ([], [])

    run_virtual(main())
