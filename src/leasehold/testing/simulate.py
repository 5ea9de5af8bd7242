"""A whole group in one process on virtual time, from one seed.

Instances are the production ``Host`` and ``Pump`` over the production memory store. They join,
leave, crash, pause and wake as zombies, have wrong clocks and clumsy handlers that checkpoint late;
the store fails and loses answers, the feed gives none; partitions are added and split. Invariants
are checked all the way; a failure names the seed, and the same seed gives the same run again, step
by step.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from leasehold.core.balance import Assign, by_count
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Lease
from leasehold.ports import LeaseStore
from leasehold.processor.news import News
from leasehold.processor.offers import Offers
from leasehold.processor.pump import Pump
from leasehold.processor.work import Hold
from leasehold.settings import Every, Pace, Retry, Timing, every, manual
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sabotage import Sabotage, altered, host_kind, pump_kind, reassigned
from leasehold.testing.sim_excuses import SimExcuses
from leasehold.testing.sim_faults import Chaos
from leasehold.testing.sim_instance import Instance, InstanceFeed, SimWork
from leasehold.testing.sim_rules import SimRules
from leasehold.testing.sim_time import SimClock, run_virtual
from leasehold.testing.sim_user import SimUser
from leasehold.testing.sim_world import GROUP, MAX_EVENTS, SimFeed, WatchedStore

GIVEN_UP_S = 20.0
SHARED = frozenset({"outage", "suspended"})
"""What happens to all instances alike excuses nobody."""
HUNG = frozenset({"hung handler", "hung read"})
"""What keeps an instance from letting go, and not from renewing."""
PACE = Pace(max_events=MAX_EVENTS, request_timeout_s=2.0, read_timeout_s=3.0, retry_max_s=2.0)
POLICIES = (every(batches=1), every(events=60), every(seconds=4), manual())
"""Beside them, users write checkpoints of their own in every run."""


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


class Simulation:
    def __init__(
        self,
        seed: int,
        *,
        sabotage: Sabotage = Sabotage.NONE,
        trace: bool = False,
        partitions: int | None = None,
        assign: Assign = by_count,
    ) -> None:
        self.chance = random.Random(seed)
        self.clock = SimClock()
        self.feed = SimFeed(partitions or self.chance.choice([1, 4, 8, 16]))
        self.policy = self.chance.choice(POLICIES)
        self.excuses = SimExcuses(self)
        self.store = WatchedStore(
            self.clock,
            self.feed,
            explain_robbery=self.excuses.explain_robbery,
            fenced=sabotage is not Sabotage.NO_FENCING,
            by_hand=self.policy.manual,
            again_max=_again_max(self.policy),
        )
        self.instances: list[Instance] = []
        self.chaos, self._rules = Chaos(self), SimRules(self)
        self.settings = Timing(request_timeout_s=2.0, shed_timeout_s=20.0, drain_timeout_s=30.0)
        self.faults: Counter[str] = Counter()
        self.handler_calls = 0
        self.trace: list[str] = []
        self._tracing, self.sabotage, self._assign = trace, sabotage, assign
        self._names = 0
        self._stumbled: set[str] = set()
        """Partitions whose last handler call failed."""
        self._disturbed_at = 0.0
        self.produce_until = 0.0
        self._background: dict[asyncio.Task[None], None] = {}

    async def run(self, chaos_s: float) -> str | None:
        """Chaos, then calm. The first invariant that breaks, or None."""
        for _ in range(self.chance.randint(1, 4)):
            self.start()
        self.produce_until = chaos_s
        self.spawn(self.produce())
        while self.clock.monotonic() < chaos_s and not self.store.violations:
            self.chaos.disturb()
            await self.watch(self.chance.uniform(0.5, 5.0))
        await self._calm_down()
        await self._rules.settle()
        if not self.store.violations:
            return None
        self.note(f"VIOLATION: {self.store.violations[0]}")
        return self.store.violations[0]

    # Instances

    def start(self, name: str | None = None) -> Instance:
        if name is None:
            self._names += 1
            name = f"i{self._names}"
        clock = SimClock(wall_off_s=self.chance.uniform(-7200, 7200))
        network = Faults(delay_s=0.05, outage=self.chaos.down, silent=self.chaos.silent)
        instance = Instance(name, clock, network, started_at=self.clock.monotonic())
        instance.reads = InstanceFeed(self.feed, instance)
        instance.news = News(instance.reads, clock, PACE)  # as a processor's pumps share one
        store = FaultyStore(
            altered(self.store, self.sabotage, clock),
            network,
            self.chance,
            clock,
            lambda kind: self.fault(instance, kind),
        )
        instance.host = host_kind(self.sabotage)(
            feed=self.feed,
            group=GROUP.name,
            store=store,
            instance=name,
            incarnation=f"{name}-{self.chance.random()}",
            start_worker=lambda hold: self._start_pump(instance, hold, store),
            clock=clock,
            report=lambda what, error: self.note(f"{name}: {what}: {error}"),
            settings=replace(self.settings, shed_timeout_s=0.001)
            if self.sabotage is Sabotage.STEALING
            else self.settings,
            assign=reassigned if self.sabotage is Sabotage.RESTLESS else self._assign,
            weigh=instance.rates.weight,
        )
        instance.host.offers = Offers(0.0 if self.sabotage is Sabotage.CLINGING else GIVEN_UP_S)
        instance.task = asyncio.ensure_future(instance.host.run())
        instance.task.add_done_callback(lambda done: self._ended(instance))
        self.instances.append(instance)
        self.disturbance(f"{name} starts, its clock {clock.wall_off_s:+.0f} s off")
        return instance

    def _ended(self, instance: Instance) -> None:
        instance.ended_at = self.clock.monotonic()

    def _start_pump(self, instance: Instance, hold: Hold, store: LeaseStore) -> Pump:
        lease = hold.lease
        self.note(
            f"{instance.name} has {lease.partition}, epoch {lease.epoch}, "
            f"from {lease.checkpoint.next_sequence}"
        )
        instance.rates.begin(lease.partition, lease.weight)
        work = SimWork(self, instance, hold)
        pump = pump_kind(self.sabotage)(
            hold,
            feed=instance.reads,
            news=instance.news,
            store=store,
            work=work,
            clock=instance.clock,
            report=lambda what, error: self.note(f"{instance.name}: {what}: {error}"),
            pace=PACE,
            retry=Retry(attempts=2, then="dead-letter", backoff_s=0.5, backoff_max_s=2.0),
            policy=self.policy,
            chance=self.chance.random,
        )
        work.user = SimUser(pump, instance.clock, self.chance)
        let_go = pump.let_go

        def watched(offered_to: str | None, reason: Reason) -> None:
            if offered_to is not None and self.excuses.is_gone(offered_to):
                self.store.violations.append(
                    f"{instance.name} sheds {lease.partition} to {offered_to}, which has left"
                )
            if reason is Reason.HUNG and not self.excuses.hung_lately(instance):
                self.store.violations.append(
                    f"{instance.name} gives {lease.partition} up, although its reads are answered"
                )
            let_go(offered_to, reason)

        pump.let_go = watched  # type: ignore[method-assign]
        return pump

    async def handle(
        self, instance: Instance, lease: Lease, events: Sequence[int], user: SimUser
    ) -> None:
        self.handler_calls += 1
        lives = [each for each in self.instances if each.name == instance.name]
        latest = lives[-1] is instance and not self.excuses.misled(instance)
        self.store.begin(instance.name, lease, self.excuses.awake() if latest else {})
        failed = True
        try:
            await user.in_handler()
            await instance.clock.sleep(self.chance.uniform(0.01, 0.4))
            while instance.stubborn:
                await instance.clock.sleep(0.5)
            failed = self._stumbles(lease.partition, events)
        finally:
            self.store.finish(instance.name, lease, events, failed=failed)
        if failed:
            raise RuntimeError("the handler failed")

    def _stumbles(self, partition: str, events: Sequence[int]) -> bool:
        """Never twice in a row, or an event might be dead-lettered by chance."""
        failed = partition not in self._stumbled and self.chance.random() < 0.02
        (self._stumbled.add if failed else self._stumbled.discard)(partition)
        if failed:
            self.store.stumbles.update((partition, event) for event in events)
        return failed

    async def produce(self) -> None:
        while self.clock.monotonic() < self.produce_until:
            await asyncio.sleep(self.chance.uniform(0.2, 2.0))
            for leaf in self.feed.leaves():
                if self.chance.random() < 0.5:
                    self.feed.append(leaf, self.chance.randint(1, 15))

    def leave(self, instance: Instance) -> None:
        self.disturbance(f"{instance.name} is asked to stop")
        instance.leaving, instance.stopped_at = True, self.clock.monotonic()
        instance.host.stop()

    def wake(self, instance: Instance) -> None:
        if not instance.crashed and instance.clock.paused:
            self.disturbance(f"{instance.name} wakes up")
            instance.troubled_at = instance.woken_at = self.clock.monotonic()
            if not instance.slept_with:
                instance.excused_at = instance.severed_at = instance.woken_at
            instance.clock.resume()

    # Watching

    async def watch(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end and not self.store.violations:
            await asyncio.sleep(0.5)
            await self._rules.check()

    async def _calm_down(self) -> None:
        self.chaos.end()
        if not any(each.usable for each in self.instances):
            self.start()
        self.disturbance("all is calm")

    def unhandled(self) -> dict[str, int]:
        feed, handled = self.feed, self.store.handled
        return {
            p: missed for p in feed.end if (missed := feed.end[p] - feed.first[p] - len(handled[p]))
        }

    def fault(self, instance: Instance, kind: str) -> None:
        self.faults[kind] += 1
        instance.troubled_at = self.clock.monotonic()
        if kind not in SHARED:
            instance.excused_at = instance.troubled_at
        if kind not in SHARED | HUNG:
            instance.severed_at = instance.troubled_at
        self.note(f"{instance.name}: {kind}")

    def disturbance(self, text: str) -> None:
        self._disturbed_at = self.clock.monotonic()
        self.note(text)

    def note(self, text: str) -> None:
        if self._tracing:
            self.trace.append(f"{self.clock.monotonic():9.3f}  {text}")

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background[task] = None  # in order: a set's is another in every run
        task.add_done_callback(lambda done: self._background.pop(done, None))

    def cancel_spawned(self) -> None:
        for task in tuple(self._background):
            task.cancel()


def _again_max(policy: Every) -> float:
    """A takeover repeats what its former owner had handled and not written down yet: what the
    policy lets add up, and a batch in hand; and the same once more where that owner was itself a
    zombie's successor."""
    if policy.manual or policy.seconds is not None:
        return inf
    return 2.0 * ((policy.events or 0) + 2 * MAX_EVENTS)
