"""Renewing what an instance holds: many leases in a request, and none held up by another's.

With a store that answers for all leases of a request or for none, one record that hangs costs its
request a timeout. Meanwhile the other requests go on; then each lease of that one is asked for by
itself. So a healthy lease goes without a renewal for 1.5 × ``balance_interval_s`` +
``request_timeout_s`` at most, which is less than ``lease_ttl_s`` in the usual settings; and one
that shares no request with a bad record stays fresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from leasehold.clock import within
from leasehold.core.model import Group
from leasehold.ports import Clock, LeaseStore, Renewed
from leasehold.processor.work import Hold, Report, Worker
from leasehold.settings import Timing

T = TypeVar("T")
SLOTS_MAX = 1024
"""Requests at once, for one lease each: those that hang must leave room for the others."""
LEASES_MAX = 128
"""Leases in one request: a store with a record at a time must get done within a timeout."""


class Ask(Protocol):
    def __call__(self, request: Awaitable[T], /) -> Awaitable[T]: ...


class Renewals:
    def __init__(
        self,
        group: Group,
        workers: Mapping[str, Worker],
        store: LeaseStore,
        *,
        ask: Ask,
        heartbeat: Callable[[], Awaitable[object]],
        weigh: Callable[[str], float],
        clock: Clock,
        report: Report,
        settings: Timing,
    ) -> None:
        """``ask`` bounds a request; ``heartbeat`` is one that fails only where the store does."""
        self.unknown: dict[str, bool] = {}
        """Held partitions whose last renewal got no answer, and whether to ask for each alone."""
        self._group, self._workers, self._store = group, workers, store
        self._ask, self._heartbeat, self._weigh = ask, heartbeat, weigh
        self._clock, self._report, self._settings = clock, report, settings
        self._asked: dict[str, asyncio.Task[None]] = {}
        """The request that is under way for each partition."""
        self._slots = asyncio.Semaphore(SLOTS_MAX)

    async def renew(self, *, reached: bool) -> None:
        """Ask for all that is not being asked for. A request waits for the one before, so that a
        slow store is not asked for everything at once; but not for long if that one is late. Nor is
        upkeep held up for longer than it takes to renew twice. ``reached``: the store has just
        answered something else."""
        began, settings = self._clock.monotonic(), self._settings
        self.unknown = {p: alone for p, alone in self.unknown.items() if p in self._workers}
        holds = {p: worker.hold for p, worker in self._workers.items() if p not in self._asked}
        begun: list[asyncio.Task[None]] = []
        patience_s = settings.balance_interval_s / 2
        for some in self._requests(holds):
            begun.append(self._begin(self._renew_some(some, reached), some))
            if not await self._done(begun[-1:], late_s := min(settings.hurry_s, patience_s)):
                patience_s -= late_s
        for partition, hold in holds.items():
            if self.unknown.get(partition):  # nobody waits for these
                self._begin_alone(partition, hold, reached)
        await self._done(begun, began + settings.fresh_s / 2 - self._clock.monotonic())

    def close(self) -> None:
        for task in tuple(self._asked.values()):
            task.cancel()

    def _requests(self, holds: Mapping[str, Hold]) -> Iterator[Mapping[str, Hold]]:
        """Those without an answer the last time come last and by themselves."""
        answered = [p for p in holds if p not in self.unknown]
        unknown = [p for p in holds if self.unknown.get(p) is False]
        for names in (answered, unknown):
            for first in range(0, len(names), LEASES_MAX):
                yield {p: holds[p] for p in names[first : first + LEASES_MAX]}

    def _begin(self, request: Awaitable[None], holds: Mapping[str, Hold]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(request)
        self._asked |= dict.fromkeys(holds, task)
        task.add_done_callback(lambda done: self._ended(holds, done))
        return task

    def _begin_alone(self, partition: str, hold: Hold, reached: bool) -> None:
        async def in_turn() -> None:
            async with self._slots:
                await self._renew_some({partition: hold}, reached)

        self._begin(in_turn(), {partition: hold})

    def _ended(self, holds: Mapping[str, Hold], task: asyncio.Task[None]) -> None:
        for partition in holds:
            if self._asked.get(partition) is task:
                del self._asked[partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(f"renewing {len(holds)} leases of {self._group}", error)

    async def _done(self, tasks: Sequence[asyncio.Task[None]], within_s: float) -> bool:
        if tasks:
            with suppress(TimeoutError):
                await within(self._clock, max(within_s, 0.0), asyncio.wait(tasks))
        return all(task.done() for task in tasks)

    async def _renew_some(self, holds: Mapping[str, Hold], reached: bool) -> None:
        sent = self._clock.monotonic()
        wanted = [replace(hold.lease, weight=self._weigh(p)) for p, hold in holds.items()]
        try:
            answer = await self._ask(self._store.renew(wanted))
        except Exception as error:
            if not reached:  # which its caller has reported
                self.unknown = dict.fromkeys(holds, False) | self.unknown
            elif len(holds) == 1:
                self._settle(holds, sent, Renewed(unknown=dict.fromkeys(holds, error)))
            elif await self._answers():  # so it is one of these that the store does not answer for
                self._ask_apart(holds)
            else:
                self.unknown |= dict.fromkeys(holds, False)
                raise
            return
        self._settle(holds, sent, answer)

    async def _answers(self) -> bool:
        """In an outage, leases are not asked for one by one."""
        try:
            await self._heartbeat()
        except Exception:  # upkeep will find the same, and say so
            return False
        return True

    def _ask_apart(self, holds: Mapping[str, Hold]) -> None:
        for partition, hold in holds.items():
            if self._is_current(partition, hold):
                self._begin_alone(partition, hold, reached=True)

    def _settle(self, holds: Mapping[str, Hold], sent: float, answer: Renewed) -> None:
        """Each hold goes on by its own answer. One without an answer is neither kept nor lost: it
        goes stale by itself."""
        kept = {lease.partition for lease in answer.kept}
        for partition, hold in holds.items():
            if not self._is_current(partition, hold):
                continue  # it ended meanwhile
            worker = self._workers[partition]
            if partition in kept:
                waited = partition in self.unknown or hold.until <= self._clock.monotonic()
                hold.until = sent + self._settings.fresh_s
                if waited:
                    worker.wake()
            elif partition not in answer.unknown:
                worker.lose()
        if news := [p for p in answer.unknown if p not in self.unknown]:
            what = f"renewing {len(news)} of {len(holds)} leases of {self._group}"
            self._report(f"{what}: {', '.join(news)}", answer.unknown[news[0]])
        others = {p: alone for p, alone in self.unknown.items() if p not in holds}
        self.unknown = others | dict.fromkeys(answer.unknown, len(holds) == 1)

    def _is_current(self, partition: str, hold: Hold) -> bool:
        worker = self._workers.get(partition)
        return worker is not None and worker.hold is hold
