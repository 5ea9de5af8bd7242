import asyncio
import random

import pytest

from leasehold.core.model import Checkpoint, Group
from leasehold.errors import StoreUnavailable
from leasehold.stores.memory import MemoryStore
from leasehold.testing.check_lease_store import CHECKS, any_group
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sim_time import SimClock, run_virtual

GROUP = Group(namespace="n", feed="f", name="g")
START = {"0": Checkpoint(next_sequence=0)}


def faulty(inner, clock, **faults):
    return FaultyStore(inner, Faults(**faults), random.Random(1), clock)


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_without_faults_it_is_just_a_store(rule):
    async def main():
        clock = SimClock()
        inner = MemoryStore(clock)

        async def open_store():
            return faulty(inner, clock, delay_s=0.01)

        await rule(open_store, any_group())

    run_virtual(main())


def test_a_lost_request_was_not_carried_out():
    async def main():
        clock = SimClock()
        inner = MemoryStore(clock)
        with pytest.raises(StoreUnavailable):
            await faulty(inner, clock, fail_before=1.0).create(GROUP, START)
        assert (await inner.snapshot(GROUP)).leases == ()

    run_virtual(main())


def test_a_lost_answer_was_carried_out():
    async def main():
        clock = SimClock()
        inner = MemoryStore(clock)
        with pytest.raises(StoreUnavailable):
            await faulty(inner, clock, fail_after=1.0).create(GROUP, START)
        assert len((await inner.snapshot(GROUP)).leases) == 1

    run_virtual(main())


def test_a_stalled_request_arrives_after_its_sender_gave_up():
    async def main():
        clock = SimClock()
        inner = MemoryStore(clock)
        request = faulty(inner, clock, stall=1.0, stall_s=8.0).create(GROUP, START)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request, 2)
        assert (await inner.snapshot(GROUP)).leases == ()
        await asyncio.sleep(7)
        assert len((await inner.snapshot(GROUP)).leases) == 1

    run_virtual(main())


def test_during_an_outage_nothing_gets_through():
    async def main():
        clock = SimClock()
        store = faulty(MemoryStore(clock), clock, outage=True)
        with pytest.raises(StoreUnavailable, match="not reachable"):
            await store.snapshot(GROUP)
        store.faults.outage = False
        assert (await store.snapshot(GROUP)).leases == ()

    run_virtual(main())
