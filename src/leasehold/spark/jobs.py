"""Gathers the ranges that pumps want handled into few Spark jobs.

Every partition has a pump of its own, with its own checkpoint, retries and dead letters, as in any
processor. Only the handler calls meet here: those of one moment become one job, as far as the pace
allows. If it fails twice, each partition is tried alone, so that only the failing one is told of a
failure. During a backlog a second job, of other partitions, begins before the first one has ended;
a partition is never in two of them, so its commits stay in order. What was claimed while jobs were
quick is cut if they have become slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from typing import NamedTuple

from leasehold.clock import within
from leasehold.core.ranges import Range, there, without
from leasehold.errors import HandlerHung, SinkUnavailable, StaleBatch
from leasehold.ports import Clock
from leasehold.processor.handlers import NotHandled
from leasehold.spark.pacer import Pacer, SharedTime
from leasehold.spark.patience import Patience

log = logging.getLogger("leasehold.spark")
TRIES_TOGETHER = 2
CUT_FROM = 2
"""A range so many times as long as a job may be is cut. Less is not worth two jobs."""
ROUNDED = 0.01
"""How much larger than allowed a job may be, since shares of it are rounded."""
LOOK_S = 0.25
"""How often those that wait for a job are looked at: their lease may have to go."""
LOST = "the lease was not certain any more when the job was done, so its part is void"
NOT_BEGUN = "no job was begun for it"
Void = Mapping[str, SinkUnavailable | None]
"""By partition: why its part of a job did not take effect; None: its lease was lost."""
Untaken = dict[str, SinkUnavailable | NotHandled]
"""By partition: what its pump is told instead of that it was done."""


class SparkGone(SinkUnavailable):
    """Spark does nothing any more. No event is to blame, and only a new process will do."""


class Overdue(NotHandled):
    """A job that took much longer than a cycle should, and was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """One call of the user's handler."""

    tag: str
    """By which it is cancelled in Spark."""
    ranges: tuple[Range, ...]
    overdue_s: float = inf
    """How long it may take, before smaller ones are tried instead."""
    holders: Mapping[str, object] = field(default_factory=dict)
    """By partition: who waited for it when it began. One that outlives them must not be taken for
    that of the next ones."""

    @property
    def events(self) -> int:
        return sum(len(each) for each in self.ranges)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    range: Range
    size_bytes: float
    """About, when it was asked for."""
    alone: bool
    whole: bool
    """It cannot be cut."""
    asked_at: float
    done: asyncio.Future[int]


class _Size(NamedTuple):
    """Of a job."""

    ranges: int
    events: int
    bytes: float

    @classmethod
    def of(cls, some: Sequence[_Request]) -> _Size:
        events = sum(len(each.range) for each in some)
        return cls(len(some), events, sum(each.size_bytes for each in some))

    def and_of(self, more: _Request) -> _Size:
        size_bytes = self.bytes + more.size_bytes
        return _Size(self.ranges + 1, self.events + len(more.range), size_bytes)


class _Underway(NamedTuple):
    events: int
    full: bool
    """As large as it might be when it began: the pace may have grown since."""
    began_at: float
    next_at: float
    """When another may begin beside it."""
    apart: bool
    """It is of a partition that has jobs of its own, and says nothing of the others."""


Watched = Callable[[asyncio.Future[Void], SparkJob], Awaitable[Void]]


class Jobs:
    def __init__(
        self,
        run: Callable[[SparkJob], Void],
        *,
        threads: Executor,
        clock: Clock,
        gather_s: float,
        pacer: Pacer,
        watch: Watched,
        tag: str = "leasehold",
        max_bytes: float = inf,
        bytes_of: Callable[[Sequence[Range]], float] = lambda ranges: 0.0,
        wants: Callable[[str], bool] = lambda partition: True,
        holder: Callable[[str], object] = lambda partition: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``watch`` awaits a job that runs in a thread, and says what becomes of one that does not
        end. If it raises ``SparkGone``, no job is begun any more. ``bytes_of``: about how large
        the events of ranges are; a job has ``max_bytes`` of them. ``wants``: whether a partition
        still wants the job that it waits for. ``holder``: who holds a partition's lease now. While
        ``stopping`` none is begun."""
        self._run, self._threads, self._clock = run, threads, clock
        self._gather_s, self._pacer, self._watch = gather_s, pacer, watch
        self._tag, self._numbers = tag, count(1)
        self._max_bytes, self._bytes_of = max_bytes, bytes_of
        self._wants, self._stopping, self._holder = wants, stopping, holder
        self._waiting: list[_Request] = []
        self._running: dict[asyncio.Task[None], _Underway] = {}
        self._time = SharedTime()
        self._patience = Patience(pacer)
        self._abandoned: set[str] = set()
        """Partitions of calls that were given up and have not ended: none begins beside them."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._gone: SparkGone | None = None

    async def handle(self, wanted: Range, *, alone: bool, whole: bool = False) -> int:
        """Returns once a job with this range has succeeded: up to where, for the range may be cut
        unless it is ``alone`` or ``whole``. Raises what it failed with, or ``NotHandled`` if there
        was none because its lease has to go, or if it was ``Overdue``."""
        if self._gone is not None:
            raise self._gone
        loop, now = asyncio.get_running_loop(), self._clock.monotonic()
        size = self._bytes_of([wanted])
        request = _Request(wanted, size, alone, alone or whole, now, loop.create_future())
        self._ask([request])
        return await request.done

    def _ask(self, requests: Sequence[_Request]) -> None:
        self._waiting = sorted([*self._waiting, *requests], key=lambda each: each.asked_at)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        while self._waiting:
            self._changed.clear()
            self._drop_unwanted()
            wait_s = LOOK_S
            while (ready := self._ready()) and not self._stopping():
                wait_s = self._begins_in_s(ready)
                if wait_s > 0:
                    break
                self._begin(self._take(ready))
                wait_s = LOOK_S
            with suppress(TimeoutError):
                await within(self._clock, min(wait_s, LOOK_S), self._changed.wait())

    def _drop_unwanted(self) -> None:
        """A lease that has to go does not wait for a job that has not begun."""
        for request in list(self._waiting):
            if request.done.done():
                self._waiting.remove(request)
            elif self._gone is not None or not self._wants(request.range.partition):
                self._waiting.remove(request)
                _settle(request, self._gone or NotHandled(NOT_BEGUN))

    def _ready(self) -> list[_Request]:
        """Jobs of single partitions that are slow must not take all the room there is."""
        ready = [each for each in self._waiting if each.range.partition not in self._abandoned]
        if not any(each.apart for each in self._running.values()):
            return ready
        return [each for each in ready if not self._patience.is_apart(each.range.partition)]

    def _begins_in_s(self, ready: Sequence[_Request]) -> float:
        """When the next job may begin, if nothing else happens until then."""
        now = self._clock.monotonic()
        gathered_at = min(each.asked_at for each in ready) + self._gather_s
        largest = max(ready, key=lambda each: len(each.range))
        if not self._fits(_Size.of(ready).and_of(largest)) or self._is_alone(ready[0]):
            gathered_at = now  # one more like these would be for the job after it
        if not self._running:
            return gathered_at - now
        if len(self._running) >= self._pacer.jobs_at_once:
            return LOOK_S
        return max(gathered_at, *(each.next_at for each in self._running.values())) - now

    def _take(self, ready: Sequence[_Request]) -> list[_Request]:
        """Those that wait longest, as many as a job may have; one that failed before, alone."""
        first, *others = ready
        some, size = [self._cut(first)], _Size.of([first])
        if not self._is_alone(first):
            for each in others:
                if self._is_alone(each):
                    continue
                size = size.and_of(each)
                if not self._fits(size):
                    break
                some.append(each)
        begun = {each.done for each in some}
        self._waiting = [each for each in self._waiting if each.done not in begun]
        return some

    def _is_alone(self, request: _Request) -> bool:
        return request.alone or self._patience.is_apart(request.range.partition)

    def _fits(self, size: _Size) -> bool:
        """Whether it is one job. Shares of what it may have are rounded, and the last one of them
        is not worth a job of its own."""
        most = self._pacer.events
        if size.events > most + min(size.ranges, most // 100):
            return False
        return size.bytes <= self._max_bytes * (1 + ROUNDED)

    def _cut(self, request: _Request) -> _Request:
        """What was claimed before the pace became slow may be far more than a job may have now."""
        wanted, most = request.range, self._patience.pacer_of([request.range]).events
        events = most if len(wanted) > CUT_FROM * most else len(wanted)
        if request.size_bytes > self._max_bytes * (1 + ROUNDED):
            fitting = int(len(wanted) * self._max_bytes / request.size_bytes)
            events = max(1, min(events, fitting))
        if request.whole or events == len(wanted):
            return request
        return replace(request, range=replace(wanted, end=wanted.first + events))

    def _begin(self, requests: Sequence[_Request]) -> None:
        task = asyncio.ensure_future(self._attempt(requests))
        events, now = sum(len(each.range) for each in requests), self._clock.monotonic()
        apart = self._patience.is_apart(requests[0].range.partition)
        full = self._pacer.is_full(events)
        next_at = now if apart else now + self._pacer.begin_next_s(events, full=full)
        self._running[task] = _Underway(events, full, now, next_at, apart)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._running = {other: self._left_alone(each) for other, each in self._running.items()}
        self._changed.set()

    def _left_alone(self, job: _Underway) -> _Underway:
        """It shared the cores with the one that has ended: so far it did about half of what it
        would have done alone."""
        if job.apart:
            return job
        now = self._clock.monotonic()
        worked_s = (now - job.began_at) / 2
        begin_next_s = self._pacer.begin_next_s(job.events, full=job.full)
        return job._replace(next_at=now + max(0.0, begin_next_s - worked_s))

    async def _attempt(self, requests: Sequence[_Request]) -> None:
        try:
            error, void = await self._together([request.range for request in requests])
            passing = isinstance(error, SinkUnavailable | NotHandled)
            if error is None or len(requests) == 1 or passing:
                for request in requests:
                    _settle(request, error or void.get(request.range.partition))
                return
        except BaseException as error:  # it was cancelled, and so nobody is told otherwise
            for request in requests:
                _settle(request, error)
            raise
        self._ask([replace(request, alone=True) for request in requests])

    async def _together(self, ranges: Sequence[Range]) -> tuple[BaseException | None, Untaken]:
        tries = 1 if len(ranges) == 1 else TRIES_TOGETHER
        for _ in range(tries):
            error, void = await self._job(ranges)
            if error is None or isinstance(error, SinkUnavailable | NotHandled):
                break
        return error, void

    async def _job(self, ranges: Sequence[Range]) -> tuple[BaseException | None, Untaken]:
        """What it failed with, and by partition why its part did not take effect. What a sink has
        in part is done in two jobs: one of what it has, and then one of the rest. Between jobs a
        lease may have to go, or all of them."""
        left = [each for each in ranges if len(each)]
        void: Untaken = {}
        while left:
            if self._gone is not None:
                return self._gone, void
            over = {each.partition for each in left if self._is_over(each.partition)}
            if over:
                void |= {partition: NotHandled(NOT_BEGUN) for partition in over}
                left = [each for each in left if each.partition not in over]
                continue
            try:
                out = await self._watched(left)
            except SparkGone as gone:
                self._gone = gone
                return gone, void
            except StaleBatch as found:
                fewer = without(left, found.begin_at)
                if fewer == left:
                    return found, void
                out = {p: at for p, at in found.begin_at.items() if not isinstance(at, int)}
                had = there(left, found.begin_at)
                if had and had != left:  # one sink has it, but there may be others
                    error, more = await self._job(had)
                    void |= more
                    if error is not None:
                        return error, void
                    fewer = [each for each in fewer if each.partition not in more]
                left = fewer
            except BaseException as error:
                return error, void
            else:
                left = []
            void |= {partition: why or SinkUnavailable(LOST) for partition, why in out.items()}
        return None, void

    def _is_over(self, partition: str) -> bool:
        return self._stopping() or not self._wants(partition) or partition in self._abandoned

    async def _watched(self, ranges: Sequence[Range]) -> Void:
        partitions = [each.partition for each in ranges]
        job = SparkJob(
            tag=f"{self._tag}-{next(self._numbers)}",
            ranges=tuple(ranges),
            overdue_s=self._patience.limit_s(ranges),
            holders={partition: self._holder(partition) for partition in partitions},
        )
        began = self._clock.monotonic()
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._run, job)
        begun = self._time.begin(began)
        try:
            void = await self._watch(running, job)
        except (HandlerHung, NotHandled) as error:
            seconds, overdue = self._clock.monotonic() - began, isinstance(error, Overdue)
            if overdue or isinstance(error, HandlerHung):
                self._patience.cancelled(ranges, seconds, overdue=overdue)
            if not overdue and not running.done():
                self._abandon(running, partitions)
            raise
        finally:
            ended = self._clock.monotonic()
            own_s = self._time.end(ended, begun)
        self._patience.done(ranges, ended - began, own_s=own_s, limit_s=job.overdue_s)
        return void

    def _abandon(self, running: asyncio.Future[Void], partitions: Sequence[str]) -> None:
        """Its events must not be in two calls at once, should their lease come back here."""
        if not (beside := set(partitions) - self._abandoned):
            return
        log.warning(
            "a job of partitions %s does not end, although nobody waits for it any more: its "
            "on_batch waits for something other than Spark. Until it ends, this instance begins no "
            "other job of these partitions",
            ", ".join(sorted(beside)),
        )
        self._abandoned |= beside

        def over(_: object) -> None:
            self._abandoned -= beside
            self._changed.set()

        running.add_done_callback(over)


def _settle(request: _Request, error: BaseException | None) -> None:
    future = request.done
    if future.done():  # nobody waits any more
        return
    if error is None:
        future.set_result(request.range.end)
    elif isinstance(error, StopIteration):  # which no future takes
        future.set_exception(RuntimeError(repr(error)))
    else:
        future.set_exception(error)
