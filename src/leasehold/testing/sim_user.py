"""A simulated user's own checkpoints: in the handler, or between batches, and mostly late."""

from __future__ import annotations

import asyncio
import random

from leasehold.core.model import Checkpoint
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.processor.pump import Pump
from leasehold.testing.sim_time import SimClock


class SimUser:
    """Checkpoints events that it has handled on this lease: any of them, by ``chance``."""

    def __init__(self, pump: Pump, clock: SimClock, chance: random.Random) -> None:
        self._pump, self._clock, self._chance = pump, clock, chance
        self._first = self._end = pump.hold.lease.checkpoint.next_sequence
        self._task = asyncio.ensure_future(self._between_batches())

    def handled(self, end: int) -> None:
        self._end = end

    def close(self) -> None:
        self._task.cancel()

    async def in_handler(self) -> None:
        """What is raised here comes out of the handler, as it would of a user's."""
        if self._chance.random() < 0.5 and not await self._checkpoint():
            raise LeaseLost("the checkpoint was refused")

    async def _between_batches(self) -> None:
        while True:
            await self._clock.sleep(self._chance.uniform(0.5, 3.0))
            try:
                await self._checkpoint()
            except StoreUnavailable:
                continue

    async def _checkpoint(self) -> bool:
        if self._end == self._first:
            return True
        latest = self._chance.random() < 0.3
        next_one = self._end if latest else self._chance.randint(self._first + 1, self._end)
        return await self._pump.save(Checkpoint(next_sequence=next_one))
