import asyncio

import pytest

from leasehold.stores.memory import MemoryStore
from leasehold.testing.check_lease_store import CHECKS, Check, any_group


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_memory(rule: Check) -> None:
    store = MemoryStore()

    async def open_store() -> MemoryStore:
        return store

    asyncio.run(rule(open_store, any_group()))
