"""What an instance asked for, and was not told whether it has."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.host_world import GROUP, INTERVAL_S, World

from leasehold.core.model import Checkpoint, Group, Lease, Snapshot
from leasehold.errors import StoreUnavailable
from leasehold.processor.claims import Claims, Former
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sim_time import run_virtual

CLEAN = Former(orphaned=False, overruled=False)


def a_lease(partition="00", *, owner=None, epoch=0, age_s=0.0):
    return Lease(
        group=Group(namespace="n", feed="f", name="g"),
        partition=partition,
        owner=owner,
        epoch=epoch,
        age_s=age_s,
        ttl_s=10.0,
        checkpoint=Checkpoint(next_sequence=0),
    )


def a_look(*leases):
    return Snapshot(leases=leases, members=())


@pytest.mark.parametrize(
    ("owner", "age_s", "former"),
    [
        (None, 0.0, CLEAN),
        ("b", 99.0, Former(orphaned=True, overruled=False)),
        ("b", 1.0, Former(orphaned=True, overruled=True)),
        ("a", 1.0, Former(orphaned=True, overruled=True)),  # an earlier process of that name
    ],
)
def test_a_claim_remembers_whom_it_takes_the_lease_from(owner, age_s, former):
    claims = Claims("a")
    assert claims.send([a_lease(owner=owner, epoch=3, age_s=age_s)]) == {"00": former}
    claims.answered("00")
    assert not claims


@given(st.lists(st.integers(0, 5), max_size=8), st.sampled_from([None, "b"]), st.floats(0, 30))
def test_however_many_answers_are_lost_the_former_owner_is_the_one_before_the_first(
    arrived, owner, age_s
):
    """Of each claim before the last: by how much it raised the epoch, or 0 if it never arrived. By
    more than one it may be where another processor wiped what there was."""
    claims, stored = Claims("a"), a_lease(owner=owner, epoch=7, age_s=age_s)
    expected = Former(owner is not None, owner is not None and stored.live)
    for more in arrived:
        assert claims.send([stored]) == {"00": expected}
        if more:
            stored = a_lease(owner="a", epoch=stored.epoch + more)
        claims.look(a_look(stored))
        assert claims.strays(a_look(stored), ()) == ([stored] if stored.owner == "a" else [])
    assert claims.send([stored]) == {"00": expected}
    claims.answered("00")
    assert not claims


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param([a_lease(owner="b", epoch=1)], id="somebody else was first"),
        pytest.param([a_lease(owner=None, epoch=1)], id="somebody else had it and let it go"),
        pytest.param([], id="it is gone"),
    ],
)
def test_what_came_to_nothing_is_forgotten(seen):
    claims = Claims("a")
    claims.send([a_lease()])
    assert claims.strays(a_look(*seen), ()) == []
    claims.look(a_look(*seen))
    assert not claims


def test_what_is_worked_on_or_was_never_asked_for_is_no_stray():
    claims = Claims("a")
    claims.send([a_lease("00"), a_lease("01")])
    mine = tuple(a_lease(name, owner="a", epoch=1) for name in ("00", "01", "02"))
    assert claims.strays(a_look(*mine), {"00"}) == [mine[1]]


class Unheard(FaultyStore):
    """Claims are carried out, and their answers are lost, in all or in part."""

    heard: frozenset[str] | None = None
    """None: all; none: the request fails."""

    async def acquire(self, leases, owner, ttl_s):
        won = await super().acquire(leases, owner, ttl_s)
        if self.heard is None:
            return won
        if not self.heard:
            raise StoreUnavailable("the answer was lost")
        return [lease for lease in won if lease.partition in self.heard]


def leases_of(world):
    return world.store._snapshot(GROUP).leases


def unheard(world, *heard):
    store = Unheard(world.store, Faults(), random.Random(0), world.clock)
    store.heard = frozenset(heard)
    return store


@pytest.mark.parametrize("heard", [(), ("00", "01")])
def test_who_stops_without_knowing_what_it_has_gives_it_back(heard):
    async def main():
        world = World()
        a = world.start("a", store=unheard(world, *heard))
        await asyncio.sleep(0.1)
        assert set(world.owners().values()) == {"a"}
        assert a.workers.keys() == set(heard)
        await world.stop(a)
        assert set(world.owners().values()) == {None}
        assert world.store._snapshot(GROUP).members == ()
        b = world.start("b")
        await asyncio.sleep(1.5)
        assert set(world.owners().values()) == {"b"}
        await world.stop(b)

    run_virtual(main())


def test_who_cannot_stop_yet_gives_back_at_once_what_it_was_not_told_of():
    async def main():
        world = World()
        for partition in world.feed.leaves():
            world.feed.append(partition, 1)
        world.hold_up.clear()
        a = world.start("a", store=unheard(world, "00"))
        await asyncio.sleep(0.1)
        a.stop()
        await asyncio.sleep(1)
        assert world.owners() == {"00": "a", "01": None, "02": None, "03": None}
        world.hold_up.set()
        await world.tasks[a]

    run_virtual(main())


def test_one_that_is_locked_keeps_no_other_from_being_given_back():
    async def main():
        world = World()
        store = unheard(world)
        release = store.release

        async def locked(leases):
            if any(lease.partition == "00" for lease in leases):
                raise StoreUnavailable("it is locked")
            await release(leases)

        store.release = locked
        a = world.start("a", store=store)
        await asyncio.sleep(0.1)
        await world.stop(a)
        assert world.owners() == {"00": "a", "01": None, "02": None, "03": None}
        assert [what for what, _ in world.reports if "00" in what] == [f"releasing 00 of {GROUP}"]
        # An owner that is no member would count as another processor, and be given leases.
        (member,) = world.store._snapshot(GROUP).members
        assert member.leaving

    run_virtual(main())


def test_an_instance_is_not_its_own_dead_owner():
    """Or what a dead one left behind would be held against an event that nobody has tried."""

    async def main():
        world = World()
        store = unheard(world)
        a = world.start("a", store=store)
        await asyncio.sleep(0.1)
        store.heard = None
        await asyncio.sleep(5)
        holds = [worker.hold for worker in a.workers.values()]
        assert [hold.lease.epoch for hold in holds] == [2, 2, 2, 2]
        assert not any(hold.orphaned or hold.overruled for hold in holds)
        await world.stop(a)

    run_virtual(main())


def test_who_stops_takes_nothing_from_the_next_one_of_its_name():
    """Whose claim began the same epoch as the one that never arrived."""

    async def main():
        world = World()
        stuck = world.start("a", incarnation="stuck")
        await asyncio.sleep(0.1)
        twin = world.start("a", incarnation="twin")
        await asyncio.sleep(0.1)
        assert twin.workers.keys() == set(world.owners())
        # What it asked for never arrived, and the next one has got the same epoch.
        stuck._claims.send(
            [replace(each, owner=None, epoch=each.epoch - 1) for each in leases_of(world)]
        )
        stuck.workers.clear()
        stuck.stop()
        await asyncio.wait([world.tasks[stuck]])
        assert set(world.owners().values()) == {"a"}
        await world.stop(twin)

    run_virtual(main())


@pytest.mark.parametrize("partitions", [4, 64])
def test_a_store_that_releases_nothing_holds_a_stop_up_for_one_request(partitions):
    async def main():
        world = World(partitions)
        store = unheard(world)

        async def silent(leases):
            await asyncio.sleep(1e9)

        store.release = silent
        a = world.start("a", store=store)
        await asyncio.sleep(0.1)
        began = world.clock.monotonic()
        await world.stop(a)
        assert world.clock.monotonic() - began <= world.settings.request_timeout_s + 0.1

    run_virtual(main())


def test_what_cannot_be_given_back_keeps_nothing_in_hand_from_being_renewed():
    async def main():
        world = World(8)
        for partition in world.feed.leaves():
            world.feed.append(partition, 1)
        world.hold_up.clear()
        store = unheard(world, "00")

        async def silent(leases):
            await asyncio.sleep(1e9)

        store.release = silent
        a = world.start("a", store=store)
        await asyncio.sleep(0.1)
        a.stop()
        for _ in range(15):
            await asyncio.sleep(1)
            (held,) = [each for each in leases_of(world) if each.partition == "00"]
            assert held.owner == "a"
            assert held.age_s <= INTERVAL_S + 0.5
        world.hold_up.set()
        await world.tasks[a]

    run_virtual(main())
