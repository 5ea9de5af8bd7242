"""Failures that a handler meets and that no event is at fault for."""

import asyncio

import pytest
from support.pump_rig import BURY, Rig

from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint
from leasehold.core.retry import ALONE
from leasehold.errors import (
    FeedUnavailable,
    LeaseLost,
    SinkUnavailable,
    StoreUnavailable,
    blameless,
)
from leasehold.processor.handlers import Context, Outcome
from leasehold.testing.sim_time import run_virtual


def raised_from(cause):
    try:
        raise RuntimeError("could not go on") from cause
    except RuntimeError as error:
        return error


def raised_beside(other):
    try:
        try:
            raise other
        except Exception:
            raise RuntimeError("a mistake of its own")  # noqa: B904
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreUnavailable("x"), True),
        (FeedUnavailable("x"), True),
        (SinkUnavailable("x"), True),
        (LeaseLost("x"), True),
        (raised_from(StoreUnavailable("x")), True),
        (raised_from(raised_from(LeaseLost("x"))), True),
        (ExceptionGroup("x", [StoreUnavailable("x"), raised_from(LeaseLost("x"))]), True),
        (ExceptionGroup("x", [StoreUnavailable("x"), ValueError("x")]), False),
        (raised_beside(StoreUnavailable("x")), False),
        (ValueError("x"), False),
        (TimeoutError("x"), False),
    ],
    ids=repr,
)
def test_what_no_event_is_at_fault_for(error, expected):
    assert blameless(error) is expected


def test_causes_that_go_round_in_a_circle_are_blamed():
    error = RuntimeError("x")
    error.__cause__ = error
    assert not blameless(error)


class Checkpointing(Rig):
    """A handler that checkpoints every event, as a user's would."""

    def __init__(self, **rig):
        super().__init__(**rig)
        self.given, self.reaction = [], None

    async def start(self, **settings):
        pump = await super().start(**settings)
        context = Context(pump.hold.lease, "a", pump.save, pump.bury)

        async def handle(events, stop):
            self.given.append([event.sequence for event in events])
            for done, event in enumerate(events):
                try:
                    await context.checkpoint_async(event)
                except Exception as error:
                    if self.reaction is None:
                        return Outcome(done=done, error=error)
                    return self.reaction(done, error)
                self.desk.done.append(event.sequence)
            return Outcome(done=len(events))

        self.desk.handle, self.context = handle, context
        return pump


async def out_of_order(leases):
    raise StoreUnavailable("the store is down")


async def odd(leases):
    raise OSError("something else")


async def silent(leases):
    await asyncio.sleep(1e9)


@pytest.mark.parametrize("broken", [out_of_order, odd, silent])
@pytest.mark.parametrize("handler_timeout_s", [None, 1.0])
def test_a_store_that_fails_under_a_handlers_checkpoint_is_not_blamed_on_the_event(
    broken, handler_timeout_s
):
    async def main():
        rig = Checkpointing(count=20)
        healthy, rig.store.checkpoint = rig.store.checkpoint, broken
        await rig.start(retry=BURY, handler_timeout_s=handler_timeout_s, retry_max_s=5.0)
        await asyncio.sleep(120)
        tries = len(rig.given)
        assert 5 < tries < 60, "tried again and again, with pauses"
        assert all(isinstance(error, StoreUnavailable) for _, error in rig.reports)
        assert rig.lease().attempts == 0
        rig.store.checkpoint = healthy
        await asyncio.sleep(20)
        assert (rig.desk.buried, rig.desk.errors) == ([], [])
        assert rig.desk.done == list(range(20))
        assert rig.checkpoint == 20

    run_virtual(main())


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_checkpoint_that_is_refused_ends_the_work_and_counts_no_try(swallowed):
    async def main():
        rig = Checkpointing(count=20)
        if swallowed:
            rig.reaction = lambda done, error: Outcome(done=0, error=ValueError("hidden"))
        checkpoint = rig.store.checkpoint

        async def taken_by_another(leases):
            if leases[0].checkpoint.next_sequence == 3:
                await rig.store.acquire([rig.lease()], "b", 10.0)
            return await checkpoint(leases)

        rig.store.checkpoint = taken_by_another
        await rig.start(retry=BURY)
        assert await rig.task is Reason.LOST
        assert (rig.desk.buried, rig.lease().attempts, rig.lease().owner) == ([], 0, "b")
        assert len(rig.given) == 1

    run_virtual(main())


def test_what_a_handler_raises_of_its_own_is_blamed_as_before():
    async def main():
        rig = Checkpointing(count=3)
        rig.reaction = lambda done, error: Outcome(done=done, error=ValueError("hidden"))
        rig.store.checkpoint, healthy = out_of_order, rig.store.checkpoint
        await rig.start(retry=BURY)
        await asyncio.sleep(0.1)
        rig.store.checkpoint = healthy
        assert [type(error) for error in rig.desk.errors] == [ValueError]

    run_virtual(main())


def test_a_dead_letter_store_that_hangs_is_not_the_handlers_time():
    async def main():
        rig = Rig(count=3)
        pump = await rig.start(handler_timeout_s=1.0, retry=BURY)
        letters = []

        async def slow(event, error, attempts):
            await asyncio.sleep(4)
            letters.append(event.sequence)

        async def handle(events, stop):
            for event in events:
                await pump.bury(event, "not wanted")
            return Outcome(done=len(events))

        rig.desk.bury, rig.desk.handle = slow, handle
        await asyncio.sleep(20)
        assert letters == [0, 1, 2]
        assert (rig.desk.errors, rig.checkpoint) == ([], 3)

    run_virtual(main())


def test_a_checkpoint_of_a_lease_that_is_gone_is_refused():
    async def main():
        rig = Checkpointing(count=3)
        pump = await rig.start()
        await asyncio.sleep(2)
        await rig.store.acquire([rig.lease()], "b", 10.0)
        assert not await pump.save(Checkpoint(next_sequence=3))
        assert await rig.task is Reason.LOST

    run_virtual(main())


@pytest.mark.parametrize("restarts", [1, 3])
def test_orderly_moves_during_an_outage_of_the_sink_condemn_no_event(restarts):
    """A try is counted before it begins. One that no event is at fault for is taken back before
    the lease goes to another."""

    async def main():
        rig = Rig(count=1, bad=[0])
        await rig.start(retry=BURY)
        await asyncio.sleep(0.5)
        assert rig.lease().attempts == ALONE + 1, "one of two tries failed"
        handle = rig.desk.handle

        async def no_sink(events, stop):
            return Outcome(done=0, error=SinkUnavailable("the sink is down"))

        rig.desk.handle = no_sink
        for _ in range(restarts):
            await asyncio.sleep(20)
            rig.desk.pump.let_go(None, Reason.SHUTDOWN)
            assert await rig.task is Reason.SHUTDOWN
            assert rig.lease().attempts == ALONE + 1
            await rig.start(retry=BURY)
        rig.desk.bad, rig.desk.handle = set(), handle
        await asyncio.sleep(60)
        assert (rig.desk.buried, rig.desk.done) == ([], [0])

    run_virtual(main())
