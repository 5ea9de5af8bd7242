import asyncio
from dataclasses import replace

import pytest

from leasehold.core.event import EventData
from leasehold.core.model import Checkpoint, Group
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub
from leasehold.operations.rewind import TRIES, RewindOutcome, carry_out, owners, plan
from leasehold.stores.sqlite import SqliteStore

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")
OTHER = replace(GROUP, name="other")


class World:
    """Two partitions of 30 and 20 events, each processed up to its 10th."""

    def __init__(self, folder):
        self.hub = Hub.create(
            folder / "hub.db", name="sensors", namespace="homes.local", partitions=2
        )
        for partition, batches in ((0, 3), (1, 2)):
            for _ in range(batches):
                self.hub.send([EventData(b"x")] * 10, partition_id=partition)
        self.store = SqliteStore(folder / "leases.db")

    async def start(self):
        starts = {p: self.hub.position_of(p, 10) for p in ("0", "1")}
        await self.store.create(GROUP, starts)

    async def take(self, partition, owner, ttl_s=60.0):
        lease = (await self.leases())[partition]
        return (await self.store.acquire([lease], owner, ttl_s))[0]

    async def leases(self):
        return {lease.partition: lease for lease in (await self.store.snapshot(GROUP)).leases}

    async def positions(self):
        return {p: lease.checkpoint.next_sequence for p, lease in (await self.leases()).items()}

    async def plan(self, to, *partitions):
        return await plan(self.hub, self.store, GROUP, to, partitions or None)

    async def refusal(self, call):
        with pytest.raises(BadInput) as refused:
            await call
        return str(refused.value)


@pytest.fixture
def run(tmp_path):
    def run(story):
        async def with_world():
            world = World(tmp_path)
            try:
                await world.start()
                await story(world)
            finally:
                world.hub.close()
                await world.store.close()

        asyncio.run(with_world())

    return run


class Meddling:
    """A store on which something happens just before each rewind."""

    def __init__(self, store, meddle):
        self._store, self._meddle, self.tries = store, meddle, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def rewind(self, leases):
        self.tries += 1
        await self._meddle()
        return await self._store.rewind(leases)


def test_a_plan_counts_what_comes_again_and_what_is_skipped(run):
    async def story(world):
        moves = await world.plan("earliest")
        assert [(m.partition, m.to.next_sequence, m.again, m.skipped) for m in moves] == [
            ("0", 0, 10, 0),
            ("1", 0, 10, 0),
        ]
        moves = await world.plan("latest")
        assert [(m.again, m.skipped) for m in moves] == [(0, 20), (0, 10)]
        assert await world.positions() == {"0": 10, "1": 10}

    run(story)


def test_events_that_retention_removed_do_not_come_again(run):
    async def story(world):
        world.hub.trim_before("0", 10)
        (move,) = await world.plan("earliest", "1")
        assert move.again == 10
        world.hub.send(EventData(b"x"), partition_id=0)
        world.hub.trim_before("0", 20)
        (move,) = await world.plan("earliest", "0")
        assert (move.to.next_sequence, move.again, move.skipped) == (20, 0, 0)

    run(story)


@pytest.mark.parametrize("to", ["sequence:10", 10])
def test_what_is_there_already_is_left_alone(run, to):
    async def story(world):
        assert await world.plan(to) == ()
        assert await carry_out(world.store, ()) == RewindOutcome(done=(), refused={})
        (move,) = await world.plan("sequence:4", "1")
        await carry_out(world.store, [move])
        assert [move.partition for move in await world.plan(to)] == ["1"]

    run(story)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("sequence:25", "partition 1: sequence 25 is beyond the end"),
        ("sequence:3", "partition 0: sequence 3 is older than what the hub keeps"),
        ("offset:1", "is older than what the hub keeps"),
    ],
)
def test_a_position_that_one_partition_does_not_have_refuses_the_whole(run, to, says):
    async def story(world):
        world.hub.trim_before("0", 10)
        text = await world.refusal(world.plan(to))
        assert says in text
        assert "Nothing was changed" in text

    run(story)


def test_a_partition_is_moved_to_where_it_was_told(run):
    async def story(world):
        outcome = await carry_out(world.store, await world.plan("sequence:4", "1"))
        assert outcome == RewindOutcome(done=("1",), refused={})
        assert await world.positions() == {"0": 10, "1": 4}
        lease = (await world.leases())["1"]
        assert len(world.hub.read_batch("1", lease.checkpoint, 100).events) == 16

    run(story)


def test_a_live_owner_refuses_the_whole_and_is_named(run):
    async def story(world):
        await world.take("1", "worker-7")
        moves = await world.plan("earliest")
        assert owners(moves) == {"worker-7": ["1"]}
        assert "worker-7 (partition 1)" in await world.refusal(carry_out(world.store, moves))
        assert await world.positions() == {"0": 10, "1": 10}
        assert (await carry_out(world.store, await world.plan("earliest", "0"))).done == ("0",)

    run(story)


def test_an_owner_that_is_gone_does_not_stand_in_the_way(run):
    async def story(world):
        held = await world.take("1", "worker-7", ttl_s=1e-6)
        await asyncio.sleep(0.01)
        outcome = await carry_out(world.store, await world.plan("earliest"))
        assert outcome.done == ("0", "1")
        assert await world.store.checkpoint([held]) == ()

    run(story)


def test_a_fenced_owner_writes_nothing_more(run):
    async def story(world):
        held = await world.take("1", "worker-7")
        outcome = await carry_out(world.store, await world.plan("earliest"), fence=True)
        assert sorted(outcome.done) == ["0", "1"]
        ahead = replace(held, checkpoint=world.hub.position_of("1", "latest"))
        assert await world.store.checkpoint([ahead]) == ()
        assert await world.positions() == {"0": 0, "1": 0}

    run(story)


def test_an_owner_that_renews_meanwhile_is_fenced_off_all_the_same(run):
    async def story(world):
        held = await world.take("1", "worker-7")
        renewals = iter(range(3))

        async def renew():
            if next(renewals, None) is not None:
                assert (await world.store.renew([held])).kept

        store = Meddling(world.store, renew)
        outcome = await carry_out(store, await world.plan("earliest"), fence=True)
        assert sorted(outcome.done) == ["0", "1"]
        assert (store.tries, outcome.refused) == (4, {})

    run(story)


def test_an_owner_that_always_comes_between_is_reported_after_some_tries(run):
    async def story(world):
        held = await world.take("1", "worker-7")

        async def renew():
            await world.store.renew([held])

        store = Meddling(world.store, renew)
        outcome = await carry_out(store, await world.plan("earliest"), fence=True)
        assert (outcome.done, list(outcome.refused)) == (("0",), ["1"])
        assert store.tries == TRIES
        assert await world.positions() == {"0": 0, "1": 10}

    run(story)


def test_an_owner_that_comes_meanwhile_keeps_its_partition_and_the_rest_is_moved(run):
    async def story(world):
        async def take():
            if store.tries == 1:
                await world.take("1", "worker-7")

        store = Meddling(world.store, take)
        outcome = await carry_out(store, await world.plan("earliest"))
        assert outcome == RewindOutcome(done=("0",), refused={"1": "worker-7 took it meanwhile"})
        assert await world.positions() == {"0": 0, "1": 10}

    run(story)


def test_a_partition_split_meanwhile_is_reported(run):
    async def story(world):
        moves = await world.plan("earliest")
        held = await world.take("1", "worker-7")
        await world.store.split(held, {"1a": Checkpoint(next_sequence=0)})
        outcome = await carry_out(world.store, moves)
        assert outcome.done == ("0",)
        assert "split" in outcome.refused["1"]

    run(story)


def test_a_group_that_never_ran_is_refused_and_those_that_did_are_named(run):
    async def story(world):
        text = await world.refusal(plan(world.hub, world.store, OTHER, "earliest"))
        assert "homes.local/sensors/other has no leases" in text
        assert "homes.local/sensors/alerts" in text

    run(story)


def test_only_partitions_with_a_lease_can_be_named(run):
    async def story(world):
        world.hub.raise_partitions(3)
        assert "'9' is unknown: there are 0, 1, 2" in await world.refusal(world.plan("latest", "9"))
        assert "partition 2 has no lease yet" in await world.refusal(world.plan("latest", "2"))
        assert [move.partition for move in await world.plan("earliest")] == ["0", "1"]

    run(story)


def test_a_lease_whose_partition_is_not_there_is_left_alone(run):
    async def story(world):
        await world.store.create(GROUP, {"77": Checkpoint(next_sequence=5)})
        assert [move.partition for move in await world.plan("earliest")] == ["0", "1"]

    run(story)


def test_a_group_of_a_hub_made_anew_can_be_sent_to_its_beginning(run):
    async def story(world):
        stale = [
            replace(lease, checkpoint=Checkpoint(next_sequence=5000, token="1"))
            for lease in (await world.leases()).values()
        ]
        await world.store.rewind(stale)
        moves = await world.plan("earliest")
        assert [(move.again, move.skipped) for move in moves] == [(30, 0), (20, 0)]
        await carry_out(world.store, moves)
        assert await world.positions() == {"0": 0, "1": 0}

    run(story)
