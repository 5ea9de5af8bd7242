"""A job under watch: it is cancelled at its time limit or when nobody wants it any more, and a
Spark that does nothing is noticed.

A job's time begins when it does: what it waited for behind others is not its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol

from pyspark import SparkContext
from pyspark.sql import SparkSession

from leasehold.clock import within
from leasehold.errors import HandlerHung, StaleBatch
from leasehold.ports import Clock
from leasehold.processor.handlers import NotHandled
from leasehold.spark.jobs import LOOK_S, Overdue, SparkGone, SparkJob, Void

log = logging.getLogger("leasehold.spark")
CANCEL_S = 30.0
"""How long a cancelled job may take to end."""
CANCEL_EVERY_S = 1.0


class Pulse(Protocol):
    """What can be asked of Spark while a job runs."""

    def progress(self) -> Mapping[int, int]:
        """How many tasks have ended, by stage under way; empty if Spark does not tell."""

    def beat(self) -> None:
        """Returns once Spark has run a job of no work."""

    def cancel(self, tag: str) -> None:
        """End the job that has this tag."""


class Watch:
    def __init__(
        self,
        pulse: Pulse,
        *,
        threads: Executor,
        clock: Clock,
        limit_s: float | None,
        stall_s: float,
        gone: Callable[[SparkGone], None],
        unwanted: Callable[[SparkJob], str | None] = lambda job: None,
        cancels: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """``limit_s``: how long a job may take. ``stall_s``: how long one may take without any task
        that ends, before Spark is asked for a sign of life; it has as long again to give one.
        ``gone`` is told once that it gave none. ``unwanted``: why nobody wants a job any more, so
        that it is to be cancelled. ``cancels`` is told why, once for each job."""
        self._pulse, self._threads, self._clock = pulse, threads, clock
        self._limit_s, self._stall_s, self._gone = limit_s or inf, stall_s, gone
        self._unwanted, self._cancels = unwanted, cancels

    async def __call__(self, running: asyncio.Future[Void], job: SparkJob) -> Void:
        """Raises what the job fails with; if it was cancelled, ``HandlerHung``, ``NotHandled`` or
        ``Overdue``; ``SparkGone``."""
        began = self._clock.monotonic()
        end_at, ask_at = began + self._limit_s, began + self._stall_s
        overdue_at, overdue = began + job.overdue_s, False
        say_at = overdue_at + CANCEL_S
        beat: asyncio.Future[None] | None = None
        seen: Mapping[int, int] = {}
        while not await self._done(running, min(end_at, ask_at) - self._clock.monotonic()):
            now = self._clock.monotonic()
            if now >= end_at:
                limit = f"handler_timeout_s={self._limit_s:g}"
                hung = HandlerHung(f"a job took longer than {limit} and was cancelled")
                self._cancels("timeout")
                return await self._cancelled(running, job, hung)
            if (why := self._unwanted(job)) is not None:
                self._cancels(why)
                return await self._cancelled(running, job, NotHandled(why))
            if now >= overdue_at:
                if not overdue:
                    self._cancels("overdue")
                # Again and again: it may be between two jobs of Spark's. It is waited for even so,
                # or its events would be in two jobs at once.
                overdue, overdue_at = True, now + CANCEL_EVERY_S
                await self._ask(lambda: self._pulse.cancel(job.tag))
            if now >= say_at:
                say_at = now + (now - began)  # less and less often
                self._say_it_hangs(job, now - began)
            if now < ask_at:
                continue
            progress = await self._ask(self._pulse.progress) or {}
            if beat is None or beat.done():
                beat = self._begin(self._pulse.beat)
                beat.add_done_callback(forget)
            elif all(progress.get(stage) == ended for stage, ended in seen.items()):
                self._give_up(
                    f"for {self._stall_s:g} s no task ended, and a job of no work did not either: "
                    "Spark does nothing any more. Start this process again; if single tasks may "
                    "take longer than that, raise stall_s"
                )
            seen, ask_at = progress, self._clock.monotonic() + self._stall_s
        try:
            return await running
        except Exception as failed:
            if overdue and not isinstance(failed, StaleBatch):
                raise Overdue("it took too long, so smaller jobs are tried") from failed
            raise

    async def _cancelled(
        self, running: asyncio.Future[Void], job: SparkJob, error: HandlerHung | NotHandled
    ) -> Void:
        give_up_at = self._clock.monotonic() + CANCEL_S
        while not running.done() and self._clock.monotonic() < give_up_at:
            # Again and again: Spark may not have begun it yet.
            await self._ask(lambda: self._pulse.cancel(job.tag))
            await self._done(running, CANCEL_EVERY_S)
        if not running.done():
            if isinstance(error, HandlerHung):
                self._give_up(f"{error}, and does not end")
            running.add_done_callback(forget)
            raise error
        try:
            return await running  # it may have been done just then
        except StaleBatch:
            raise
        except Exception as failed:
            raise error from failed

    def _say_it_hangs(self, job: SparkJob, seconds: float) -> None:
        partitions = ", ".join(each.partition for each in job.ranges)
        log.warning(
            "a job of partitions %s has run for %.0f s and does not end although it was cancelled "
            "in Spark: its on_batch waits for something else. Until it ends, these partitions "
            "stand still; with handler_timeout_s, this instance would stop and let them go",
            partitions,
            seconds,
        )

    def _give_up(self, why: str) -> None:
        gone = SparkGone(why)
        self._gone(gone)
        raise gone

    async def _done(self, job: asyncio.Future[Any], seconds: float) -> bool:
        """Whether it is, after these seconds or a look's time at most."""
        with suppress(TimeoutError):
            await within(self._clock, max(0.0, min(seconds, LOOK_S)), asyncio.wait((job,)))
        return job.done()

    async def _ask(self, question: Callable[[], Any]) -> Any:
        """In a thread, and no longer than Spark may take for anything: it may not answer at all."""
        with suppress(Exception):
            return await within(self._clock, self._stall_s, self._begin(question))
        return None

    def _begin(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)


def forget(call: asyncio.Future[Any]) -> None:
    """Nobody waits for it."""
    if not call.cancelled():
        call.exception()


class SparkPulse:
    """Spark as far as it tells: of tasks only where there is a context, which Connect has not."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cancelled: set[str] = set()
        try:
            self._context: SparkContext | None = spark.sparkContext
        except Exception:
            self._context = None

    @contextmanager
    def tagged(self, *tags: str) -> Iterator[None]:
        """Jobs that this thread begins meanwhile can be cancelled, by any other."""
        # A session's own tags can be used by the thread that has them only; not so with Connect.
        at = self._context
        add, remove = (
            (self._spark.addTag, self._spark.removeTag)
            if at is None
            else (at.addJobTag, at.removeJobTag)
        )
        for tag in tags:
            add(tag)
        try:
            yield
        finally:
            for tag in tags:
                with suppress(Exception):  # Spark may be gone
                    remove(tag)

    def progress(self) -> Mapping[int, int]:
        if self._context is None:
            return {}
        tracker = self._context.statusTracker()
        stages = (tracker.getStageInfo(each) for each in tracker.getActiveStageIds())
        return {each.stageId: each.numCompletedTasks for each in stages if each is not None}

    def beat(self) -> None:
        self._spark.range(1).collect()

    def was_cancelled(self, tag: str) -> bool:
        return tag in self._cancelled

    def cancel(self, tag: str) -> None:
        self._cancelled.add(tag)
        if self._context is None:
            self._spark.interruptTag(tag)
        else:
            self._context.cancelJobsWithTag(tag)
