"""What each request costs on a lease store, measured: the model for groups too large to start here.

One client, one request at a time: what is not the client's CPU time is the server's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median
from uuid import uuid4

from leasehold.core.balance import plan
from leasehold.core.model import Checkpoint, Group, Lease, Member, Partition, Snapshot
from leasehold.core.watch import watch
from leasehold.ports import LeaseStore
from leasehold.settings import TIMING
from leasehold.stores import open_store

START = Checkpoint(next_sequence=123_456_789, token="1234567890")
REPEATS = 5
RECEIVED_AT = 128
"""Where ``bytes_received`` is in the kernel's ``struct tcp_info``."""
AT_ONCE = 500
"""Leases made or taken in one request while the group is set up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one call of a verb."""

    server_s: float
    client_s: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """By verb and number of leases; between two measured sizes along a line, beyond the last on the
    same line."""

    kind: str
    measured: Mapping[str, Mapping[int, Cost]]
    bytes_per_look: Mapping[int, float]

    def of(self, verb: str, leases: int) -> Cost:
        table = self.measured[verb]
        return Cost(
            server_s=_along({n: cost.server_s for n, cost in table.items()}, leases),
            client_s=_along({n: cost.client_s for n, cost in table.items()}, leases),
            requests=_along({n: cost.requests for n, cost in table.items()}, leases),
        )

    def look_bytes(self, leases: int) -> float:
        return _along(self.bytes_per_look, leases)


def _along(points: Mapping[int, float], at: int) -> float:
    if len(points) == 1:
        return next(iter(points.values()))
    sizes = sorted(points)
    place = min(max(bisect_left(sizes, at), 1), len(sizes) - 1)
    low, high = list(pairwise(sizes))[place - 1]
    share = (at - low) / (high - low)
    return max(points[low] + share * (points[high] - points[low]), 0.0)


def measure(
    url: str, sizes: Sequence[tuple[int, int]], shares: Sequence[int] = (1, 16, 128)
) -> Costs:
    """``sizes``: leases and members to look at; ``shares``: leases renewed and taken at once."""
    return asyncio.run(_measure(url, sizes, shares))


async def _measure(url: str, sizes: Sequence[tuple[int, int]], shares: Sequence[int]) -> Costs:
    found: dict[str, dict[int, Cost]] = {"snapshot": {}, "plan": {}}
    weights: dict[int, float] = {}
    for leases, members in sizes:
        store = open_store(url, **({} if url == "memory://" else {"timeout_s": 60.0}))
        group = Group(namespace="homes.local", feed="sensors", name=f"scale-{uuid4().hex[:6]}")
        try:
            snapshot = await _fill(store, group, leases, members)
            before = _received()
            await store.snapshot(group)
            weights[leases] = float(_received() - before)
            found["snapshot"][leases] = await _cost(store, partial(store.snapshot, group))
            found["plan"][leases] = _plan_cost(snapshot)
            if "renew" not in found and leases >= max(shares):
                found |= await _writes(store, group, snapshot, shares)
        finally:
            await store.close()
    return Costs(kind=url.partition(":")[0], measured=found, bytes_per_look=weights)


async def _fill(store: LeaseStore, group: Group, leases: int, members: int) -> Snapshot:
    names = [f"{n:05d}" for n in range(leases)]
    for first in range(0, leases, AT_ONCE):
        await store.create(group, dict.fromkeys(names[first : first + AT_ONCE], START))
    for n in range(members):
        await store.heartbeat(group, Member(instance=f"worker-{n:03d}", incarnation=f"{n:032x}"))
    snapshot = await store.snapshot(group)
    for first in range(0, leases, AT_ONCE):
        owner = f"worker-{first // AT_ONCE % members:03d}"
        await store.acquire(snapshot.leases[first : first + AT_ONCE], owner, 3600.0)
    return await store.snapshot(group)


async def _writes(
    store: LeaseStore, group: Group, snapshot: Snapshot, shares: Sequence[int]
) -> dict[str, dict[int, Cost]]:
    """Of what an instance writes: its heartbeat, and some leases at once."""
    me = snapshot.members[0]
    beat = await _cost(store, partial(store.heartbeat, group, me))
    found: dict[str, dict[int, Cost]] = {
        "heartbeat": {1: beat},
        "acquire": {},
        "renew": {},
        "release": {},
    }
    for share in shares:
        held: list[Lease] = list(snapshot.leases[:share])

        async def take(held: list[Lease] = held) -> None:
            held[:] = await store.acquire(held, me.instance, 3600.0)

        found["acquire"][share] = await _cost(store, take)
        found["renew"][share] = await _cost(store, partial(store.renew, held))
        released = []
        for _ in range(REPEATS):
            released.append(await _cost(store, partial(store.release, held), repeats=1))
            snapshot = await store.snapshot(group)
            held[:] = await store.acquire(snapshot.leases[:share], me.instance, 3600.0)
        found["release"][share] = sorted(released, key=attrgetter("server_s"))[REPEATS // 2]
        snapshot = await store.snapshot(group)
    return found


async def _cost(
    store: LeaseStore, call: Callable[[], Awaitable[object]], repeats: int = REPEATS
) -> Cost:
    walls, clients, before = [], [], store.requests.total()
    for _ in range(repeats):
        wall, client = time.perf_counter(), time.process_time()
        await call()
        walls.append(time.perf_counter() - wall)
        clients.append(time.process_time() - client)
    return Cost(
        server_s=max(median(walls) - median(clients), 0.0),
        client_s=median(clients),
        requests=(store.requests.total() - before) / repeats,
    )


def _plan_cost(snapshot: Snapshot) -> Cost:
    """What an instance thinks between a look and what it does about it."""
    known = [Partition(id=lease.partition) for lease in snapshot.leases]
    me, watched, times = snapshot.members[0].instance, None, []
    held = [lease.partition for lease in snapshot.leases if lease.owner == me]
    for n in range(REPEATS):
        began = time.process_time()
        watched, seen = watch(
            watched, snapshot, asked=3.0 * n, answered=3.0 * n, cut_off=False, doubt_s=1.0
        )
        plan(seen, known, me=me, held=held, waiting={}, now=0.0, timing=TIMING)
        times.append(time.process_time() - began)
    return Cost(server_s=0.0, client_s=median(times), requests=0.0)


def _received() -> int:
    """Bytes that this process got over its TCP connections, as Linux counts them."""
    total = 0
    for each in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # closed meanwhile, or no TCP
            if stat.S_ISSOCK(os.fstat(each).st_mode):
                with socket.socket(fileno=os.dup(each)) as wire:
                    told = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED_AT + 8)
                total += int.from_bytes(told[RECEIVED_AT : RECEIVED_AT + 8], sys.byteorder)
    return total
