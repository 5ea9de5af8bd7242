"""The host on virtual time, over the memory store. Long runs under faults are in the simulation."""

import asyncio
import random
from dataclasses import replace

import pytest
from support.host_world import GROUP, INTERVAL_S, World

from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, InstanceReplaced
from leasehold.settings import Timing
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sim_time import run_virtual


def test_one_instance_takes_everything_and_handles_it_in_order():
    async def main():
        world = World()
        for partition in world.feed.leaves():
            world.feed.append(partition, 25)
        host = world.start("a")
        await asyncio.sleep(2)
        assert set(world.owners().values()) == {"a"}
        for partition in world.feed.leaves():
            assert [e for p, e, _ in world.handled if p == partition] == list(range(25))
        await world.stop(host)
        look = world.store._snapshot(GROUP)
        assert all(lease.owner is None for lease in look.leases)
        assert all(lease.checkpoint.next_sequence == 25 for lease in look.leases)
        assert look.members == ()

    run_virtual(main())


def test_an_orderly_stop_passes_the_partitions_on_without_waiting_for_expiry():
    async def main():
        world = World()
        a, b = world.start("a"), world.start("b")
        await asyncio.sleep(10)
        assert sorted(world.owners().values()) == ["a", "a", "b", "b"]
        await world.stop(a)
        await asyncio.sleep(INTERVAL_S + 0.1)
        assert set(world.owners().values()) == {"b"}
        await world.stop(b)

    run_virtual(main())


def test_who_is_asked_to_stop_in_mid_look_says_so_before_it_lets_go_of_anything():
    """Others that stop just then would count it as one that stays, and pass their leases to it."""

    async def main():
        world = World()
        store = FaultyStore(world.store, Faults(), random.Random(0), world.clock)
        a, b = world.start("a", store=store), world.start("b")
        await asyncio.sleep(10)
        said, snapshot, release = [], store.snapshot, store.release

        async def stop_meanwhile(group):
            store.snapshot = snapshot
            look = await snapshot(group)
            a.stop()
            return look

        async def watched(leases):
            said.extend(
                m.leaving for m in world.store._snapshot(GROUP).members if m.instance == "a"
            )
            await release(leases)

        store.snapshot, store.release = stop_meanwhile, watched
        await world.tasks[a]
        assert said == [True, True]
        await world.stop(b)

    run_virtual(main())


def test_an_instance_restarted_under_its_name_takes_up_its_leases_at_once():
    async def main():
        world = World()
        crashed = world.start("a", incarnation="1")
        await asyncio.sleep(5)
        world.tasks[crashed].cancel()
        for worker in crashed.workers.values():
            worker.lose()
        again = world.start("a", incarnation="2")
        await asyncio.sleep(0.5)
        assert set(again.workers) == set(world.feed.leaves())
        assert {x.epoch for x in world.store._snapshot(GROUP).leases} == {2}
        await world.stop(again)

    run_virtual(main())


def test_a_dead_owners_leases_are_taken_as_soon_as_they_expire():
    """Not at the next look after that: whenever it dies, no more than a fifth of an interval is
    added to the time to live."""

    async def main(dies_after_s):
        world = World()
        dead, alive = world.start("a"), world.start("b")
        await asyncio.sleep(10 + dies_after_s)
        world.tasks[dead].cancel()
        for worker in dead.workers.values():
            worker.lose()
        lost = {p for p, owner in world.owners().items() if owner == "a"}
        assert lost
        (age_s,) = {x.age_s for x in world.store._snapshot(GROUP).leases if x.partition in lost}
        await asyncio.sleep(Timing().lease_ttl_s - age_s)
        assert not lost & set(alive.workers)
        await asyncio.sleep(0.2 * INTERVAL_S)
        assert lost <= set(alive.workers)
        await world.stop(alive)

    for tenths in range(30):
        run_virtual(main(tenths / 10))


def test_of_two_instances_with_one_name_the_older_stops_and_says_why():
    async def main():
        world = World()
        old = world.start("a", incarnation="1")
        await asyncio.sleep(5)
        new = world.start("a", incarnation="2")
        with pytest.raises(InstanceReplaced, match="name of its own"):
            await world.tasks[old]
        assert not old.workers
        await asyncio.sleep(5)
        assert set(new.workers) == set(world.feed.leaves())
        await world.stop(new)

    run_virtual(main())


def test_a_lease_won_by_a_request_whose_answer_was_lost_does_not_stay_unread():
    async def main():
        world = World()
        faults = Faults()
        shaky = FaultyStore(world.store, faults, random.Random(0), world.clock)
        real = world.store.acquire

        async def acquire_and_lose_the_answer(*args):
            world.store.acquire = real
            await real(*args)
            raise ConnectionError("the answer was lost")

        world.store.acquire = acquire_and_lose_the_answer
        host = world.start("a", store=shaky)
        await asyncio.sleep(0.1)
        assert set(world.owners().values()) == {"a"}
        assert not host.workers
        await asyncio.sleep(INTERVAL_S)
        assert set(host.workers) == set(world.feed.leaves())
        assert "lost" in str(world.reports[0][1])
        await world.stop(host)

    run_virtual(main())


def test_a_store_that_is_down_is_reported_and_tried_again():
    async def main():
        world = World()
        faults = Faults(outage=True)
        host = world.start(
            "a", store=FaultyStore(world.store, faults, random.Random(0), world.clock)
        )
        await asyncio.sleep(20)
        assert len(world.reports) >= 10
        assert "sim/feed/g at a" in world.reports[0][0]
        faults.outage = False
        await asyncio.sleep(3)
        assert set(host.workers) == set(world.feed.leaves())
        await world.stop(host)

    run_virtual(main())


def test_a_store_that_can_never_work_ends_the_instance_at_the_start():
    async def main():
        world = World()

        async def join(group, member):
            raise BadInput("password authentication failed for user 'leasehold'")

        world.store.join = join
        with pytest.raises(BadInput, match="password"):
            await world.host("a").run()

    run_virtual(main())


def test_a_start_position_that_is_not_there_ends_the_instance_and_leaves_no_trace():
    async def main():
        world = World()

        async def locate(partition, start):
            raise BadInput("start 'sequence:99' is not one of the events")

        world.feed.locate = locate
        with pytest.raises(BadInput, match="sequence:99"):
            await world.host("a").run()
        look = world.store._snapshot(GROUP)
        assert (look.leases, look.members) == ((), ())

    run_virtual(main())


def test_a_feed_that_hangs_does_not_keep_the_leases_from_being_renewed():
    async def main():
        world = World(partitions=1)
        host = world.start("a")
        await asyncio.sleep(1)
        partitions = world.feed.partitions

        async def hang():
            await asyncio.sleep(3600)

        world.feed.partitions = hang
        await asyncio.sleep(60)
        assert world.store._snapshot(GROUP).leases[0].live
        assert any("no answer" in str(error) for _, error in world.reports)
        world.feed.partitions = partitions
        await world.stop(host)

    run_virtual(main())


def test_many_leases_are_taken_some_at_a_time():
    async def main():
        world = World(partitions=300)
        host = world.start("a")
        await asyncio.sleep(1)
        assert len(host.workers) == 300
        assert world.store.requests["acquire"] == 3
        await world.stop(host)

    run_virtual(main())


def test_nothing_new_is_begun_while_renewals_do_not_get_through():
    async def main():
        world = World(partitions=1)
        faults = Faults()
        host = world.start(
            "a", store=FaultyStore(world.store, faults, random.Random(0), world.clock)
        )
        await asyncio.sleep(1)
        faults.outage = True
        await asyncio.sleep(world.settings.lease_ttl_s)
        world.feed.append("00", 5)
        await asyncio.sleep(5)
        assert world.handled == []
        faults.outage = False
        await asyncio.sleep(5)
        assert [event for _, event, _ in world.handled] == list(range(5))
        await world.stop(host)

    run_virtual(main())


def test_a_partition_that_appears_is_noticed():
    async def main():
        world = World(partitions=1)
        host = world.start("a")
        await asyncio.sleep(5)
        new = world.feed.add()
        await asyncio.sleep(INTERVAL_S + 0.1)
        assert new in host.workers
        await world.stop(host)

    run_virtual(main())


def test_leases_stay_fresh_while_a_slow_feed_is_asked_about_many_new_partitions():
    async def main():
        world = World(partitions=4)
        host, peer = world.start("a"), world.start("b")
        await asyncio.sleep(2 * INTERVAL_S)
        owners = world.owners()
        locate = world.feed.locate

        async def slow(partition, start):
            await asyncio.sleep(2.0)
            return await locate(partition, start)

        world.feed.locate = slow
        for _ in range(300):
            world.feed.add()
        before = asyncio.get_running_loop().time()
        while len(world.owners()) < 304:
            await asyncio.sleep(0.5)
            leases = world.store._snapshot(GROUP).leases
            live = {each.partition: each.owner for each in leases if each.live}
            assert owners.items() <= live.items()
            assert all(worker.held for each in (host, peer) for worker in each.workers.values())
        assert asyncio.get_running_loop().time() - before < 60
        await asyncio.gather(world.stop(host), world.stop(peer))

    run_virtual(main())


def test_a_start_position_that_cannot_be_told_leaves_nobody_asking():
    async def main():
        world, asked = World(partitions=3), []

        async def locate(partition, start):
            try:
                await asyncio.sleep(0 if partition == "01" else 3600)
                raise BadInput("no such start")
            finally:
                asked.append(partition)

        world.feed.locate = locate
        with pytest.raises(BadInput, match="no such start"):
            await world.host("a").run()
        assert sorted(asked) == ["00", "01", "02"]

    run_virtual(main())


def test_a_lease_of_a_partition_that_is_gone_is_left_alone():
    async def main():
        world = World(partitions=1)
        await world.store.create(GROUP, {"gone": Checkpoint(next_sequence=7)})
        host = world.start("a")
        await asyncio.sleep(10)
        assert world.owners() == {"00": "a", "gone": None}
        assert set(host.workers) == {"00"}
        await world.stop(host)

    run_virtual(main())


def test_the_start_position_is_written_when_the_lease_is_made_and_not_again():
    async def main():
        world = World(partitions=1)
        host = world.start("a")
        await asyncio.sleep(1)
        await world.stop(host)
        world.feed.first["00"] = 1000  # what "latest" would mean by now
        again = world.start("b")
        await asyncio.sleep(1)
        assert world.store._snapshot(GROUP).leases[0].checkpoint.next_sequence == 0
        await world.stop(again)

    run_virtual(main())


def test_a_handler_that_hangs_does_not_keep_an_instance_from_stopping_for_ever():
    async def main():
        world = World(partitions=1, settings=Timing(drain_timeout_s=20))
        world.hold_up.clear()
        world.feed.append("00", 1)
        host = world.start("a")
        await asyncio.sleep(1)
        began = world.clock.monotonic()
        await world.stop(host)
        assert world.clock.monotonic() - began < 30
        assert [each.leaving for each in world.store._snapshot(GROUP).members] == [True]

    run_virtual(main())


def test_an_orderly_stop_needs_no_feed():
    async def main():
        world = World(settings=Timing(drain_timeout_s=60))
        host = world.start("a")
        await asyncio.sleep(5)

        async def gone():
            raise BadInput("the hub was removed while it was open")

        world.feed.partitions = gone
        began = world.clock.monotonic()
        await world.stop(host)
        assert world.clock.monotonic() - began < INTERVAL_S
        assert set(world.owners().values()) == {None}

    run_virtual(main())


def test_while_the_store_is_down_an_orderly_stop_begins_nothing_more():
    async def main():
        world = World(partitions=1)
        faults = Faults()
        host = world.start(
            "a", store=FaultyStore(world.store, faults, random.Random(0), world.clock)
        )
        await asyncio.sleep(5)
        faults.outage = True
        host.stop()
        await asyncio.sleep(1)
        world.feed.append("00", 5)
        faults.outage = False
        await world.tasks[host]
        assert world.handled == []
        assert world.owners() == {"00": None}

    run_virtual(main())


def test_an_owner_that_does_not_let_go_is_overruled_and_its_checkpoint_refused():
    async def main():
        world = World(partitions=2, settings=Timing(shed_timeout_s=15))
        for partition in world.feed.leaves():
            world.feed.append(partition, 1)
        world.hold_up.clear()
        a = world.start("a")
        await asyncio.sleep(1)
        world.start("b")
        await asyncio.sleep(10)
        assert set(world.owners().values()) == {"a"}
        await asyncio.sleep(10)
        assert set(world.owners().values()) == {"a", "b"}
        world.hold_up.set()
        await asyncio.sleep(5)
        assert len(a.workers) == 1
        assert sorted({(p, e) for p, e, _ in world.handled}) == [("00", 0), ("01", 0)]
        assert all(x.checkpoint.next_sequence == 1 for x in world.store._snapshot(GROUP).leases)

    run_virtual(main())


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Timing(lease_ttl_s=5, balance_interval_s=3), "lease_ttl_s=5 .* balance_interval_s"),
        (Timing(balance_interval_s=0), "balance_interval_s must be more than 0"),
        (Timing(shed_timeout_s=-1), "shed_timeout_s must be more than 0"),
        (replace(Timing(), request_timeout_s=float("nan")), "request_timeout_s"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings, names):
    async def main():
        with pytest.raises(BadInput, match=names):
            World(settings=settings).host("a")

    run_virtual(main())


def test_an_instance_needs_a_name():
    async def main():
        with pytest.raises(BadInput, match="worker-1"):
            World().host("  ")

    run_virtual(main())
