import asyncio

import pytest

from leasehold.clock import SystemClock
from leasehold.stores.memory import MemoryStore
from leasehold.testing.check_lease_faults import CLOCK_CHECKS, ClockCheck
from leasehold.testing.check_lease_store import CHECKS, Check, any_group


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_memory(rule: Check) -> None:
    store = MemoryStore()

    async def open_store() -> MemoryStore:
        return store

    asyncio.run(rule(open_store, any_group()))


class SetClock(SystemClock):
    off_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.off_s


@pytest.mark.parametrize("rule", CLOCK_CHECKS, ids=lambda rule: rule.__name__)
def test_memory_whose_clock_is_set(rule: ClockCheck) -> None:
    clock = SetClock()
    store = MemoryStore(clock)

    async def open_store() -> MemoryStore:
        return store

    async def step(_: object, seconds: float) -> None:
        clock.off_s += seconds

    asyncio.run(rule(open_store, any_group(), step))
