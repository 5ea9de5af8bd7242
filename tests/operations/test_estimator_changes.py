"""The estimator on a real container: what remains is counted in changes, not in LSNs."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.blocking import result_of
from support.clocks import clocks_of

from leasehold.core.model import Group
from leasehold.feeds.container import Container
from leasehold.operations.estimator import Estimator
from leasehold.ports import CountsRemaining
from leasehold.stores.memory import MemoryStore


class HandClock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def wall(self):
        return self.now + 1_800_000_000.0

    async def sleep(self, seconds):
        self.now += seconds


class World:
    """A container of two ranges, and somebody who works through its changes by hand."""

    def __init__(self, folder, mode="latest", ranges=2):
        self.clock, self.mode, self.made, self.ranges = HandClock(), mode, 0, ranges
        self.path = folder / "alerts.db"
        self.container = self.make_container()
        self.feed = self.container.feed(mode)
        self.group = Group(namespace=self.feed.namespace, feed=self.feed.name, name="notify")
        self.store = MemoryStore(clock=self.clock)
        self.estimator = self.watch()
        self.homes = {}
        for n in range(200):
            self.homes.setdefault(self.container.range_of(f"H{n}"), []).append(f"H{n}")

    def make_container(self):
        return Container.create(
            self.path,
            name="alerts",
            namespace="homes.local",
            partition_key="/home",
            ranges=self.ranges,
            clocks=clocks_of(self.clock),
        )

    def watch(self):
        return Estimator(self.feed, group="notify", store=self.store, clock=self.clock)

    def put(self, range, count, first=0):
        homes = self.homes[range]
        for n in range_of(first, first + count):
            self.container.upsert({"id": f"a{n}", "home": homes[n % len(homes)]})

    def start(self, at="earliest"):
        starts = {p.id: self.feed.position_of(p.id, at) for p in result_of(self.feed.partitions())}
        asyncio.run(self.store.create(self.group, starts))

    def leases(self):
        return {e.partition: e for e in asyncio.run(self.store.snapshot(self.group)).leases}

    def take(self, range, owner="n1"):
        (held,) = asyncio.run(self.store.acquire([self.leases()[range]], owner, 10.0))
        return held

    def process(self, range, count):
        """One batch by a new owner; at the end of a split range, its children get their leases."""
        held = self.take(range)
        batch = self.feed.read_batch(range, held.checkpoint, count)
        if batch.children:
            assert asyncio.run(self.store.split(held, batch.children))
        else:
            assert asyncio.run(self.store.checkpoint([replace(held, checkpoint=batch.next)]))
        return len(batch.events)

    def lag(self):
        estimate = self.estimator.lag()
        assert estimate.lag_events == sum(p.lag_events for p in estimate.partitions)
        return {p.partition: p.lag_events for p in estimate.partitions}

    def close(self):
        self.estimator.close()
        self.container.close()


range_of = range


@pytest.fixture(params=["latest", "all"])
def world(request, tmp_path):
    made = World(tmp_path, request.param)
    yield made
    made.close()


def test_a_container_is_a_feed_that_counts(world):
    assert isinstance(world.feed, CountsRemaining)


def test_changes_of_other_ranges_do_not_count(world):
    world.start()
    world.put("0", 3)
    world.put("1", 50)
    world.put("0", 2, first=3)
    assert world.lag() == {"0": 5, "1": 50}
    assert world.process("0", 4) == 4
    assert world.lag() == {"0": 1, "1": 50}
    world.put("1", 7, first=50)
    assert world.process("0", 9) == 1
    assert world.lag() == {"0": 0, "1": 57}


def test_a_unit_that_never_ran_lags_by_everything_there_is(world):
    world.put("0", 4)
    world.put("1", 6)
    world.clock.now += 7
    estimate = world.estimator.lag()
    assert not estimate.started
    assert (estimate.lag_events, estimate.lag_s) == (10, 7.0)


def test_a_unit_that_began_now_does_not_lag(world):
    world.put("0", 4)
    world.start("now")
    estimate = world.estimator.lag()
    assert (estimate.started, estimate.lag_events, estimate.lag_s) == (True, 0, 0.0)


def test_seconds_are_the_age_of_the_oldest_change_that_remains_and_the_owner_is_named(world):
    world.start()
    world.put("0", 2)
    world.clock.now += 5
    world.put("0", 3, first=2)
    world.clock.now += 2
    world.process("0", 2)
    zero, one = world.estimator.lag().partitions
    assert (zero.lag_events, zero.lag_s, zero.owner, zero.owner_live) == (3, 2.0, "n1", True)
    assert (one.lag_events, one.lag_s, one.owner) == (0, 0.0, None)


def test_an_updated_document_counts_once_in_newest_states_and_twice_in_all_versions(world):
    world.start()
    world.put("0", 3)
    world.put("0", 1)
    assert world.lag()["0"] == {"latest": 3, "all": 4}[world.mode]


def test_a_position_whose_document_has_moved_on_has_lost_nothing(world):
    """The first change of the range now has a higher LSN than the checkpoint: that is a gap."""
    world.start()
    world.put("0", 1)
    world.put("1", 5)
    world.put("0", 1)
    estimate = world.estimator.lag()
    assert [p.astray for p in estimate.partitions] == [None, None]
    assert [p.lost_events for p in estimate.partitions] == [0, 0]


def test_rates_are_in_changes_of_the_range(world):
    world.start()
    world.put("0", 100)
    world.estimator.lag()
    world.clock.now += 10
    world.put("1", 500)
    world.put("0", 20, first=100)
    world.process("0", 40)
    zero, one = world.estimator.lag().partitions
    assert (zero.processed_per_s, zero.incoming_per_s, zero.catch_up_s) == (4.0, 2.0, 40.0)
    assert (one.processed_per_s, one.incoming_per_s, one.catch_up_s) == (0.0, 50.0, None)


def test_a_range_with_changes_that_does_not_advance_is_stuck_and_a_quiet_one_not(world):
    world.start()
    world.put("0", 5)
    world.estimator.lag()
    world.clock.now += 31
    world.put("0", 5, first=5)
    assert world.estimator.lag().stuck == ("0",)


def test_a_split_range_counts_until_it_is_read_to_its_end_and_nothing_counts_twice(world):
    world.start()
    world.put("0", 10)
    world.process("0", 4)
    left, right = world.container.split("0")
    assert world.lag() == {"0": 6, "1": 0, left: 0, right: 0}
    world.put("0", 8, first=10)
    lag = world.lag()
    assert (lag["0"], lag[left] + lag[right], lag["1"]) == (6, 8, 0)
    world.process("0", 6)
    assert world.lag() == {**lag, "0": 0}
    world.process("0", 6)
    assert world.lag() == {range: lag[range] for range in ("1", left, right)}


def test_children_that_split_again_before_the_parent_is_read_count_what_is_theirs(world):
    world.start()
    world.put("0", 10)
    left, right = world.container.split("0")
    world.put("0", 20, first=10)
    grandchildren = world.container.split(left)
    world.put("0", 20, first=30)
    lag = world.lag()
    assert lag.keys() == {"0", "1", right, *grandchildren}
    assert (lag["0"], sum(lag.values())) == (10, 50)
    world.process("0", 10)
    world.process("0", 10)
    lag = world.lag()
    assert lag.keys() == {"1", left, right, *grandchildren}
    assert sum(lag.values()) == 40


def test_a_unit_that_never_ran_counts_a_split_range_once(world):
    world.put("0", 10)
    left, right = world.container.split("0")
    lag = world.lag()
    assert lag.keys() == {"1", left, right}
    assert sum(lag.values()) == 10


def test_a_container_made_anew_counts_as_unprocessed(world):
    world.start()
    world.put("0", 5)
    world.process("0", 5)
    world.container.close()
    for file in world.path.parent.glob("alerts.db*"):
        file.unlink()
    world.container = world.make_container()
    world.feed = world.container.feed(world.mode)
    world.estimator = world.watch()
    world.put("0", 20)
    zero = world.estimator.lag().partitions[0]
    assert (zero.astray, zero.lag_events, zero.lag_s) == ("other feed", 20, 0.0)


def test_versions_that_retention_removed_are_lost_and_nobody_knows_how_many(tmp_path):
    world = World(tmp_path, "all")
    world.start()
    world.put("0", 10)
    world.put("1", 10)
    world.process("1", 10)
    world.clock.now += 100
    world.put("0", 3, first=10)
    world.container.trim(max_age_s=50)
    zero, one = world.estimator.lag().partitions
    assert (zero.astray, zero.lost_events, zero.lag_events, zero.lag_s) == ("retention", None, 3, 0)
    assert (one.astray, one.lost_events, one.lag_events) == (None, 0, 0)
    world.close()


def test_a_look_costs_one_request_to_the_store_and_few_to_the_feed(world):
    world.start()
    world.put("0", 3)
    world.feed.requests.clear()
    world.store.requests.clear()
    for _ in range_of(3):
        world.clock.now += 1
        world.estimator.lag()
    assert world.store.requests == {"snapshot": 3}
    assert world.feed.requests == {
        "partitions": 3,
        "extents": 3,
        "event_times": 3,
        "remaining": 5,  # the first look has nothing to compare with
    }


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "process", "split"]), st.integers(0, 9)), max_size=25
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(steps=STEPS, mode=st.sampled_from(["latest", "all"]))
def test_what_remains_is_what_will_be_delivered_whatever_was_split(steps, mode, tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"), mode)
    world.start()
    for what, n in steps:
        if what == "put":
            world.container.upsert({"id": f"a{n}", "home": f"H{n}"})
        elif what == "split":
            leaves = result_of(world.feed.partitions())
            world.container.split(leaves[n % len(leaves)].id)
        else:
            held = sorted(world.leases())
            world.process(held[n % len(held)], 2)
    said, delivered = sum(world.lag().values()), 0
    while pending := world.leases().keys() - {
        leaf.id for leaf in result_of(world.feed.partitions())
    }:
        delivered += sum(world.process(range, 50) for range in pending)
    delivered += sum(world.process(range, 50) for range in world.leases())
    assert said == delivered
    assert sum(world.lag().values()) == 0
    world.close()
