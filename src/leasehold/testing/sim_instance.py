"""One simulated instance: the production host with a clock, a network and a handler of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint
from leasehold.errors import LeaseholdError
from leasehold.ports import Batch
from leasehold.processor.handlers import Outcome, Stop
from leasehold.processor.host import Host
from leasehold.processor.news import News
from leasehold.processor.rates import EventRates
from leasehold.processor.work import Hold
from leasehold.testing.faulty_store import Faults
from leasehold.testing.sabotage import blamed
from leasehold.testing.sim_time import SimClock
from leasehold.testing.sim_user import SimUser
from leasehold.testing.sim_world import MAX_EVENTS, SimFeed

if TYPE_CHECKING:
    from leasehold.testing.simulate import Simulation


@dataclass(slots=True, eq=False)
class Instance:
    name: str
    clock: SimClock
    network: Faults
    rates: EventRates = field(init=False)
    reads: InstanceFeed = field(init=False)
    news: News = field(init=False)
    host: Host = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    started_at: float = 0.0
    troubled_at: float = -inf
    """When something last went wrong for it."""
    excused_at: float = -inf
    """When something last went wrong for it alone, so that others may take what it has."""
    severed_at: float = -inf
    """When something last kept it alone from the store: not what hung in its handlers or reads."""
    woken_at: float = -inf
    slept_with: frozenset[Instance] = frozenset()
    """Who was suspended with it the last time: none of them may take advantage of that. The next
    life of one of them, started meanwhile, may."""
    crashed: bool = False
    leaving: bool = False
    stopped_at: float = inf
    """When it was asked to stop."""
    ended_at: float = inf
    """When it ended by itself."""
    hindered_at: float = -inf
    """When something last kept it from stopping."""
    stubborn: bool = False
    """Its handlers do not come back for a while, so it cannot let go."""
    deaf: bool = False
    """What it reads from the feed now is never answered."""
    deaf_until: float = -inf

    def __post_init__(self) -> None:
        self.rates = EventRates(self.clock)

    @property
    def healthy_since(self) -> float:
        return max(self.started_at, self.troubled_at)

    @property
    def running(self) -> bool:
        return not self.crashed and not self.clock.paused and not self.task.done()

    @property
    def usable(self) -> bool:
        return self.running and not self.leaving


class SimWork:
    """A handler that takes a moment, fails now and then, and tells the watching store."""

    one_by_one, interruptible = False, True

    def __init__(self, sim: Simulation, instance: Instance, hold: Hold) -> None:
        self._sim, self._instance, self._hold = sim, instance, hold
        self.user: SimUser | None = None

    async def open(self) -> None:
        pass

    async def handle(self, events: Sequence[int], stop: Stop) -> Outcome:
        assert self.user is not None
        try:
            await self._sim.handle(self._instance, self._hold.lease, events, self.user)
        except (RuntimeError, LeaseholdError) as error:
            return Outcome(done=0, error=blamed(error, self._sim.sabotage))
        self.user.handled(events[-1] + 1)
        self._instance.rates.add(self._hold.lease.partition, len(events))
        return Outcome(done=len(events))

    async def failed(self, error: BaseException) -> None:
        self._sim.note(f"{self._instance.name}: handling {self._hold.lease.partition}: {error}")

    async def bury(self, event: int, error: BaseException | str, attempts: int) -> None:
        """Right only where instances died of it, as far as anybody can tell, and never by the tries
        of one that stopped in order; what a dead owner had in hand counts as tried once."""
        lease = self._hold.lease
        in_hand = range(lease.checkpoint.next_sequence + MAX_EVENTS) if self._hold.orphaned else ()
        known = self._hold.orphaned and ("died" in str(error) or event in in_hand)
        if not known or self._sim.store.tries(lease.partition, event) < attempts:
            self._sim.store.violations.append(
                f"event {event} of {lease.partition} was dead-lettered: {error}"
            )
        self._sim.store.finish(self._instance.name, lease, [event], failed=False)

    def give_up(self, error: BaseException) -> None:
        raise AssertionError("nobody gives up here")

    async def close(self, reason: Reason) -> None:
        if self.user is not None:
            self.user.close()


class InstanceFeed:
    """The feed as one instance reads it."""

    def __init__(self, feed: SimFeed, instance: Instance) -> None:
        self._feed, self._instance = feed, instance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        if self._instance.deaf:
            await asyncio.sleep(1e9)
        return await self._feed.read(partition, position, max_events)
