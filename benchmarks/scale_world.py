"""A group of any size on virtual time: the production host on a store as slow as a measured one.

The store has a number of cores and a queue before them; what the client computes delays the client
alone. The hosts hold their leases and read nothing.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from benchmarks.requests import Idle
from benchmarks.scale_costs import Costs
from leasehold.core.model import Checkpoint, Group, Lease, Member, Partition, Snapshot
from leasehold.errors import StoreUnavailable
from leasehold.ports import Renewed
from leasehold.processor.host import Host
from leasehold.settings import Timing
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock, run_virtual
from leasehold.testing.sim_world import GROUP, SimFeed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A smaller group that stands for a large one: ``fewer`` times fewer instances and cores, each
    with ``thinner`` times fewer leases, on requests as expensive as those of the whole group."""

    fewer: int = 1
    thinner: int = 1


STEP_S = 0.1
STEADY_S = 2 * 0.95 * Timing().balance_interval_s
"""Two strides of an instance, on average: all keep much the same step after a start."""
GIVEN_UP_S = 90.0
"""What is not even after that long counts as never."""
OUTAGE_S = 30.0
PROBE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What was seen of one size; times that never came are None, as are those not asked for."""

    partitions: int
    instances: int
    start_s: float | None
    join_s: float | None = None
    join_moves: int = 0
    loss_s: float | None = None
    outage_s: float | None = None
    outage_moves: int = 0
    requests_per_s: float = 0.0
    bytes_per_s: float = 0.0
    busy_cores: float = 0.0
    look_s: float = 0.0
    """How long a look takes, from the question to the plan, on average."""
    late: int = 0
    """Requests that were given up after the time limit, in all phases but the outage."""


def cell(
    costs: Costs,
    partitions: int,
    instances: int,
    *,
    cores: int,
    phases: Sequence[str] = ("join", "loss", "outage"),
    model: Model = Model(),  # noqa: B008 - it never changes
    seed: int = 0,
) -> Cell:
    """Start them all, watch them for a while, then what ``phases`` names, one after another."""
    gc.collect()
    gc.disable()  # hundreds of hosts that keep thousands of records each: nothing of it is garbage
    try:
        world = partial(ScaleWorld, costs, partitions, instances, cores, model, seed)
        return run_virtual(_cell(world, phases))
    finally:
        gc.enable()


async def _cell(made: Callable[[], ScaleWorld], phases: Sequence[str]) -> Cell:
    world = made()
    for n in range(world.size):
        world.start(f"i{n:03d}", after_s=world.chance.random())
    start_s = await world.until_even()
    await asyncio.sleep(world.timing.balance_interval_s)
    requests_per_s, bytes_per_s, busy_cores, look_s = await world.steady()
    join_s = loss_s = outage_s = None
    join_moves = outage_moves = 0
    if "join" in phases and start_s is not None:
        moves = world.moves
        world.start("joiner")
        join_s = await world.until_even()
        await asyncio.sleep(2 * world.timing.balance_interval_s)
        join_moves = world.moves - moves
    if "loss" in phases and start_s is not None:
        for name in list(world.hosts)[: max(world.size // 10, 1)]:
            world.crash(name)
        loss_s = await world.until_even()
        await asyncio.sleep(2 * world.timing.balance_interval_s)
    late = world.late
    if "outage" in phases and start_s is not None:
        moves, world.store.down = world.moves, True
        await asyncio.sleep(OUTAGE_S)
        world.store.down = False
        outage_s = await world.until_even()
        await asyncio.sleep(2 * world.timing.balance_interval_s)
        outage_moves = world.moves - moves
    return Cell(
        partitions=world.partitions,
        instances=world.instances,
        start_s=start_s,
        join_s=join_s,
        join_moves=join_moves,
        loss_s=loss_s,
        outage_s=outage_s,
        outage_moves=outage_moves,
        requests_per_s=requests_per_s,
        bytes_per_s=bytes_per_s,
        busy_cores=busy_cores,
        look_s=look_s,
        late=late,
    )


class ScaleWorld:
    def __init__(  # noqa: PLR0917
        self,
        costs: Costs,
        partitions: int,
        instances: int,
        cores: int,
        model: Model,
        seed: int,
    ) -> None:
        self.partitions, self.instances = partitions, instances
        self.size = instances // model.fewer
        """How many instances there are to begin with."""
        self.chance, self.timing = random.Random(seed), Timing()
        self.store = CostlyStore(costs, cores, model)
        self.hosts: dict[str, Host] = {}
        self.late = 0
        self._feed = _StillFeed(partitions // model.fewer // model.thinner)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, after_s: float = 0.0) -> None:
        host = self.hosts[name] = Host(
            feed=self._feed,
            group=GROUP.name,
            store=self.store,
            instance=name,
            incarnation=f"{name}-{self.chance.random()}",
            start_worker=lambda hold: Idle(hold, self.store),
            clock=SimClock(),
            report=self._report,
            settings=self.timing,
        )

        async def run() -> None:
            await asyncio.sleep(after_s)
            await host.run()

        self._tasks[name] = asyncio.ensure_future(run())

    def crash(self, name: str) -> None:
        """Without a word; what it held goes stale."""
        self._tasks.pop(name).cancel()
        self.hosts.pop(name).abandon()

    @property
    def moves(self) -> int:
        return sum(host.moves for host in self.hosts.values())

    async def until_even(self) -> float | None:
        began = asyncio.get_running_loop().time()
        while (now := asyncio.get_running_loop().time()) - began < GIVEN_UP_S:
            if self._even():
                return now - began
            await asyncio.sleep(STEP_S)
        return None

    async def steady(self) -> tuple[float, float, float, float]:
        """With nothing moving: requests, bytes and busy cores a second; how long a look takes."""
        store, before = self.store, self.store.counted()
        await asyncio.sleep(STEADY_S)
        requests, received, busy, looks, looked = (
            after - was for was, after in zip(before, store.counted(), strict=True)
        )
        return requests / STEADY_S, received / STEADY_S, busy / STEADY_S, looked / max(looks, 1)

    def _even(self) -> bool:
        owned = Counter(dict.fromkeys(self.hosts, 0))
        for owner in self.store.live_owners():
            if owner is None or owner not in owned:
                return False
            owned[owner] += 1
        counts = owned.values()
        return sum(counts) == len(self._feed.end) and max(counts) - min(counts) <= 1

    def _report(self, what: str, error: BaseException) -> None:
        self.late += isinstance(error, TimeoutError)


class _StillFeed(SimFeed):
    """Its partitions stay the same, and so does their list."""

    def __init__(self, partitions: int) -> None:
        super().__init__(0)
        self._known = [Partition(id=self._make(f"{n:05d}", 0, ())) for n in range(partitions)]

    async def partitions(self) -> Sequence[Partition]:
        return self._known


class CostlyStore(MemoryStore):
    """Takes as long as the measured one, and counts what that one would have to do."""

    def __init__(self, costs: Costs, cores: int, model: Model) -> None:
        super().__init__(SimClock())
        self.down = False
        self._costs, self._model = costs, model
        self._cores = asyncio.Semaphore(cores // model.fewer)
        self._sent = self._received = self._busy_s = self._looked_s = 0.0
        self._looks = 0
        self._latest: tuple[float, Snapshot] | None = None

    def counted(self) -> tuple[float, float, float, float, float]:
        """Of the whole group: requests, bytes, busy seconds, looks, seconds waited for them."""
        counts = self._sent, self._received, self._busy_s, self._looks, self._looked_s
        requests, received, busy_s, looks, looked_s = (self._model.fewer * each for each in counts)
        return requests, received, busy_s, looks, looked_s

    def live_owners(self) -> list[str | None]:
        """Of each lease; None: nobody renews it."""
        now = self._clock.monotonic()
        return [
            lease.owner if now - at <= lease.ttl_s else None
            for lease, at in self._records(GROUP).leases.values()
        ]

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        make = super().create
        await self._after("acquire", len(starts), lambda: make(group, starts))

    async def snapshot(self, group: Group) -> Snapshot:
        began, leases = self._clock.monotonic(), len(self._records(group).leases)
        found = await self._after("snapshot", leases * self._model.fewer, lambda: self._look(group))
        leases *= self._model.fewer * self._model.thinner
        await asyncio.sleep(self._costs.of("plan", leases).client_s)
        self._received += self._costs.look_bytes(leases)
        self._looks += 1
        self._looked_s += self._clock.monotonic() - began
        return found

    async def join(self, group: Group, member: Member) -> None:
        enter = super().join
        await self._after("heartbeat", 1, lambda: enter(group, member))

    async def heartbeat(self, group: Group, member: Member) -> bool:
        beat = super().heartbeat
        return await self._after("heartbeat", 1, lambda: beat(group, member))

    async def leave(self, group: Group, member: Member) -> None:
        go = super().leave
        await self._after("heartbeat", 1, lambda: go(group, member))

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        take = super().acquire
        return await self._after("acquire", len(leases), lambda: take(leases, owner, ttl_s))

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        keep = super().renew
        return await self._after("renew", len(leases), lambda: keep(leases))

    async def release(self, leases: Sequence[Lease]) -> None:
        free = super().release
        await self._after("release", len(leases), lambda: free(leases))

    async def _look(self, group: Group) -> Snapshot:
        """Looks that are answered in the same moment see the same."""
        now = self._clock.monotonic()
        if self._latest is None or now - self._latest[0] > PROBE_S:
            self._latest = now, await super().snapshot(group)
        return self._latest[1]

    async def _after(self, verb: str, leases: int, call: Callable[[], Awaitable[T]]) -> T:
        cost = self._costs.of(verb, leases * (1 if verb == "heartbeat" else self._model.thinner))
        if self.down:
            await asyncio.sleep(cost.client_s)
            raise StoreUnavailable("the store is not reachable")
        self._sent += cost.requests
        async with self._cores:
            answer = await call()
            self._busy_s += cost.server_s
            await asyncio.sleep(cost.server_s)
        await asyncio.sleep(cost.client_s)
        return answer
