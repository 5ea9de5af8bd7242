"""A whole group in one process on virtual time, from one seed.

Instances are the production ``Host`` and ``Pump`` over the production memory store. They join,
leave, crash, pause and wake as zombies, have wrong clocks and clumsy handlers; the store fails and
loses answers; partitions are added and split. Invariants are checked all the way; a failure names
the seed, and the same seed gives the same run again, step by step.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from leasehold.core.balance import leasable, spread
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Group, Lease
from leasehold.core.retry import Retry
from leasehold.ports import LeaseStore
from leasehold.processor.handlers import Outcome, Stop
from leasehold.processor.host import Host, Settings
from leasehold.processor.pump import Hold, Pace, Pump
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sabotage import Sabotage, Stayer, altered
from leasehold.testing.sim_time import SimClock, run_virtual
from leasehold.testing.sim_world import SimFeed, WatchedStore

GROUP = Group(namespace="sim", feed="feed", name="group")
SLACK_S = 1.5
"""Requests and handlers take a moment; bounds in intervals allow for that much on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimReport:
    seed: int
    violation: str | None
    virtual_s: float
    steps: int
    faults: Counter[str]
    moves: int
    events: int
    redelivered: int
    trace: Sequence[str]


def simulate(
    seed: int, *, chaos_s: float = 90.0, sabotage: Sabotage = Sabotage.NONE, trace: bool = False
) -> SimReport:
    return run_virtual(_run(seed, chaos_s, sabotage, trace))


async def _run(seed: int, chaos_s: float, sabotage: Sabotage, trace: bool) -> SimReport:
    sim = Simulation(seed, sabotage=sabotage, trace=trace)
    violation = await sim.run(chaos_s)
    return SimReport(
        seed=seed,
        violation=violation,
        virtual_s=sim.clock.monotonic(),
        steps=sim.handler_calls + sum(sim.store.requests.values()),
        faults=sim.faults,
        moves=sim.store.moves,
        events=sum(sim.feed.end[p] - sim.feed.first[p] for p in sim.feed.end),
        redelivered=sim.store.redelivered,
        trace=sim.trace,
    )


@dataclass(slots=True, eq=False)
class Instance:
    name: str
    clock: SimClock
    network: Faults
    host: Host = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    started_at: float = 0.0
    troubled_at: float = -inf
    """When something last went wrong for it."""
    woken_at: float = -inf
    crashed: bool = False
    leaving: bool = False
    stubborn: bool = False
    """Its handlers do not come back for a while, so it cannot let go."""

    @property
    def healthy_since(self) -> float:
        return max(self.started_at, self.troubled_at)

    @property
    def running(self) -> bool:
        return not self.crashed and not self.clock.paused and not self.task.done()

    @property
    def usable(self) -> bool:
        return self.running and not self.leaving


class Simulation:
    def __init__(
        self,
        seed: int,
        *,
        sabotage: Sabotage = Sabotage.NONE,
        trace: bool = False,
        partitions: int | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.clock = SimClock()
        self.feed = SimFeed(partitions or self.chance.choice([1, 4, 8, 16]))
        self.store = WatchedStore(
            self.clock,
            self.feed,
            may_rob=self._may_be_robbed,
            fenced=sabotage is not Sabotage.NO_FENCING,
        )
        self.instances: list[Instance] = []
        self.settings = Settings(request_timeout_s=2.0, shed_timeout_s=20.0, drain_timeout_s=30.0)
        self.faults: Counter[str] = Counter()
        self.handler_calls = 0
        self.trace: list[str] = []
        self._tracing, self._sabotage = trace, sabotage
        self._names = 0
        self._disturbed_at = 0.0
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, chaos_s: float) -> str | None:
        """Chaos, then calm. The first invariant that breaks, or None."""
        for _ in range(self.chance.randint(1, 4)):
            self.start()
        self._spawn(self._produce(chaos_s))
        while self.clock.monotonic() < chaos_s and not self.store.violations:
            self._disturb()
            await self.watch(self.chance.uniform(0.5, 5.0))
        await self._calm_down()
        return await self._settle()

    # Instances

    def start(self, name: str | None = None) -> Instance:
        if name is None:
            self._names += 1
            name = f"i{self._names}"
        clock = SimClock(wall_off_s=self.chance.uniform(-7200, 7200))
        network = Faults(delay_s=0.05)
        instance = Instance(name, clock, network, started_at=self.clock.monotonic())
        store = FaultyStore(
            altered(self.store, self._sabotage, clock),
            network,
            self.chance,
            clock,
            lambda kind: self._fault(instance, kind),
        )
        instance.host = Host(
            feed=self.feed,
            group=GROUP.name,
            store=store,
            instance=name,
            incarnation=f"{name}-{self.chance.random()}",
            start_worker=lambda hold: self._start_pump(instance, hold, store),
            clock=clock,
            report=lambda what, error: self.note(f"{name}: {what}: {error}"),
            settings=replace(self.settings, shed_timeout_s=0.001)
            if self._sabotage is Sabotage.STEALING
            else self.settings,
        )
        instance.task = asyncio.ensure_future(instance.host.run())
        self.instances.append(instance)
        self._disturbance(f"{name} starts, its clock {clock.wall_off_s:+.0f} s off")
        return instance

    def _start_pump(self, instance: Instance, hold: Hold, store: LeaseStore) -> Pump:
        lease = hold.lease
        self.note(
            f"{instance.name} has {lease.partition}, epoch {lease.epoch}, "
            f"from {lease.checkpoint.next_sequence}"
        )
        kind = Stayer if self._sabotage is Sabotage.STEALING else Pump
        return kind(
            hold,
            feed=self.feed,
            store=store,
            work=_Work(self, instance, hold),
            clock=instance.clock,
            report=lambda what, error: self.note(f"{instance.name}: {what}: {error}"),
            pace=Pace(max_events=20, request_timeout_s=2.0, retry_max_s=2.0),
            retry=Retry(backoff_s=0.5, backoff_max_s=2.0),
            chance=self.chance.random,
        )

    async def handle(self, instance: Instance, lease: Lease, events: Sequence[int]) -> None:
        self.handler_calls += 1
        lives = [each for each in self.instances if each.name == instance.name]
        self.store.begin(instance.name, lease, self._awake() if lives[-1] is instance else {})
        await instance.clock.sleep(self.chance.uniform(0.01, 0.4))
        while instance.stubborn:
            await instance.clock.sleep(0.5)
        failed = self.chance.random() < 0.02
        self.store.finish(instance.name, lease, events, failed=failed)
        if failed:
            raise RuntimeError("the handler failed")

    def _awake(self) -> dict[str, float]:
        """Instances with no excuse for working on after they lost a lease, and since when: not
        asleep in the middle of it, not hung, not one that runs beside its own successor."""
        newest = {each.name: each for each in self.instances}
        alone = Counter(each.name for each in self.instances if not each.crashed)
        return {
            name: max(each.woken_at, each.started_at)
            for name, each in newest.items()
            if each.running and not each.stubborn and alone[name] == 1
        }

    def _may_be_robbed(self, name: str) -> bool:
        """Overruling is right only for an owner that could not let go in all that time, or that has
        left; an earlier life of its name that crashed is no owner any more."""
        lately = self.clock.monotonic() - self.settings.shed_timeout_s
        lives = [
            each
            for each in self.instances
            if each.name == name and not each.crashed and not each.task.done()
        ]
        return not lives or any(each.stubborn or each.troubled_at > lately for each in lives)

    # Disturbances

    def _disturb(self) -> None:
        usable = [each for each in self.instances if each.usable]
        kinds: list[tuple[int, Callable[[], Any]]] = [
            (1, self._outage),
            (1, self._add_partition),
            (1, self._split),
        ]
        if len(usable) < 8:
            kinds.append((4, self.start))
        if usable:
            one = self.chance.choice(usable)
            kinds.append((3, lambda: self._spawn(self._bad_network(one))))
            kinds.append((1, lambda: self._spawn(self._stubborn(one))))
        if len(usable) > 1:
            kinds += [
                (2, lambda: self.leave(one)),
                (2, lambda: self._crash(one)),
                (3, lambda: self._spawn(self._pause(one))),
                (1, lambda: self.start(one.name)),
            ]
        if gone := [each.name for each in self.instances if each.crashed]:
            kinds.append((1, lambda: self.start(self.chance.choice(gone))))
        weights = [weight for weight, _ in kinds]
        self.chance.choices([do for _, do in kinds], weights)[0]()

    def leave(self, instance: Instance) -> None:
        self._disturbance(f"{instance.name} is asked to stop")
        instance.leaving = True
        instance.host.stop()

    def _crash(self, instance: Instance) -> None:
        self._fault(instance, "crash")
        self._disturbance(f"{instance.name} crashes")
        instance.crashed = True
        instance.clock.pause()

    async def _pause(self, instance: Instance) -> None:
        self._fault(instance, "pause")
        self._disturbance(f"{instance.name} is paused")
        instance.clock.pause()
        await asyncio.sleep(self.chance.uniform(1, 30))
        self._wake(instance)

    def _wake(self, instance: Instance) -> None:
        if not instance.crashed and instance.clock.paused:
            self._disturbance(f"{instance.name} wakes up")
            instance.troubled_at = instance.woken_at = self.clock.monotonic()
            instance.clock.resume()

    async def _bad_network(self, instance: Instance) -> None:
        self._disturbance(f"{instance.name} has a bad network")
        network = instance.network
        network.fail_before, network.fail_after, network.stall = 0.2, 0.2, 0.05
        await asyncio.sleep(self.chance.uniform(3, 12))
        network.fail_before = network.fail_after = network.stall = 0.0
        self._disturbance(f"{instance.name} has a good network again")

    def _outage(self) -> None:
        self._disturbance("the store is down")
        for instance in self.instances:
            instance.network.outage = True
        self._spawn(self._end_outage(self.chance.uniform(1, 15)))

    async def _end_outage(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._disturbance("the store is up")
        for instance in self.instances:
            instance.network.outage = False

    async def _stubborn(self, instance: Instance) -> None:
        self._fault(instance, "hung handler")
        self._disturbance(f"{instance.name} does not let go")
        instance.stubborn = True
        await asyncio.sleep(self.chance.uniform(5, 40))
        self._disturbance(f"{instance.name} lets go again")
        instance.stubborn = False
        instance.troubled_at = instance.woken_at = self.clock.monotonic()

    def _add_partition(self) -> None:
        if len(self.feed.leaves()) < 32:
            self._disturbance(f"partition {self.feed.add()} appears")

    def _split(self) -> None:
        # Here a child does not repeat its parent's events, so the group must know the parent.
        leased = {lease.partition for lease in self.store.look(GROUP).leases}
        leaves = [leaf for leaf in self.feed.leaves() if leaf in leased]
        if leaves and len(self.feed.leaves()) < 32:
            leaf = self.chance.choice(leaves)
            self.feed.split(leaf)
            self._disturbance(f"partition {leaf} splits")

    async def _produce(self, until_s: float) -> None:
        while self.clock.monotonic() < until_s:
            await asyncio.sleep(self.chance.uniform(0.2, 2.0))
            for leaf in self.feed.leaves():
                if self.chance.random() < 0.5:
                    self.feed.append(leaf, self.chance.randint(1, 15))

    # Watching

    async def watch(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end and not self.store.violations:
            await asyncio.sleep(0.25)
            await self._check_owned()

    async def _check_owned(self) -> None:
        """No partition without a working owner for long, while a healthy instance lives."""
        now, bound = self.clock.monotonic(), self.settings.lease_ttl_s
        bound += 2 * self.settings.balance_interval_s + SLACK_S
        for lease in leasable(self.store.look(GROUP), await self.feed.partitions()):
            if self._works(lease):
                self.store.unowned_since.pop(lease.partition, None)
                continue
            since = self.store.unowned_since.setdefault(lease.partition, now)
            for each in self.instances:
                if each.usable and now - max(since, each.healthy_since) > bound:
                    self.store.violations.append(
                        f"nobody works on {lease.partition} since {since:.1f} s "
                        f"(owner {lease.owner}), although {each.name} is healthy"
                    )

    def _works(self, lease: Lease) -> bool:
        """Whether its owner is running and knows that it has the lease, or has an excuse."""
        for each in self.instances:
            if each.name == lease.owner and each.running and lease.live:
                worker = each.host.workers.get(lease.partition)
                if worker is not None and worker.hold.lease.epoch == lease.epoch:
                    return True
                if self.clock.monotonic() - each.healthy_since < self.settings.lease_ttl_s:
                    return True
        return False

    async def _calm_down(self) -> None:
        for task in tuple(self._background):
            task.cancel()
        for instance in self.instances:
            if instance.stubborn:
                instance.stubborn = False
                instance.troubled_at = instance.woken_at = self.clock.monotonic()
            instance.network.outage = False
            instance.network.fail_before = instance.network.fail_after = 0.0
            instance.network.stall = 0.0
            self._wake(instance)
        if not any(each.usable for each in self.instances):
            self.start()
        self._disturbance("all is calm")

    async def _settle(self) -> str | None:
        """After calm: everything handled, evened out within two intervals, then no move at all."""
        timing, store = self.settings, self.store
        noticed = self.clock.monotonic() + timing.lease_ttl_s
        deadline = self.clock.monotonic() + 300
        quiet_since = moves = None
        while not store.violations:
            await self.watch(0.5)
            now = self.clock.monotonic()
            calm_since = max(noticed, store.replaced_at)
            if now > calm_since + 2 * timing.balance_interval_s + SLACK_S and not self._unhandled():
                snapshot, known = self.store.look(GROUP), await self.feed.partitions()
                if quiet_since is None:
                    quiet_since, moves = now, store.moves
                    uneven = spread(snapshot, known)
                    idle = [lease.partition for lease in snapshot.leases if not lease.live]
                    if uneven > 1 or idle:
                        store.violations.append(
                            f"uneven by {uneven}, unowned {idle}, two intervals after calm"
                        )
                elif store.moves != moves:
                    store.violations.append("a lease moved although all was calm and even")
                elif now > quiet_since + 10 * timing.balance_interval_s:
                    return None
            elif now > deadline:
                store.violations.append(f"not all events were handled: {self._unhandled()}")
        self.note(f"VIOLATION: {store.violations[0]}")
        return store.violations[0]

    def _unhandled(self) -> dict[str, int]:
        feed, handled = self.feed, self.store.handled
        return {
            p: missed for p in feed.end if (missed := feed.end[p] - feed.first[p] - len(handled[p]))
        }

    def _fault(self, instance: Instance, kind: str) -> None:
        self.faults[kind] += 1
        instance.troubled_at = self.clock.monotonic()
        self.note(f"{instance.name}: {kind}")

    def _disturbance(self, text: str) -> None:
        self._disturbed_at = self.clock.monotonic()
        self.note(text)

    def note(self, text: str) -> None:
        if self._tracing:
            self.trace.append(f"{self.clock.monotonic():9.3f}  {text}")

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class _Work:
    """A handler that takes a moment, fails now and then, and tells the watching store."""

    one_by_one, interruptible = False, True

    def __init__(self, sim: Simulation, instance: Instance, hold: Hold) -> None:
        self._sim, self._instance, self._hold = sim, instance, hold

    async def open(self) -> None:
        pass

    async def handle(self, events: Sequence[int], stop: Stop) -> Outcome:
        try:
            await self._sim.handle(self._instance, self._hold.lease, events)
        except RuntimeError as error:
            return Outcome(done=0, error=error)
        return Outcome(done=len(events))

    async def failed(self, error: BaseException) -> None:
        self._sim.note(f"{self._instance.name}: handling {self._hold.lease.partition}: {error}")

    async def bury(self, event: int, error: str, attempts: int) -> None:
        raise AssertionError("nothing is dead-lettered here")

    def give_up(self, error: BaseException) -> None:
        raise AssertionError("nobody gives up here")

    async def close(self, reason: Reason) -> None:
        pass
