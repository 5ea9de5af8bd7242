"""The real clock. What a suspended machine does is shown by a clock that was moved on."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processing import make_hub, make_processor, open_leases, running, until

from leasehold import clock as module
from leasehold.clock import SystemClock, gather_all, within
from leasehold.testing.sim_time import SimClock, run_virtual


def test_monotonic_time_is_the_time_since_the_machine_was_started():
    before = SystemClock().monotonic()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert before - 0.02 <= uptime <= SystemClock().monotonic() + 0.02


def test_all_processes_of_a_machine_have_the_same_monotonic_time():
    script = "from leasehold.clock import SystemClock; print(SystemClock().monotonic())"
    before = SystemClock().monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert before < float(done.stdout) < SystemClock().monotonic()


def test_without_a_clock_since_the_start_it_is_python_s_own(monkeypatch):
    monkeypatch.setattr(module, "BOOT", None)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    assert SystemClock().monotonic() == 5.0


@pytest.fixture
def suspended(monkeypatch):
    """Seconds that the machine has spent suspended so far: only one of the clocks counts them."""
    seconds, real = [0.0], time.clock_gettime

    def clock_gettime(number):
        return real(number) + (seconds[0] if number == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    return seconds


def test_what_was_held_before_a_suspension_is_not_certain_after_it(tmp_path, suspended):
    """Before it has renewed: others may have taken it meanwhile."""
    hub = make_hub(tmp_path, partitions=2)

    async def main():
        processor = make_processor(
            hub,
            open_leases(tmp_path),
            on_event=print,
            balance_interval_s=10.0,
            lease_ttl_s=30.0,
        )
        async with running(processor):
            await until(lambda: len(processor.partitions) == 2)
            workers = list(processor._host.workers.values())
            assert all(worker.held for worker in workers)
            suspended[0] = 3600.0
            assert not any(worker.held for worker in workers)

    asyncio.run(main())


def test_of_work_done_together_the_first_failure_ends_the_rest():
    ended = []

    async def one(number):
        try:
            await asyncio.sleep(3600 if number else 0)
            raise ValueError("no")
        finally:
            ended.append(number)

    async def main():
        with pytest.raises(ValueError, match="no"):
            await gather_all(one(number) for number in range(3))
        await asyncio.sleep(0)
        assert sorted(ended) == [0, 1, 2]

    asyncio.run(main())


@pytest.mark.parametrize("clock", [SystemClock, SimClock])
def test_work_is_given_up_in_time_although_it_does_not_end(clock):
    """By the loop's timer or by a clock of its own: the same comes of it."""
    seen = []

    async def stubborn():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                seen.append("cancelled")
                await asyncio.sleep(5)
                seen.append("over")
                return

    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError, match="within 2 s"):
            await within(clock(), 2, stubborn())
        assert loop.time() == 2
        await asyncio.sleep(1)
        assert seen == ["cancelled"]
        await asyncio.sleep(5)
        assert seen == ["cancelled", "over"]

    run_virtual(main())


@pytest.mark.parametrize("clock", [SystemClock, SimClock])
def test_work_in_time_gives_its_result_or_its_error_and_leaves_no_timer(clock):
    async def fail():
        await asyncio.sleep(1)
        raise ValueError("no")

    async def main():
        loop = asyncio.get_running_loop()
        assert await within(clock(), 3600, asyncio.sleep(1, "done")) == "done"
        with pytest.raises(ValueError, match="no"):
            await within(clock(), 3600, fail())
        done = loop.create_future()
        done.set_result("there")
        assert await within(clock(), 3600, done) == "there"
        assert loop.time() == 2
        await asyncio.sleep(0)
        assert not [timer for timer in loop._scheduled if not timer.cancelled()]

    run_virtual(main())


@pytest.mark.parametrize("clock", [SystemClock, SimClock])
def test_who_is_cancelled_while_waiting_cancels_the_work(clock):
    ended = []

    async def work():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("ended")

    async def main():
        waiting = asyncio.ensure_future(within(clock(), 3600, work()))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert ended == ["ended"]

    run_virtual(main())
