"""A lease store behind a bad network: slow, failing before or after the write, or not there."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.errors import StoreUnavailable
from leasehold.ports import Clock, LeaseStore, Renewed

T = TypeVar("T")


@dataclass(slots=True)
class Faults:
    """What goes wrong, each a probability per request; change it while running."""

    fail_before: float = 0.0
    """The request never arrives."""
    fail_after: float = 0.0
    """It is carried out, but the answer is lost."""
    delay_s: float = 0.0
    """Each way takes up to this long."""
    stall: float = 0.0
    """It arrives only after ``stall_s``; the caller has given up by then."""
    stall_s: float = 8.0
    partial: float = 0.0
    """Of several leases in one request, each gets no answer by itself: it was not reached, or its
    answer was lost."""
    outage: bool = False
    silent: bool = False
    """In an outage requests are not refused but lost."""


class FaultyStore:
    """Wraps any store. A request that its caller gave up on still arrives, as on a real network."""

    def __init__(
        self,
        store: LeaseStore,
        faults: Faults,
        chance: random.Random,
        clock: Clock,
        on_fault: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self.faults = faults
        self._store, self._chance, self._clock, self._on_fault = store, chance, clock, on_fault
        self._sent: set[asyncio.Future[Any]] = set()

    @property
    def requests(self) -> Counter[str]:
        return self._store.requests

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        await self._send(lambda: self._store.create(group, starts))

    async def snapshot(self, group: Group) -> Snapshot:
        return await self._send(lambda: self._store.snapshot(group))

    async def join(self, group: Group, member: Member) -> None:
        await self._send(lambda: self._store.join(group, member))

    async def heartbeat(self, group: Group, member: Member) -> bool:
        return await self._send(lambda: self._store.heartbeat(group, member))

    async def leave(self, group: Group, member: Member) -> None:
        await self._send(lambda: self._store.leave(group, member))

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        reached, unheard = self._in_part(leases)
        won = await self._send(lambda: self._store.acquire(reached, owner, ttl_s))
        return [lease for lease in won if lease.partition not in unheard]

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        reached, unheard = self._in_part(leases)
        answer = await self._send(lambda: self._store.renew(reached))
        return Renewed(
            kept=tuple(lease for lease in answer.kept if lease.partition not in unheard),
            unknown={**answer.unknown, **unheard},
        )

    async def release(self, leases: Sequence[Lease]) -> None:
        await self._send(lambda: self._store.release(leases))

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return await self._send(lambda: self._store.checkpoint(leases))

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return await self._send(lambda: self._store.rewind(leases))

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        return await self._send(lambda: self._store.split(parent, children))

    async def groups(self) -> Sequence[Group]:
        return await self._send(self._store.groups)

    async def close(self) -> None:
        await self._store.close()

    def _in_part(self, leases: Sequence[Lease]) -> tuple[list[Lease], dict[str, Exception]]:
        """Those that are reached, and those whose answer will not be heard."""
        if not self.faults.partial:
            return list(leases), {}
        unheard: dict[str, Exception] = {
            lease.partition: StoreUnavailable("this record gave no answer")
            for lease in leases
            if self._chance.random() < self.faults.partial
        }
        if leases and len(unheard) == len(leases):
            self._on_fault("lost request")
            raise StoreUnavailable("no record gave an answer")
        if unheard:
            self._on_fault("partial answer")
        reached = [
            lease
            for lease in leases
            if lease.partition not in unheard or self._chance.random() < 0.5
        ]
        return reached, unheard

    async def _send(self, request: Callable[[], Awaitable[T]]) -> T:
        trip = asyncio.ensure_future(self._trip(request))
        self._sent.add(trip)
        trip.add_done_callback(self._arrived)
        try:
            return await asyncio.shield(trip)
        finally:
            await self._clock.sleep(0)  # a paused instance hears the answer when it is resumed

    def _arrived(self, trip: asyncio.Future[Any]) -> None:
        self._sent.discard(trip)
        if not trip.cancelled():
            trip.exception()  # nobody may be waiting for it any more

    async def _trip(self, request: Callable[[], Awaitable[T]]) -> T:
        faults, chance = self.faults, self._chance
        if chance.random() < faults.stall:
            self._on_fault("stall")
            await asyncio.sleep(faults.stall_s)
        await asyncio.sleep(chance.random() * faults.delay_s)
        if faults.outage:
            self._on_fault("outage")
            if faults.silent:
                await asyncio.sleep(faults.stall_s)
            raise StoreUnavailable("the store is not reachable")
        if chance.random() < faults.fail_before:
            self._on_fault("lost request")
            raise StoreUnavailable("the request was lost")
        answer = await request()
        await asyncio.sleep(chance.random() * faults.delay_s)
        if chance.random() < faults.fail_after:
            self._on_fault("lost answer")
            raise StoreUnavailable("the answer was lost")
        return answer
