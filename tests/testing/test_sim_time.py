import asyncio

import pytest

from leasehold.clock import within
from leasehold.testing.sim_time import SimClock, run_virtual


def test_virtual_time_passes_without_waiting():
    async def main():
        clock = SimClock()
        await clock.sleep(86_400)
        return clock.monotonic()

    assert run_virtual(main()) == pytest.approx(86_400)


def test_a_paused_clock_holds_its_sleepers_until_it_is_resumed():
    async def main():
        clock, woke = SimClock(), []

        async def sleeper():
            await clock.sleep(1)
            woke.append(clock.monotonic())

        task = asyncio.ensure_future(sleeper())
        clock.pause()
        await asyncio.sleep(10)
        assert not woke
        clock.resume()
        await task
        return woke

    assert run_virtual(main()) == [pytest.approx(10)]


def test_a_wrong_clock_is_wrong_on_the_wall_only():
    async def main():
        right, wrong = SimClock(), SimClock(wall_off_s=3600)
        return wrong.wall() - right.wall(), wrong.monotonic() - right.monotonic()

    assert run_virtual(main()) == (3600, 0)


def test_waiting_for_ever_is_an_error():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="wait forever"):
        run_virtual(main())


def test_within_gives_the_result_or_gives_up():
    async def main():
        clock = SimClock()
        assert await within(clock, 5, asyncio.sleep(1, "done")) == "done"
        assert clock.monotonic() == pytest.approx(1)
        with pytest.raises(TimeoutError, match="5 s"):
            await within(clock, 5, asyncio.sleep(60))
        assert clock.monotonic() == pytest.approx(6)
        with pytest.raises(ValueError, match="bad"):
            await within(clock, 5, _fail())

    async def _fail():
        raise ValueError("bad")

    run_virtual(main())
