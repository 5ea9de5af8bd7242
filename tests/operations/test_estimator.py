import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocking import result_of
from support.clocks import clocks_of

from leasehold.core.event import EventData
from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub
from leasehold.operations.estimator import CheckpointAges, Estimator
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing.sim_world import SimFeed

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")


class HandClock:
    """Stands still until it is moved; the wall clock may be set apart from it."""

    def __init__(self):
        self.now, self.set_s = 1000.0, 1_800_000_000.0

    def monotonic(self):
        return self.now

    def wall(self):
        return self.now + self.set_s

    async def sleep(self, seconds):
        self.now += seconds


class World:
    """A hub and a lease store in files, and somebody who works through the hub by hand."""

    def __init__(self, folder, partitions=2):
        self.clock = HandClock()
        self.path = folder / "hub.db"
        self.partitions = partitions
        self.store = SqliteStore(folder / "leases.db", clock=self.clock)
        self.hub = self.make_hub()
        self.estimator = self.watch()

    def make_hub(self):
        return Hub.create(
            self.path,
            name="sensors",
            namespace="homes.local",
            partitions=self.partitions,
            clocks=clocks_of(self.clock),
        )

    def watch(self, **settings):
        return Estimator(self.hub, group="alerts", store=self.store, clock=self.clock, **settings)

    def send(self, partition, count):
        self.hub.send([EventData(b"x" * n) for n in range(count)], partition_id=partition)

    def start(self, at="earliest"):
        starts = {p: self.hub.position_of(p, at) for p in self.hub.properties().partition_ids}
        self.ask(self.store.create(GROUP, starts))

    def take(self, partition, owner="worker-1"):
        wanted = [lease for lease in self.leases() if lease.partition == partition]
        (self.held,) = self.ask(self.store.acquire(wanted, owner, 10.0))

    def process(self, partition, count):
        """One batch of so many events, by whoever took the partition last."""
        held = next(lease for lease in self.leases() if lease.partition == partition)
        after = self.hub.read_batch(partition, held.checkpoint, count).next
        (kept,) = self.ask(self.store.checkpoint([replace(held, checkpoint=after)]))
        assert kept.checkpoint == after

    def leases(self):
        return self.ask(self.store.snapshot(GROUP)).leases

    def ask(self, request):
        return asyncio.run(request)

    def close(self):
        self.estimator.close()
        self.hub.close()
        asyncio.run(self.store.close())


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def test_a_group_that_never_ran_lags_by_everything_there_is(world):
    world.send("0", 30)
    world.clock.now += 12
    estimate = world.estimator.lag()
    assert not estimate.started
    assert (estimate.lag_events, estimate.lag_s) == (30, 12.0)
    zero, one = estimate.partitions
    assert (zero.checkpoint, zero.owner, zero.lag_events) == (None, None, 30)
    assert zero.checkpoint_age_s is None
    assert (one.lag_events, one.lag_s) == (0, 0.0)


def test_a_group_that_was_told_to_begin_at_the_end_does_not_lag(world):
    world.send("0", 30)
    world.start("latest")
    estimate = world.estimator.lag()
    assert estimate.started
    assert (estimate.lag_events, estimate.lag_s) == (0, 0.0)
    assert not estimate.partitions[0].advanced


def test_lag_is_told_in_events_and_by_the_age_of_the_oldest_unprocessed_one(world):
    world.send("0", 30)
    world.clock.now += 12
    world.send("0", 5)
    world.start()
    world.take("0")
    assert world.estimator.lag().lag_s == 12.0
    world.process("0", 30)
    world.clock.now += 3
    (zero, _) = world.estimator.lag().partitions
    assert (zero.lag_events, zero.lag_s) == (5, 3.0)
    assert (zero.owner, zero.owner_live, zero.advanced) == ("worker-1", True, True)
    assert (zero.first, zero.checkpoint, zero.end) == (0, 30, 35)


def test_the_total_is_the_sum_of_events_and_the_greatest_age(world):
    world.start()
    world.send("0", 7)
    world.clock.now += 5
    world.send("1", 3)
    world.clock.now += 1
    estimate = world.estimator.lag()
    assert (estimate.lag_events, estimate.lag_s) == (10, 6.0)


def test_an_owner_that_stopped_renewing_is_not_called_alive(world):
    world.start()
    world.take("0")
    world.clock.now += 11
    zero = world.estimator.lag().partitions[0]
    assert (zero.owner, zero.owner_live, zero.lease_age_s) == ("worker-1", False, 11.0)


def test_members_without_a_partition_are_seen_and_dead_ones_not(world):
    for name in ("idle", "dead"):
        world.ask(world.store.join(GROUP, Member(instance=name, incarnation="1")))
    world.clock.now += 11
    world.ask(world.store.heartbeat(GROUP, Member(instance="idle", incarnation="1")))
    assert world.estimator.lag().members == ("idle",)


def test_one_look_tells_no_rate_and_calls_nothing_stuck(world):
    world.start()
    world.send("0", 30)
    world.clock.now += 1000
    estimate = world.estimator.lag()
    assert estimate.stuck == ()
    assert (estimate.processed_per_s, estimate.incoming_per_s) == (None, None)
    assert (estimate.catch_up_s, estimate.partitions[0].catch_up_s) == (None, None)


def test_two_looks_tell_the_rates_and_when_it_will_have_caught_up(world):
    world.start()
    world.take("0")
    world.send("0", 100)
    world.estimator.lag()
    world.clock.now += 10
    world.process("0", 40)
    world.send("0", 20)
    estimate = world.estimator.lag()
    zero, one = estimate.partitions
    assert (zero.processed_per_s, zero.incoming_per_s, zero.catch_up_s) == (4.0, 2.0, 40.0)
    assert (one.processed_per_s, one.catch_up_s) == (0.0, 0.0)
    assert (estimate.processed_per_s, estimate.incoming_per_s, estimate.catch_up_s) == (4, 2, 40)


def test_rates_are_taken_over_a_while_because_checkpoints_move_in_steps(world):
    world.start()
    world.take("0")
    world.send("0", 1000)
    rates = []
    for second in range(40):
        if second % 5 == 0:
            world.process("0", 10)
        rates.append(world.estimator.lag().processed_per_s)
        world.clock.now += 1
    assert rates[0] is None
    assert all(1.6 <= rate <= 2.4 for rate in rates[30:])


def test_looks_far_apart_are_compared_all_the_same(world):
    world.start()
    world.take("0")
    world.send("0", 1000)
    world.estimator.lag()
    world.clock.now += 500
    world.process("0", 250)
    assert world.estimator.lag().processed_per_s == 0.5


def test_a_rewind_is_not_progress(world):
    world.start()
    world.take("0")
    world.send("0", 100)
    world.process("0", 60)
    world.estimator.lag()
    world.clock.now += 10
    back = [
        replace(lease, checkpoint=world.hub.position_of("0", "earliest"))
        for lease in world.leases()
        if lease.partition == "0"
    ]
    assert world.ask(world.store.rewind(back))
    assert world.estimator.lag().processed_per_s == 0.0


def test_a_partition_with_work_that_does_not_advance_is_named_as_stuck(world):
    world.start()
    world.take("0")
    world.take("1")
    world.send("0", 100)
    world.send("1", 100)
    for _ in range(16):
        assert world.estimator.lag().stuck == ()
        world.clock.now += 2
        world.process("1", 1)
    world.clock.now += 1
    estimate = world.estimator.lag()
    assert estimate.stuck == ("0",)
    assert [p.stuck for p in estimate.partitions] == [True, False]
    world.process("0", 1)
    assert world.estimator.lag().stuck == ()


def test_a_partition_that_stopped_lately_is_stuck_although_it_went_well_before(world):
    world.start()
    world.take("0")
    world.send("0", 100)
    estimator = world.watch(stuck_after_s=10, rate_over_s=1000)
    for _ in range(20):
        assert estimator.lag().stuck == ()
        world.process("0", 1)
        world.clock.now += 3
    assert estimator.lag().stuck == ()
    world.clock.now += 11
    assert estimator.lag().stuck == ("0",)
    estimator.close()


def test_a_partition_without_work_is_not_stuck_however_long(world):
    world.start()
    for _ in range(5):
        assert world.estimator.lag().stuck == ()
        world.clock.now += 100


def test_work_that_has_just_come_does_not_make_a_partition_stuck(world):
    world.start()
    world.estimator.lag()
    world.clock.now += 1000
    world.send("0", 10)
    assert world.estimator.lag().stuck == ()


def test_work_that_nobody_takes_is_stuck(world):
    world.send("1", 10)
    world.estimator.lag()
    world.clock.now += 31
    assert world.estimator.lag().stuck == ("1",)


@pytest.mark.parametrize("set_s", [-86_400, 86_400])
def test_setting_the_clock_by_a_day_makes_nothing_stuck_and_no_age_negative(world, set_s):
    world.start()
    world.take("0")
    world.send("0", 100)
    world.estimator.lag()
    world.clock.now += 10
    world.clock.set_s += set_s
    world.process("0", 40)
    estimate = world.estimator.lag()
    assert estimate.stuck == ()
    assert estimate.processed_per_s == 4.0
    assert estimate.lag_s >= 0


def test_the_age_of_a_checkpoint_is_bounded_by_the_looks_around_its_change(world):
    world.start()
    world.take("0")
    world.send("0", 100)
    zero = world.estimator.lag().partitions[0]
    assert (zero.checkpoint_age_s, zero.checkpoint_age_max_s) == (0.0, None)
    world.clock.now += 5
    zero = world.estimator.lag().partitions[0]
    assert (zero.checkpoint_age_s, zero.checkpoint_age_max_s) == (5.0, None)
    world.clock.now += 1
    world.process("0", 10)
    world.clock.now += 1
    world.estimator.lag()
    world.clock.now += 3
    zero = world.estimator.lag().partitions[0]
    assert (zero.checkpoint_age_s, zero.checkpoint_age_max_s) == (3.0, 5.0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["look", "write"]), st.floats(0, 50))))
def test_the_true_age_of_a_checkpoint_is_always_within_the_bounds(steps):
    ages, now, written_at, position = CheckpointAges(), 0.0, 0.0, 0
    for what, pause_s in steps:
        now += pause_s
        if what == "write":
            position, written_at = position + 1, now
            continue
        ages.look((_lease(position),), now)
        least_s, most_s = ages.of("0")
        assert least_s <= now - written_at + 1e-9
        assert most_s is None or now - written_at <= most_s + 1e-9


def _lease(position):
    return Lease(group=GROUP, partition="0", checkpoint=Checkpoint(next_sequence=position))


def test_a_checkpoint_before_retention_is_flagged_and_what_was_lost_is_counted(world):
    world.start()
    for _ in range(4):
        world.send("0", 25)
        world.clock.now += 1
    world.hub.trim_before("0", 50)
    zero = world.estimator.lag().partitions[0]
    assert (zero.astray, zero.lost_events) == ("retention", 50)
    assert (zero.lag_events, zero.lag_s, zero.checkpoint) == (50, 2.0, 0)


def test_a_hub_made_anew_with_fewer_events_counts_as_unprocessed(world):
    world.start()
    world.send("0", 100)
    world.take("0")
    world.process("0", 100)
    make_anew(world)
    world.send("0", 20)
    world.clock.now += 4
    zero = world.estimator.lag().partitions[0]
    assert (zero.astray, zero.checkpoint, zero.lost_events) == ("beyond end", 100, 0)
    assert (zero.lag_events, zero.lag_s, zero.owner) == (20, 4.0, "worker-1")


@pytest.mark.parametrize("events", [40, 41, 60])
def test_a_hub_made_anew_is_noticed_although_the_sequence_exists(world, events):
    world.start()
    world.send("0", 40)
    world.take("0")
    world.process("0", 40)
    make_anew(world)
    world.send("0", events)
    world.clock.now += 4
    zero, one = world.estimator.lag().partitions
    assert (zero.astray, zero.checkpoint) == ("other feed", 40)
    assert (zero.lag_events, zero.lag_s) == (events, 4.0)
    assert one.astray == "other feed"
    assert (one.lag_events, one.lag_s) == (0, 0.0)


def make_anew(world):
    world.hub.close()
    for file in world.path.parent.glob("hub.db*"):
        file.unlink()
    world.hub = world.make_hub()
    world.estimator = world.watch()


def test_progress_during_a_look_is_not_taken_for_a_hub_made_anew(world):
    """Had the end been read before the checkpoint, the checkpoint would seem to be beyond it."""
    world.start()
    world.take("0")
    world.send("0", 10)
    world.process("0", 10)

    class Busy(Hub):
        async def extents(self):
            found = await super().extents()
            await asyncio.to_thread(world.send, "0", 5)
            await asyncio.to_thread(world.process, "0", 5)
            return found

    with Busy.open(world.path) as hub:
        estimator = Estimator(hub, group="alerts", store=world.store, clock=world.clock)
        for _ in range(3):
            assert estimator.lag().partitions[0].astray is None
        estimator.close()


def test_a_partition_added_later_counts_before_anybody_took_it(world):
    world.start()
    world.hub.raise_partitions(3)
    world.send("2", 9)
    estimate = world.estimator.lag()
    assert [p.lag_events for p in estimate.partitions] == [0, 0, 9]
    assert estimate.partitions[2].checkpoint is None


def test_a_lease_whose_partition_is_not_there_is_named(world):
    world.ask(world.store.create(GROUP, {"77": Checkpoint(next_sequence=0)}))
    estimate = world.estimator.lag()
    assert estimate.gone == ("77",)
    assert [p.partition for p in estimate.partitions] == ["0", "1"]


def test_attempts_at_a_failing_batch_are_seen_at_the_first_look(world):
    world.start()
    world.take("0")
    world.ask(world.store.checkpoint([replace(world.held, attempts=3)]))
    assert world.estimator.lag().partitions[0].attempts == 3


def test_a_look_costs_one_request_to_the_store(world):
    world.start()
    before = world.store.requests.copy()
    for _ in range(3):
        world.estimator.lag()
    assert world.store.requests - before == {"snapshot": 3}
    assert world.hub.requests["extents"] == 3
    assert world.hub.requests["event_times"] == 3
    assert world.hub.requests["read"] == 0


def test_a_split_partition_counts_until_the_group_has_read_it_to_its_end(tmp_path):
    feed, clock = SimFeed(1), HandClock()
    store = SqliteStore(tmp_path / "leases.db", clock=clock)
    group = Group(namespace=feed.namespace, feed=feed.name, name="alerts")
    estimator = Estimator(feed, group="alerts", store=store, clock=clock)
    (parent,) = feed.leaves()
    feed.append(parent, 10)
    asyncio.run(store.create(group, {parent: Checkpoint(next_sequence=4)}))
    feed.split(parent)
    first, second = feed.leaves()
    feed.append(first, 3)

    estimate = estimator.lag()
    assert {p.partition: p.lag_events for p in estimate.partitions} == {
        parent: 6,
        first: 3,
        second: 0,
    }
    assert estimate.lag_s is None  # this feed tells no times

    async def finish():
        seen = (await store.snapshot(group)).leases
        (held,) = await store.acquire(seen, "a", 10.0)
        end = {child: Checkpoint(next_sequence=10) for child in (first, second)}
        assert await store.split(held, end)

    asyncio.run(finish())
    estimate = estimator.lag()
    assert {p.partition: p.lag_events for p in estimate.partitions} == {first: 3, second: 0}
    assert estimate.gone == ()
    asyncio.run(store.close())
    estimator.close()


def test_an_event_loop_awaits_observe_and_is_told_so(world):
    async def wrong():
        world.estimator.lag()

    async def right():
        return await world.estimator.observe()

    with pytest.raises(BadInput, match=r"await estimator\.observe\(\)"):
        asyncio.run(wrong())
    assert asyncio.run(right()).lag_events == 0


def test_a_closed_estimator_leaves_hub_and_store_open_and_may_go_on(world):
    with world.watch() as estimator:
        estimator.lag()
    assert result_of(world.hub.extents())
    assert world.leases() == ()
    assert estimator.lag().lag_events == 0
    estimator.close()


def test_an_estimate_is_plain_json(world):
    world.start()
    world.send("0", 5)
    values = json.loads(json.dumps(world.estimator.lag().as_dict()))
    assert values["group"] == {"namespace": "homes.local", "feed": "sensors", "name": "alerts"}
    assert (values["lag_events"], values["stuck"], values["started"]) == (5, [], True)
    assert values["partitions"][0]["lag_events"] == 5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"group": " "}, "group must be a name"),
        ({"group": "a", "stuck_after_s": 0}, "stuck_after_s must be more than 0"),
        ({"group": "a", "rate_over_s": -1}, "rate_over_s must be more than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(world, settings, says):
    with pytest.raises(BadInput, match=says):
        Estimator(world.hub, store=world.store, **settings)
