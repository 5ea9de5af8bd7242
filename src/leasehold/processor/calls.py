"""Calls of one partition's handler, each within its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from leasehold.clock import within
from leasehold.errors import CallCancelled
from leasehold.ports import Clock
from leasehold.processor.handlers import Outcome, Stop
from leasehold.processor.work import Work
from leasehold.settings import Pace

T = TypeVar("T")


class Calls:
    def __init__(self, work: Work, clock: Clock, pace: Pace) -> None:
        self._work, self._clock, self._pace = work, clock, pace
        self.done, self.heard_at = 0, 0.0
        """How many events of its run the handler had done when it was last heard of, and when that
        was. Who is asked between two events sets both: a call for it would cost as much again. The
        number comes last, and is read first: a new one never comes with an old time."""
        self.overdue = 0
        """How many it had done when its time ran out: the one after these took too long."""
        self._asking = 0
        """Requests to a store that the handler is waiting for."""

    async def run(self, events: Sequence[Any], stop: Stop) -> Outcome | asyncio.Task[Outcome]:
        """What came of it; or the call itself, cancelled, if it took too long over an event."""
        self.done, self.heard_at = 0, self._clock.monotonic()
        try:
            return await self._limited(events, stop)
        except CallCancelled as error:
            return Outcome(done=self.done, error=error)

    async def _limited(self, events: Sequence[Any], stop: Stop) -> Outcome | asyncio.Task[Outcome]:
        limit_s = self._pace.handler_timeout_s
        if limit_s is None:
            return await self._work.handle(events, stop)
        call = asyncio.ensure_future(self._work.handle(events, stop))
        try:
            while True:
                self.overdue = self.done
                if (left_s := self._left_s(limit_s)) <= 0:
                    break
                with suppress(TimeoutError):
                    return await within(self._clock, left_s, asyncio.shield(call))
        finally:
            call.cancel()
        return call

    async def aside(self, request: Awaitable[T]) -> T:
        """The time that a handler waits for a store is not its own."""
        began = self._clock.monotonic()
        self._asking += 1
        try:
            return await request
        finally:
            self._asking -= 1
            now = self._clock.monotonic()
            self.heard_at = min(now, self.heard_at + now - began)

    def _left_s(self, limit_s: float) -> float:
        if self._asking:
            return self._pace.request_timeout_s  # which ends that
        return self.heard_at + limit_s - self._clock.monotonic()
