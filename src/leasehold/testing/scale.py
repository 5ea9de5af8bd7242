"""Scaling out and in on virtual time: how long until even, and how many leases moved."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.core.balance import Assign, by_count, live_members, spread
from leasehold.testing.sim_time import run_virtual
from leasehold.testing.sim_world import GROUP
from leasehold.testing.simulate import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    before: int
    after: int
    partitions: int
    intervals: float
    """Balance intervals from the change until every lease is owned and the spread is ≤ 1."""
    moves: int
    least_moves: int
    """What any mechanism has to move."""
    later_moves: int
    """Moves in the ten intervals after that."""
    counts: tuple[int, ...]
    """Partitions per instance at the end."""


def scale(
    before: int, after: int, *, replaced: int = 0, partitions: int = 32, seed: int = 0
) -> ScaleReport:
    """All that come or go do so at the same moment; ``replaced``: that many more go and come."""
    return run_virtual(_scale(before, after, replaced, partitions, seed))


async def _scale(before: int, after: int, replaced: int, partitions: int, seed: int) -> ScaleReport:
    sim = Simulation(seed, partitions=partitions)
    interval = sim.settings.balance_interval_s
    for _ in range(before):
        sim.start()
    await sim.watch(10 * interval + sim.chance.random() * interval)
    look = sim.store.look(GROUP)
    owners = {lease.partition: lease.owner for lease in look.leases if lease.owner}
    began, moves = sim.clock.monotonic(), sim.store.moves
    for instance in sim.instances[min(before, after) - replaced :]:
        sim.leave(instance)
    for _ in range(max(after - before, 0) + replaced):
        sim.start()
    stay = [instance.name for instance in sim.instances if not instance.leaving]
    target = by_count(owners, owners, stay, {})
    while not await _even(sim, stay):
        await sim.watch(0.05)
    even, moved = sim.clock.monotonic(), sim.store.moves
    await sim.watch(10 * interval)
    final = [lease.owner for lease in sim.store.look(GROUP).leases]
    return ScaleReport(
        before=before,
        after=after,
        partitions=partitions,
        intervals=(even - began) / interval,
        moves=moved - moves,
        least_moves=sum(1 for p, owner in owners.items() if target[p] != owner),
        later_moves=sim.store.moves - moved,
        counts=tuple(sorted(final.count(name) for name in stay)),
    )


def start_up(
    instances: int,
    assign: Assign,
    *,
    apart_s: float = 4.0,
    backlog: int = 1_000,
    partitions: int = 16,
    seed: int = 0,
) -> int:
    """How often leases were taken until long after all have started, one after another, on a feed
    with a backlog whose partitions all get the same events per second from then on."""
    return run_virtual(_start_up(instances, assign, apart_s, backlog, partitions, seed))


async def _start_up(  # noqa: PLR0917
    instances: int, assign: Assign, apart_s: float, backlog: int, partitions: int, seed: int
) -> int:
    sim = Simulation(seed, partitions=partitions, assign=assign)
    for partition in sim.feed.leaves():
        sim.feed.append(partition, backlog)
    sim.spawn(steady(sim))
    for _ in range(instances):
        sim.start()
        await sim.watch(apart_s)
    await sim.watch(100)
    sim.cancel_spawned()
    return sim.store.moves


async def steady(sim: Simulation) -> None:
    while True:
        await sim.clock.sleep(0.5)
        for partition in sim.feed.leaves():
            sim.feed.append(partition, 10)


async def _even(sim: Simulation, stay: list[str]) -> bool:
    look, known = sim.store.look(GROUP), await sim.feed.partitions()
    owned = all(lease.live and lease.owner in stay for lease in look.leases)
    return owned and live_members(look) == set(stay) and spread(look, known) <= 1
