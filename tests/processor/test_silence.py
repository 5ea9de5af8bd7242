"""What never comes back or never answers: nobody waits for it without end."""

import asyncio

import pytest
from support.pump_rig import ListFeed, Rig

import leasehold as lh
from leasehold.core.lag import Extent
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Partition
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock, run_virtual

FOREVER_S = 1e9


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
