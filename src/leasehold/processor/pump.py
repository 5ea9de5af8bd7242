"""One partition at one instance: read, handle, checkpoint, until it is let go or lost.

``core.lifecycle`` decides; this module carries out one action at a time and reports back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from leasehold.clock import within
from leasehold.core import lifecycle
from leasehold.core.lifecycle import Again, Done, Handled, Pause, Phase, Read, Reason, Refused
from leasehold.core.model import Checkpoint, Lease
from leasehold.ports import Batch, Clock, Feed, LeaseStore

T = TypeVar("T")
Handle = Callable[[Lease, Batch], Awaitable[None]]
Report = Callable[[str, BaseException], None]
"""What could not be done, and why. It will be tried again."""


@dataclass(slots=True)
class Hold:
    """A lease in hand, shared by the host that renews it and the pump that works under it."""

    lease: Lease
    until: float
    """The monotonic time up to which new work may begin; renewals push it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    max_events: int = 500
    poll_interval_s: float = 0.5
    request_timeout_s: float = 5.0
    retry_s: float = 0.5
    retry_max_s: float = 30.0


class Pump:
    def __init__(
        self,
        hold: Hold,
        *,
        feed: Feed,
        store: LeaseStore,
        handle: Handle,
        clock: Clock,
        report: Report,
        pace: Pace,
    ) -> None:
        self.hold = hold
        self.life, self._action = lifecycle.begin()
        self._feed, self._store, self._handle = feed, store, handle
        self._clock, self._report, self._pace = clock, report, pace
        self._position = hold.lease.checkpoint
        self._batch = Batch(next=self._position)
        self._failures = 0
        self._signals: deque[lifecycle.Event] = deque()
        self._signalled = asyncio.Event()
        self._offered_to: str | None = None
        self._do = {
            Phase.OPENING: self._open,
            Phase.READING: self._read,
            Phase.HANDLING: self._handle_batch,
            Phase.SAVING: self._save,
            Phase.SPLITTING: self._split,
            Phase.CLOSING: self._close,
        }

    def let_go(self, offered_to: str | None, reason: Reason) -> None:
        """Finish the batch in hand, checkpoint, and release the lease to that member."""
        if self.life.ending is None:
            self._offered_to = offered_to
            self._signal(lifecycle.LetGo(reason))

    def lose(self) -> None:
        """The lease is gone: write nothing more."""
        self._signal(lifecycle.Lost())

    async def run(self) -> Reason:
        while self.life.phase is not Phase.CLOSED:
            self._signalled.clear()
            while self._signals:
                self._advance(self._signals.popleft())
            event = await self._perform(self._action)
            if event is not None:
                self._advance(event)
        return self.life.ending or Reason.SHUTDOWN

    def _signal(self, event: lifecycle.Event) -> None:
        self._signals.append(event)
        self._signalled.set()

    def _advance(self, event: lifecycle.Event) -> None:
        self.life, action = lifecycle.step(self.life, event)
        self._action = action or self._action

    async def _perform(self, action: lifecycle.Action) -> lifecycle.Event | None:
        """What came of it; None when a signal cut it short."""
        if isinstance(action, Pause):
            return Done() if await self._sleep(action.seconds) else None
        try:
            event = await self._do[action.phase]()
        except Exception as error:  # whatever the user's code, the feed or the store raises
            self._report(f"{action.phase.value} partition {self.hold.lease.partition}", error)
            self._failures += 1
            pace = self._pace
            return Again(min(pace.retry_s * 2 ** min(self._failures - 1, 16), pace.retry_max_s))
        if not isinstance(event, Again):
            self._failures = 0
        return event

    async def _open(self) -> lifecycle.Event:
        return Done()

    async def _read(self) -> lifecycle.Event:
        self._batch = await self._feed.read(
            self.hold.lease.partition, self._position, self._pace.max_events
        )
        if len(self._batch.events):
            return Read()
        return Read(ended=True) if self._batch.children else Again(self._pace.poll_interval_s)

    async def _handle_batch(self) -> lifecycle.Event:
        if self._clock.monotonic() >= self.hold.until:
            return Again(self._pace.poll_interval_s)  # not renewed in time: maybe not ours now
        await self._handle(self.hold.lease, self._batch)
        self._position = self._batch.next
        return Handled(save=True)

    async def _save(self) -> lifecycle.Event:
        wanted = replace(self.hold.lease, checkpoint=self._position, attempts=0)
        kept = await self._ask(self._store.checkpoint([wanted]))
        if not kept:
            return Refused()
        self.hold.lease = replace(self.hold.lease, checkpoint=kept[0].checkpoint, attempts=0)
        return Done()

    async def _split(self) -> lifecycle.Event:
        children: dict[str, Checkpoint] = dict(self._batch.children)
        done = await self._ask(self._store.split(self.hold.lease, children))
        return Done() if done else Refused()

    async def _close(self) -> lifecycle.Event:
        if self.life.ending in (Reason.BALANCED, Reason.SHUTDOWN):
            wanted = replace(self.hold.lease, offered_to=self._offered_to)
            await self._ask(self._store.release([wanted]))
        return Done()

    async def _ask(self, request: Awaitable[T]) -> T:
        return await within(self._clock, self._pace.request_timeout_s, request)

    async def _sleep(self, seconds: float) -> bool:
        """True after the whole pause, False when a signal came first."""
        try:
            await within(self._clock, seconds, self._signalled.wait())
        except TimeoutError:
            return True
        return False
