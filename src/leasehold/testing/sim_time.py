"""Virtual time: an event loop that never waits, and a clock per simulated instance.

Code under simulation is the production code, unchanged: it runs on this loop, where a sleep of ten
seconds takes no time at all, and everything happens in an order that one seed decides.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NeverWaits(selectors.BaseSelector):
    """Stands in for the operating system: instead of waiting, moves the time on."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left to happen: the simulation would wait forever")
        self.now += max(timeout, 0.0)
        return []


class SimLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _NeverWaits()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on virtual time; whatever is still pending then is thrown away."""
    loop = SimLoop()
    loop.set_exception_handler(lambda loop, context: None)
    try:
        return loop.run_until_complete(main)
    finally:
        for _ in range(20):  # clean-up code may wait once more, and crashed instances forever
            if not (pending := asyncio.all_tasks(loop)):
                break
            for task in pending:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class SimClock:
    """An instance's clock: wrong by ``wall_off_s``, and frozen with the instance.

    ``gate`` stops a paused instance (SIGSTOP): nothing of it goes on until it is resumed; a crashed
    one is never resumed.
    """

    def __init__(self, wall_off_s: float = 0.0) -> None:
        self.wall_off_s = wall_off_s
        self._running = asyncio.Event()
        self._running.set()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 1_800_000_000.0 + self.wall_off_s + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.gate()

    async def gate(self) -> None:
        while not self._running.is_set():
            await self._running.wait()

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()
