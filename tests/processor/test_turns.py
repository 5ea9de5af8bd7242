"""Who tries what may kill the process, and for how long alone."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from support.pump_rig import Rig

from leasehold.processor.turns import TURN_S, Turns
from leasehold.settings import Retry
from leasehold.testing.sim_time import run_virtual

ASK = {"share_s": 10.0, "again_s": 1.0}


def test_one_at_a_time_in_the_order_they_came():
    turns = Turns()
    assert turns.take("a", now=0.0, **ASK)
    assert not turns.take("b", now=0.1, **ASK)
    assert not turns.take("c", now=0.2, **ASK)
    turns.end("a")
    assert not turns.take("c", now=0.3, **ASK)
    assert not turns.take("a", now=0.4, **ASK)
    assert turns.take("b", now=0.5, **ASK)


def test_a_turn_is_not_for_ever_and_its_late_end_ends_nobody_elses():
    turns = Turns()
    assert turns.take("hangs", now=0.0, **ASK)
    assert not turns.take("b", now=9.9, **ASK)
    assert turns.take("b", now=10.0, **ASK)
    turns.end("hangs")
    assert not turns.take("c", now=10.1, **ASK)


def test_who_stops_asking_or_leaves_loses_its_place():
    turns = Turns()
    assert turns.take("a", now=0.0, **ASK)
    for who in ("silent", "gone", "c"):
        assert not turns.take(who, now=0.1, **ASK)
    turns.end("a")
    turns.end("gone")
    assert not turns.take("c", now=0.2, **ASK)
    assert turns.take("c", now=1.2, **ASK)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["fine", "slow", "hangs"]), min_size=1, max_size=6))
def test_all_suspects_but_those_that_hang_are_handled(kinds):
    """And as long as none hangs, no two are tried at the same time."""
    takes_s = {"fine": 0.1, "slow": TURN_S / 3, "hangs": 1e9}

    async def main():
        turns, trying, most = Turns(), 0, 0

        def watched(handle):
            async def watch(events, stop):
                nonlocal trying, most
                trying += 1
                most = max(most, trying)
                try:
                    return await handle(events, stop)
                finally:
                    trying -= 1

            return watch

        rigs = [Rig(count=1, takes_s=takes_s[kind]) for kind in kinds]
        for rig in rigs:
            rig.desk.handle = watched(rig.desk.handle)
            retry = Retry(attempts=1, then="dead-letter")
            await rig.start(retry=retry, orphaned=True, turns=turns)
        await asyncio.sleep(60 + 2 * TURN_S * len(kinds))
        for kind, rig in zip(kinds, rigs, strict=True):
            assert rig.desk.done == ([] if kind == "hangs" else [0])
            assert rig.desk.buried == []
        assert most <= 1 + kinds.count("hangs")

    run_virtual(main())
