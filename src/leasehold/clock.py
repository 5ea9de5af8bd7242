"""The real clock, and waiting by any clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from leasehold.ports import Clock

T = TypeVar("T")
BOOT = getattr(time, "CLOCK_BOOTTIME", None)
"""Of Linux. Python's own monotonic clock stands still while the machine is suspended."""


class SystemClock:
    """Monotonic time goes on while the machine is suspended, where the system has such a clock:
    other machines go on too, and what was held before may long be theirs."""

    def monotonic(self) -> float:
        return time.monotonic() if BOOT is None else time.clock_gettime(BOOT)

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """The result of ``work``, or TimeoutError after so many seconds of that clock."""
    task = asyncio.ensure_future(work)
    try:
        if isinstance(clock, SystemClock):
            await _done_or_late(task, seconds)
        else:
            await _done_or_slept(task, clock.sleep(seconds))
        if task.done():
            return task.result()
        raise TimeoutError(f"no answer within {seconds:g} s")
    finally:
        task.cancel()


async def _done_or_late(task: asyncio.Future[Any], seconds: float) -> None:
    """By the loop's own timer: a task that sleeps nearly doubles what a limit costs."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def over(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(seconds, over)
    task.add_done_callback(over)
    try:
        await waiter
    finally:
        timer.cancel()
        task.remove_done_callback(over)


async def _done_or_slept(task: asyncio.Future[Any], sleep: Awaitable[None]) -> None:
    timer = asyncio.ensure_future(sleep)
    try:
        await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results, or the first failure; then the others are ended, not left running."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
