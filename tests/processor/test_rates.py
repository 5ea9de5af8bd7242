import asyncio

import pytest

from leasehold.processor.rates import MEMORY_S, Rates
from leasehold.testing.sim_time import SimClock, run_virtual


def test_a_weight_is_the_rate_of_late_and_bursts_are_smoothed():
    async def main():
        rates = Rates(SimClock())
        assert rates.weight("0") == 1.0
        for _ in range(5):
            rates.add("0", 300)
            await asyncio.sleep(3)
            assert rates.weight("0") == pytest.approx(100)
        rates.add("0", 30_000)
        await asyncio.sleep(3)
        assert 100 < rates.weight("0") < 1000
        await asyncio.sleep(MEMORY_S * 10)
        assert rates.weight("0") == 1.0

    run_virtual(main())


def test_a_partition_that_comes_back_begins_anew():
    async def main():
        rates = Rates(SimClock())
        rates.add("0", 1000)
        await asyncio.sleep(1)
        assert rates.weight("0") == 1000
        rates.forget("0")
        await asyncio.sleep(1)
        assert rates.weight("0") == 1.0

    run_virtual(main())
