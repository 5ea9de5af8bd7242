"""A group whose store is away for a while, on virtual time: what moves, what comes again, and how
long it takes until every partition goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from leasehold.testing.sabotage import Sabotage
from leasehold.testing.scale import steady
from leasehold.testing.sim_time import run_virtual
from leasehold.testing.sim_world import GROUP
from leasehold.testing.simulate import Simulation

LOOK_S = 0.1
CALM_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageReport:
    moves: int
    most_owned: int
    """The most partitions that one instance had at a time after the store was back."""
    redelivered: int
    resumed_s: float
    """From the store's return until the last partition had its next events handled."""


def outage(
    seconds: float,
    *,
    instances: int = 4,
    partitions: int = 32,
    seed: int = 0,
    sabotage: Sabotage = Sabotage.NONE,
) -> OutageReport:
    return run_virtual(_outage(seconds, instances, partitions, seed, sabotage))


async def _outage(
    seconds: float, instances: int, partitions: int, seed: int, sabotage: Sabotage
) -> OutageReport:
    sim = Simulation(seed, partitions=partitions, sabotage=sabotage)
    for _ in range(instances):
        sim.start()
    sim.spawn(steady(sim))
    await sim.clock.sleep(30)
    moves, redelivered = sim.store.moves, sim.store.redelivered
    for instance in sim.instances:
        instance.network.outage = True
    await sim.clock.sleep(seconds)
    for instance in sim.instances:
        instance.network.outage = False
    back = sim.clock.monotonic()
    before = {partition: len(sim.store.handled[partition]) for partition in sim.feed.leaves()}
    most, resumed = 0, back
    while sim.clock.monotonic() < back + CALM_S:
        await sim.clock.sleep(LOOK_S)
        owned = Counter(x.owner for x in sim.store.look(GROUP).leases if x.owner is not None)
        most = max(most, *owned.values())
        if any(len(sim.store.handled[p]) == n for p, n in before.items()):
            resumed = sim.clock.monotonic()
    sim.cancel_spawned()
    return OutageReport(
        moves=sim.store.moves - moves,
        most_owned=most,
        redelivered=sim.store.redelivered - redelivered,
        resumed_s=resumed - back,
    )
