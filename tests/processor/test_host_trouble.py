"""What a bad record, an outage, a step of the store's clock or a stop that takes too long costs."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest
from support.host_world import GROUP, INTERVAL_S, Work, World

from leasehold.errors import StoreUnavailable
from leasehold.ports import Renewed
from leasehold.processor.renewals import LEASES_MAX
from leasehold.settings import Timing
from leasehold.stores.memory import MemoryStore
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sim_time import SimClock, run_virtual
from leasehold.testing.sim_world import SimFeed

TTL_S = Timing().lease_ttl_s
LOCKED = StoreUnavailable("somebody keeps it locked")


class PartlyBad(MemoryStore):
    """Some records cannot be reached; the others can."""

    bad: frozenset[str] = frozenset()

    async def renew(self, leases):
        answer = await super().renew([x for x in leases if x.partition not in self.bad])
        return replace(answer, unknown=dict.fromkeys(self._bad(leases), LOCKED))

    async def acquire(self, leases, owner, ttl_s):
        good = [x for x in leases if x.partition not in self.bad]
        if leases and not good:
            raise LOCKED
        return await super().acquire(good, owner, ttl_s)

    async def checkpoint(self, leases):
        if self._bad(leases):
            raise LOCKED
        return await super().checkpoint(leases)

    def _bad(self, leases):
        return [lease.partition for lease in leases if lease.partition in self.bad]


class SlowRecords(MemoryStore):
    """As in blob storage: each record takes a request of 100 ms, and 32 are under way at once."""

    def __init__(self, clock):
        super().__init__(clock)
        self._slots = asyncio.Semaphore(32)

    async def renew(self, leases):
        renew = super().renew
        answers = await asyncio.gather(*(self._one(renew, [x]) for x in leases))
        return Renewed(kept=tuple(lease for answer in answers for lease in answer.kept))

    async def acquire(self, leases, owner, ttl_s):
        take = super().acquire
        await asyncio.gather(*(self._one(self.groups) for _ in leases))  # its second record
        answers = await asyncio.gather(*(self._one(take, [x], owner, ttl_s) for x in leases))
        return [lease for answer in answers for lease in answer]

    async def _one(self, verb, *given):
        async with self._slots:
            await asyncio.sleep(0.1)
            return await verb(*given)


class Idle:
    """Holds a lease and does nothing with it."""

    offered_to = None

    def __init__(self, hold):
        self.hold = hold

    async def run(self):
        await asyncio.Event().wait()

    def wake(self):
        pass

    def let_go(self, offered_to, reason):
        self.offered_to = offered_to


class SteppedClock(SimClock):
    """The store's clock, which somebody sets."""

    off_s = 0.0

    def monotonic(self):
        return super().monotonic() + self.off_s


def twice(world):
    """Events that were handled more than once."""
    seen = Counter((partition, event) for partition, event, _ in world.handled)
    return [event for event, times in seen.items() if times > 1]


async def produce(world, seconds):
    """One event per partition and second."""
    for _ in range(round(seconds)):
        await asyncio.sleep(1)
        for partition in world.feed.leaves():
            world.feed.append(partition, 1)


def test_one_record_without_an_answer_costs_no_other_partition_anything():
    async def main():
        world = World(partitions=40)
        world.store = PartlyBad(world.clock)
        host = world.start("a")
        await asyncio.sleep(5)
        world.store.bad = frozenset({"07"})
        await produce(world, 5 * TTL_S)
        late = {p for p in world.feed.leaves() if not [1 for q, e, _ in world.handled if q == p]}
        behind = {
            p: count
            for p in world.feed.leaves()
            if (count := world.feed.end[p] - len([1 for q, _, _ in world.handled if q == p])) > 2
        }
        assert set(behind) == {"07"}, late
        said = [str(error) for what, error in world.reports if what.startswith("renewing")]
        assert said == ["somebody keeps it locked"], "once, not at every try"
        world.store.bad = frozenset()
        await asyncio.sleep(INTERVAL_S + 2)
        assert len([1 for p, _, _ in world.handled if p == "07"]) == world.feed.end["07"]
        assert twice(world) == []
        assert host.moves == 40
        await world.stop(host)

    run_virtual(main())


def test_a_record_that_its_owner_cannot_renew_is_taken_by_a_peer_once_it_can_be_written_again():
    async def main():
        world = World(partitions=8)
        world.store = PartlyBad(world.clock)
        a, b = world.start("a"), world.start("b")
        await asyncio.sleep(10)
        (first, *_) = (p for p, owner in world.owners().items() if owner == "a")
        shut_out = world.store.renew

        async def renew(leases):  # nobody but the peer gets at it
            answer = await shut_out([x for x in leases if x.partition != first])
            return replace(answer, unknown=answer.unknown | {first: LOCKED})

        world.store.bad, world.store.renew = frozenset({first}), renew
        await produce(world, 16)
        assert world.owners()[first] == "a"
        world.store.bad = frozenset()
        await asyncio.sleep(INTERVAL_S)
        assert world.owners()[first] == "b"
        for host in (a, b):
            await world.stop(host)

    run_virtual(main())


def test_1000_partitions_at_100_ms_a_request_stay_fresh():
    async def main():
        world = World(partitions=1000)
        world.store = SlowRecords(world.clock)
        host = world.start("a", start_worker=Idle)
        await asyncio.sleep(15)
        stale = set()
        for _ in range(200):
            await asyncio.sleep(0.1)
            now = world.clock.monotonic()
            stale |= {p for p, worker in host.workers.items() if now >= worker.hold.until}
        assert len(host.workers) == 1000
        assert stale == set()
        assert world.reports == []
        host.abandon()
        world.tasks[host].cancel()

    run_virtual(main())


def test_what_was_taken_stays_fresh_while_many_more_are_taken():
    async def main():
        world = World(partitions=1500)
        world.store = SlowRecords(world.clock)
        host = world.start("a", start_worker=Idle)
        stale = set()
        for _ in range(200):
            await asyncio.sleep(0.1)
            now = world.clock.monotonic()
            stale |= {p for p, worker in host.workers.items() if now >= worker.hold.until}
        assert len(host.workers) == 1500
        assert stale == set()
        host.abandon()
        world.tasks[host].cancel()

    run_virtual(main())


@pytest.mark.parametrize("outage_s", [5, 9, 30, 600])
def test_after_an_outage_everybody_goes_on_with_what_they_had(outage_s):
    async def main():
        world, faults = World(partitions=32), Faults()
        hosts = []
        for name in "abcd":
            shaky = FaultyStore(world.store, faults, random.Random(name), world.clock)
            hosts.append(world.start(name, store=shaky))
        await produce(world, 10)
        before, moves = world.owners(), sum(host.moves for host in hosts)
        assert sorted(Counter(before.values()).values()) == [8, 8, 8, 8]
        faults.outage = True
        await produce(world, outage_s)
        faults.outage = False
        await asyncio.sleep(3)
        assert world.owners() == before
        assert sum(host.moves for host in hosts) == moves
        assert twice(world) == []
        handled = Counter(partition for partition, _, _ in world.handled)
        assert handled == world.feed.end, "all have caught up"
        await asyncio.sleep(TTL_S + INTERVAL_S)
        assert world.owners() == before
        for host in hosts:
            await world.stop(host)

    run_virtual(main())


def test_who_starts_while_the_store_is_down_robs_nobody_when_it_is_back():
    async def main():
        world, faults = World(partitions=8), Faults()
        for name in "ab":
            shaky = FaultyStore(world.store, faults, random.Random(1), world.clock)
            world.start(name, store=shaky)
        await asyncio.sleep(20)
        faults.outage = True
        await asyncio.sleep(60)
        late = world.start(
            "c", store=FaultyStore(world.store, faults, random.Random(2), world.clock)
        )
        await asyncio.sleep(0.05)
        faults.outage = False
        world.start("d")
        await asyncio.sleep(2 * TTL_S)
        assert sorted(Counter(world.owners().values()).values()) == [2, 2, 2, 2]
        epochs = [lease.epoch for lease in world.store._snapshot(GROUP).leases]
        assert sorted(epochs) == [1, 1, 1, 1, 2, 2, 2, 2], "what had to move moved once"
        assert len(late.workers) == 2

    run_virtual(main())


def test_after_a_long_night_what_is_long_dead_is_taken_at_once():
    async def main():
        world = World(partitions=8)
        for name in "ab":
            dead = world.start(name)
        await asyncio.sleep(10)
        for host, task in world.tasks.items():
            host.abandon()
            task.cancel()
        await asyncio.sleep(8 * 3600)
        early = world.start("c")
        await asyncio.sleep(0.5 * INTERVAL_S)
        assert set(early.workers) == set(world.feed.leaves())
        assert dead is not early
        await world.stop(early)

    run_virtual(main())


@pytest.mark.parametrize("step_s", [30, -30, 86400])
def test_a_step_of_the_stores_clock_moves_nothing(step_s):
    async def main(moment_s):
        world, clock = World(partitions=16), SteppedClock()
        world.store = MemoryStore(clock)
        hosts = [world.start(name) for name in "abcd"]
        await produce(world, 10)
        before, moves = world.owners(), sum(host.moves for host in hosts)
        await asyncio.sleep(moment_s)
        clock.off_s += step_s
        await produce(world, TTL_S + INTERVAL_S)
        assert world.owners() == before
        assert sum(host.moves for host in hosts) == moves
        assert twice(world) == []
        for host in hosts:
            await world.stop(host)

    for tenths in (0, 11, 22):
        run_virtual(main(tenths / 10))


@pytest.mark.parametrize("step_s", [30, -30])
def test_a_dead_owner_is_noticed_in_time_although_the_clock_was_set(step_s):
    async def main():
        world, clock = World(partitions=4), SteppedClock()
        world.store = MemoryStore(clock)
        dead, alive = world.start("a"), world.start("b")
        await asyncio.sleep(10)
        world.tasks[dead].cancel()
        dead.abandon()
        await asyncio.sleep(2)
        clock.off_s += step_s
        await asyncio.sleep(TTL_S + INTERVAL_S - 2)
        assert set(alive.workers) == set(world.feed.leaves())
        await world.stop(alive)

    run_virtual(main())


def test_who_leaves_with_a_lease_in_hand_is_no_member_any_more():
    """Or the others would shed to it what must come back when that lease has expired."""

    async def main():
        world = World(partitions=32, settings=Timing(drain_timeout_s=5))
        hosts = {name: world.start(name) for name in "abcd"}
        await asyncio.sleep(20)
        moves = sum(host.moves for host in hosts.values())
        stuck = next(p for p, owner in world.owners().items() if owner == "a")
        world.hold_up.clear()
        world.feed.append(stuck, 1)
        await asyncio.sleep(1)
        await world.stop(hosts["a"])
        assert world.owners()[stuck] == "a", "its lease is live"
        world.hold_up.set()
        await asyncio.sleep(3 * TTL_S)
        assert sum(host.moves for host in hosts.values()) - moves == 8
        assert sorted(Counter(world.owners().values()).values()) == [10, 11, 11]
        for name in "bcd":
            await world.stop(hosts[name])

    run_virtual(main())


def test_a_heartbeat_that_fails_does_not_keep_leases_from_being_renewed():
    async def main():
        world = World(partitions=4)
        host = world.start("a")
        await asyncio.sleep(5)

        async def refuse(group, member):
            raise LOCKED

        world.store.heartbeat = refuse
        await asyncio.sleep(3 * TTL_S)
        now = world.clock.monotonic()
        assert all(now < worker.hold.until for worker in host.workers.values())
        host.abandon()
        world.tasks[host].cancel()

    run_virtual(main())


class SlowFeed(SimFeed):
    """One that takes its time to say what partitions it has."""

    takes_s = 0.0

    async def partitions(self):
        await asyncio.sleep(self.takes_s)
        return await super().partitions()


def test_a_dead_owner_is_noticed_although_the_feed_is_slow():
    async def main():
        world = World(partitions=4, settings=Timing(lease_ttl_s=6, request_timeout_s=10))
        world.feed = SlowFeed(4)
        dead, alive = world.start("a"), world.start("b")
        await asyncio.sleep(20)
        world.feed.takes_s = 8
        await asyncio.sleep(20)
        world.tasks[dead].cancel()
        dead.abandon()
        await asyncio.sleep(2 * 8 + 6)
        assert set(alive.workers) == set(world.feed.leaves())
        await world.stop(alive)

    run_virtual(main())


def test_a_feed_that_is_slow_costs_no_lease():
    async def main():
        world = World(partitions=4, settings=Timing(request_timeout_s=60))
        world.feed = SlowFeed(4)
        hosts = [world.start(name) for name in "ab"]
        await asyncio.sleep(20)
        world.feed.takes_s = 40
        before, stale = world.owners(), set()
        for _ in range(1200):
            await asyncio.sleep(0.1)
            now, workers = world.clock.monotonic(), [x for h in hosts for x in h.workers.items()]
            stale |= {p for p, worker in workers if now >= worker.hold.until}
        assert (world.owners(), stale) == (before, set())
        for host in hosts:
            await world.stop(host)

    run_virtual(main())


class AllOrNone(MemoryStore):
    """One that answers for all leases of a request or for none, or not at all."""

    bad: frozenset[str] = frozenset()
    hangs = False
    mates: frozenset[str] = frozenset()
    """What was ever asked for together with a bad one."""

    async def renew(self, leases):
        asked = frozenset(lease.partition for lease in leases)
        if asked & self.bad:
            self.mates |= asked
            if self.hangs:
                await asyncio.sleep(3600)
            raise LOCKED
        return await super().renew(leases)


async def watch_health(world, host, seconds):
    """How long each partition was stale, and which had expired, at any time."""
    stale_s, expired = Counter(), set()
    for _ in range(round(4 * seconds)):
        await asyncio.sleep(0.25)
        now = world.clock.monotonic()
        stale_s.update({p: 0.25 for p, each in host.workers.items() if now >= each.hold.until})
        expired |= {x.partition for x in world.store._snapshot(GROUP).leases if x.expired}
    return stale_s, expired


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("every", [1000, 128, 30, 4])
def test_a_record_that_fails_its_whole_request_is_found_and_costs_no_other(hangs, every):
    """A store that answers for all or for none, or later than the host waits for it."""

    async def main():
        world = World(partitions=1000)
        world.store = store = AllOrNone(world.clock)
        host = world.start("a", start_worker=Idle)
        await asyncio.sleep(15)
        store.hangs, store.bad = hangs, frozenset(sorted(host.workers)[::every])
        stale_s, expired = await watch_health(world, host, 3 * TTL_S)
        assert expired == store.bad
        timing = world.settings
        most_s = 1.5 * timing.balance_interval_s + timing.request_timeout_s
        for partition in host.workers.keys() - store.bad:
            allowed_s = hangs * (most_s - timing.fresh_s) if partition in store.mates else 0
            assert stale_s[partition] <= allowed_s + 1e-6, partition
        later = world.start("b", start_worker=Idle)
        await asyncio.sleep(TTL_S + 10)
        offers = Counter(worker.offered_to for worker in host.workers.values())
        assert offers["b"] >= 499, "nor is anything else held up"
        assert {what for what, _ in world.reports} == {
            f"renewing 1 of 1 leases of {GROUP}: {partition}" for partition in store.bad
        }
        for each in (host, later):
            each.abandon()
            world.tasks[each].cancel()

    run_virtual(main())


def test_in_an_outage_leases_are_not_renewed_one_by_one():
    async def main():
        world, faults, sizes = World(partitions=300), Faults(), Counter()
        renew = world.store.renew

        async def count(leases):
            sizes[len(leases)] += 1
            return await renew(leases)

        world.store.renew = count
        shaky = FaultyStore(world.store, faults, random.Random(1), world.clock)
        host = world.start("a", store=shaky, start_worker=Idle)
        await asyncio.sleep(15)
        faults.outage = True
        await asyncio.sleep(60)
        faults.outage = False
        await asyncio.sleep(15)
        assert set(sizes) == {LEASES_MAX, 300 - 2 * LEASES_MAX}
        host.abandon()
        world.tasks[host].cancel()

    run_virtual(main())


class Deaf:
    """A feed that gives no answer for some partitions, as one instance sees it."""

    def __init__(self, feed):
        self._feed, self.silent = feed, set()

    def __getattr__(self, name):
        return getattr(self._feed, name)

    async def read(self, partition, position, max_events):
        if partition in self.silent:
            await asyncio.Event().wait()
        return await self._feed.read(partition, position, max_events)


@pytest.mark.parametrize("deaf", ["a", "b"])
@pytest.mark.parametrize("which", [slice(0, 1), slice(-1, None), slice(None)])
def test_what_hangs_at_one_instance_is_taken_and_kept_by_another(deaf, which):
    """Wherever it comes in the order in which partitions are shared out."""

    async def main():
        world = World(partitions=8)
        feeds = {name: Deaf(world.feed) for name in "ab"}
        hosts = {name: world.start(name, feed=feeds[name]) for name in "ab"}
        await asyncio.sleep(20)
        hung = sorted(p for p, owner in world.owners().items() if owner == deaf)[which]
        feeds[deaf].silent |= set(hung)
        await produce(world, 120)
        moves, before = sum(host.moves for host in hosts.values()), len(world.handled)
        await produce(world, 120)
        behind = {
            p: count
            for p in world.feed.leaves()
            if (count := world.feed.end[p] - len([1 for q, _, _ in world.handled if q == p])) > 10
        }
        assert behind == {}
        assert len(world.handled) > before
        assert sum(host.moves for host in hosts.values()) - moves <= 2 * len(hung)
        assert twice(world) == []
        for host in hosts.values():
            await world.stop(host)

    run_virtual(main())


def test_who_gave_a_partition_up_does_not_rob_the_owner_that_keeps_it():
    """It has one too few and is meant to have it. Its owner, which offered it in vain, keeps it for
    longer than others wait for an owner that does not shed."""

    class Told(MemoryStore):
        robbed = ()

        async def acquire(self, leases, owner, ttl_s):
            before = {lease.partition: lease for lease in self._snapshot(GROUP).leases}
            won = await super().acquire(leases, owner, ttl_s)
            former = [before[lease.partition] for lease in won]
            self.robbed += tuple(x for x in former if x.live and x.owner != owner)
            return won

    async def main():
        world = World(partitions=8)
        world.store = Told(world.clock)
        feeds = {name: Deaf(world.feed) for name in "ab"}
        hosts = [world.start(name, feed=feeds[name]) for name in "ab"]
        await asyncio.sleep(20)
        hung = max(p for p, owner in world.owners().items() if owner == "b")
        feeds["b"].silent.add(hung)
        await produce(world, 120)
        feeds["b"].silent.clear()
        assert world.owners()[hung] == "a"
        await produce(world, 600)
        assert world.store.robbed == ()
        assert twice(world) == []
        assert world.owners()[hung] == "b", "in the end it has its share again"
        for host in hosts:
            await world.stop(host)

    run_virtual(main())


def test_what_was_given_up_stays_so_although_a_renewal_comes_behind_its_release():
    """The store no longer has it as ours, so it counts as lost: to be given up is not forgotten."""

    class TooSlow(MemoryStore):
        async def release(self, leases):
            await super().release(leases)
            await asyncio.sleep(Timing().request_timeout_s + 1)

    async def main():
        world = World(partitions=8)
        world.store = TooSlow(world.clock)
        feeds = {name: Deaf(world.feed) for name in "ab"}
        hosts = {name: world.start(name, feed=feeds[name]) for name in "ab"}
        await asyncio.sleep(20)
        hung = max(p for p, owner in world.owners().items() if owner == "b")
        feeds["b"].silent.add(hung)
        await produce(world, 120)
        assert hung in hosts["b"].offers.given_up(world.clock.monotonic())
        for host in hosts.values():
            await world.stop(host)

    run_virtual(main())


def test_a_stop_does_not_wait_for_start_positions_of_partitions_that_have_just_come():
    class Slow(SimFeed):
        slow = False

        async def locate(self, partition, start):
            if self.slow:
                await asyncio.sleep(4)
            return await super().locate(partition, start)

    async def main():
        world = World(partitions=8)
        world.feed = Slow(8)
        host = world.start("a")
        await asyncio.sleep(10)
        world.feed.slow = True
        for _ in range(1000):
            world.feed.add()
        await produce(world, 10)
        asked = world.clock.monotonic()
        await world.stop(host)
        most_s = INTERVAL_S + world.settings.request_timeout_s
        assert world.clock.monotonic() - asked <= most_s
        assert set(world.owners().values()) == {None}
        assert twice(world) == []

    run_virtual(main())


def test_what_hangs_everywhere_is_tried_again_by_everybody():
    async def main():
        world = World(partitions=2)
        feeds = {name: Deaf(world.feed) for name in "ab"}
        hosts = [world.start(name, feed=feeds[name]) for name in "ab"]
        await asyncio.sleep(20)
        for feed in feeds.values():
            feed.silent.add("00")
        await produce(world, 600)
        for feed in feeds.values():
            feed.silent.clear()
        await asyncio.sleep(120)
        assert len([1 for p, _, _ in world.handled if p == "00"]) == world.feed.end["00"]
        for host in hosts:
            await world.stop(host)

    run_virtual(main())


def test_an_instance_that_was_made_long_before_it_is_run_takes_what_is_dead_at_once():
    async def main():
        world = World(partitions=8)
        dead = world.start("a")
        late = world.host("b")
        await asyncio.sleep(10)
        dead.abandon()
        world.tasks[dead].cancel()
        await asyncio.sleep(3600)
        world.tasks[late] = asyncio.ensure_future(late.run())
        await asyncio.sleep(0.5 * INTERVAL_S)
        assert set(late.workers) == set(world.feed.leaves())
        await world.stop(late)

    run_virtual(main())


@pytest.mark.parametrize("callback", ["open", "close"])
def test_a_callback_that_never_comes_back_holds_up_its_own_partition_and_a_stop_for_a_while(
    callback,
):
    class Hanging(Work):
        async def hang(self, *given):
            if self.hold.lease.partition == "00":
                await asyncio.Event().wait()

    setattr(Hanging, callback, Hanging.hang)

    async def main():
        world = World(partitions=4, settings=Timing(drain_timeout_s=20))
        host = world.start("a", work=Hanging)
        await produce(world, 10)
        await asyncio.sleep(INTERVAL_S)
        done = Counter(partition for partition, _, _ in world.handled)
        others = {p: end for p, end in world.feed.end.items() if p != "00"}
        assert {p: done[p] for p in others} == others
        asked = world.clock.monotonic()
        await world.stop(host)
        settings = world.settings
        most_s = settings.drain_timeout_s + settings.balance_interval_s + settings.request_timeout_s
        assert world.clock.monotonic() - asked <= most_s
        stored = {x.partition: x for x in world.store._snapshot(GROUP).leases}
        assert {p: stored[p].checkpoint.next_sequence for p in others} == others
        assert {p for p, lease in stored.items() if lease.owner} == {"00"}

    run_virtual(main())
