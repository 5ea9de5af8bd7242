"""Gathers the ranges that pumps want handled into few Spark jobs.

Every partition has a pump of its own, with its own checkpoint, retries and dead letters, as in any
processor. Only the handler calls meet here: those of one moment become one job. If it fails twice,
each partition is tried alone, so that only the failing one is told of a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from leasehold.core.ranges import Range
from leasehold.errors import LeaseholdError, SinkUnavailable
from leasehold.ports import Clock

TRIES_TOGETHER = 2
LOST = "the lease was not certain any more when the job was done, so its part is void"


class NotAsPlanned(LeaseholdError):
    """Raised by a sink that has written nothing yet: do it again without some of it.

    ``begin_at`` says by partition where what is not done yet begins; None: the partition is not
    ours any more.
    """

    def __init__(self, message: str, begin_at: Mapping[str, int | None]) -> None:
        super().__init__(message)
        self.begin_at = dict(begin_at)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    range: Range
    alone: bool
    done: asyncio.Future[None]


class Jobs:
    def __init__(
        self,
        run: Callable[[Sequence[Range]], None],
        *,
        threads: Executor,
        clock: Clock,
        gather_s: float,
        max_events: int,
    ) -> None:
        self._run, self._threads, self._clock = run, threads, clock
        self._gather_s, self._max_events = gather_s, max_events
        self._waiting: list[_Request] = []
        self._task: asyncio.Task[None] | None = None

    async def handle(self, wanted: Range, *, alone: bool) -> None:
        """Returns once a job with this range has succeeded; raises what it failed with."""
        request = _Request(wanted, alone, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
        await request.done

    async def _work(self) -> None:
        while self._waiting:
            await self._clock.sleep(self._gather_s)
            some, self._waiting = self._waiting, []
            for together in self._bounded([each for each in some if not each.alone]):
                await self._attempt(together)
            for request in some:
                if request.alone:
                    await self._attempt([request])

    def _bounded(self, requests: Sequence[_Request]) -> list[list[_Request]]:
        """As few jobs as there can be with none above ``max_events``."""
        jobs: list[list[_Request]] = []
        events = self._max_events
        for request in requests:
            size = len(request.range)
            if events + size > self._max_events:
                jobs.append([])
                events = 0
            jobs[-1].append(request)
            events += size
        return jobs

    async def _attempt(self, requests: Sequence[_Request]) -> None:
        tries = 1 if len(requests) == 1 else TRIES_TOGETHER
        for _ in range(tries):
            error, void = await self._job([request.range for request in requests])
            if error is None or isinstance(error, SinkUnavailable):
                break
        if error is None or len(requests) == 1 or isinstance(error, SinkUnavailable):
            for request in requests:
                lost = request.range.partition in void
                _settle(request.done, error or (SinkUnavailable(LOST) if lost else None))
            return
        for request in requests:
            await self._attempt([request])

    async def _job(self, ranges: Sequence[Range]) -> tuple[BaseException | None, set[str]]:
        """What it failed with, and the partitions whose part did not take effect."""
        loop = asyncio.get_running_loop()
        left = [each for each in ranges if len(each)]
        void: set[str] = set()
        while left:
            try:
                await loop.run_in_executor(self._threads, self._run, left)
            except NotAsPlanned as found:
                fewer = _without(left, found.begin_at)
                if fewer == left:
                    return found, void
                void |= {partition for partition, at in found.begin_at.items() if at is None}
                left = fewer
            except BaseException as error:
                return error, void
            else:
                break
        return None, void


def _without(ranges: Sequence[Range], begin_at: Mapping[str, int | None]) -> list[Range]:
    left = []
    for each in ranges:
        first = begin_at.get(each.partition, each.first)
        if first is not None and first < each.end:
            left.append(replace(each, first=max(first, each.first)))
    return left


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():  # nobody waits any more
        return
    if error is None:
        future.set_result(None)
    elif isinstance(error, StopIteration):  # which no future takes
        future.set_exception(RuntimeError(repr(error)))
    else:
        future.set_exception(error)
