import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leasehold.processor.rates import MEASURE_S, MEMORY_S, WARM_UP_S, EventRates
from leasehold.testing.sim_time import SimClock, run_virtual


def test_a_weight_is_the_rate_of_late_and_bursts_are_smoothed():
    async def main():
        rates = EventRates(SimClock())
        rates.begin("0", 100.0)
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


def test_an_idle_partition_weighs_a_little_once_that_is_known():
    async def main():
        rates = EventRates(SimClock())
        rates.begin("0", 0.0)
        assert rates.weight("0") == 0.0
        await asyncio.sleep(WARM_UP_S + MEASURE_S)
        assert rates.weight("0") == 1.0

    run_virtual(main())


def test_a_partition_that_comes_back_begins_with_what_its_last_owner_found():
    async def main():
        rates = EventRates(SimClock())
        rates.begin("0", 0.0)
        rates.add("0", 1_000_000)  # what had piled up
        await asyncio.sleep(WARM_UP_S)
        rates.add("0", 30_000)
        assert rates.weight("0") == 0
        await asyncio.sleep(MEASURE_S)
        assert rates.weight("0") == 1000
        await asyncio.sleep(600)
        rates.begin("0", 250.0)
        assert rates.weight("0") == 250

    run_virtual(main())


@given(
    per_s=st.floats(2, 100_000),
    batch_s=st.floats(0.01, 3.0),
    look_s=st.floats(1.0, 10.0),
    late_s=st.floats(0, 1),
    known=st.booleans(),
)
@example(per_s=345.0, batch_s=2.9, look_s=3.0, late_s=0.99, known=False)
def test_of_a_steady_rate_the_weight_is_within_a_quarter_from_the_first_value_on(
    per_s, batch_s, look_s, late_s, known
):
    """Batches that take up to 3 s, with looks at any distance, the first one just after a batch."""

    async def main():
        clock = SimClock()
        rates = EventRates(clock)
        rates.begin("0", per_s if known else 0.0)
        weight, done, look_at, batch_at = 0.0, 0, look_s, late_s * batch_s
        while clock.monotonic() < WARM_UP_S + 4 * MEASURE_S:
            await asyncio.sleep(max(min(look_at, batch_at) - clock.monotonic(), 0.0))
            if batch_at <= look_at:
                upto = round(per_s * (batch_at + (1 - late_s) * batch_s))
                rates.add("0", upto - done)
                done, batch_at = upto, batch_at + batch_s
            else:
                weight = rates.weight("0")
                assert weight == 0 or 0.75 * per_s <= weight <= 1.25 * per_s + 1
                look_at += look_s
        assert weight > 0

    run_virtual(main())
