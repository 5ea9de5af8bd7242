"""One partition at one instance: read, handle, checkpoint, until it is let go or lost.

``core.lifecycle`` decides what comes next, ``core.retry`` what a failure means, ``core.policy``
when a checkpoint is due; this module carries out one action at a time and reports back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from random import random
from typing import Any, Literal, Protocol, TypeVar

from leasehold.clock import within
from leasehold.core import lifecycle
from leasehold.core.lifecycle import Again, Done, Handled, Pause, Phase, Read, Reason, Refused
from leasehold.core.model import Checkpoint, Lease
from leasehold.core.policy import Every
from leasehold.core.retry import Bisection, Retry, decide, resume
from leasehold.errors import BadInput, HandlerHung, PositionGone, SinkUnavailable
from leasehold.ports import Batch, Clock, Feed, LeaseStore
from leasehold.processor.handlers import Once, Outcome, Stop

T = TypeVar("T")
Report = Callable[[str, BaseException], None]
"""What could not be done, and why. It will be tried again."""


@dataclass(slots=True)
class Hold:
    """A lease in hand, shared by the host that renews it and the pump that works under it."""

    lease: Lease
    until: float
    """The monotonic time up to which new work may begin; renewals push it on."""
    orphaned: bool = False
    """Its former owner died or was overruled, maybe because of the batch at the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    max_events: int = 1000
    poll_interval_s: float = 0.5
    request_timeout_s: float = 5.0
    retry_s: float = 0.5
    retry_max_s: float = 30.0
    handler_timeout_s: float | None = None
    gone: Literal["earliest", "fail"] = "earliest"
    read_ahead: bool = True
    """Whether to read the next batch while one is handled."""

    def check(self) -> None:
        """Refuse settings that cannot work, by name."""
        if not isinstance(self.max_events, int) or not self.max_events >= 1:
            raise BadInput(f"max_events must be 1 or more, not {self.max_events!r}")
        for name in ("poll_interval_s", "request_timeout_s", "retry_s", "retry_max_s"):
            if not 0 < getattr(self, name) < inf:
                raise BadInput(f"{name} must be more than 0 seconds, not {getattr(self, name)!r}")
        if self.handler_timeout_s is not None and not 0 < self.handler_timeout_s < inf:
            raise BadInput(
                f"handler_timeout_s must be more than 0 seconds, not {self.handler_timeout_s!r}; "
                "leave it out for no limit"
            )
        if self.gone not in ("earliest", "fail"):
            raise BadInput(f'gone must be "earliest" or "fail", not {self.gone!r}')


class Work(Protocol):
    """What is done with the events of one partition: the user's code and what surrounds it."""

    one_by_one: bool
    interruptible: bool
    """Whether a call that takes too long can be ended."""

    async def open(self) -> None: ...

    async def handle(self, events: Sequence[Any], stop: Stop) -> Outcome: ...

    async def failed(self, error: BaseException) -> None: ...

    async def bury(self, event: Any, error: str, attempts: int) -> None:
        """Put a poison event into the dead-letter store."""

    def give_up(self, error: BaseException) -> None:
        """The user chose to stop the processor rather than go on without this."""

    async def close(self, reason: Reason) -> None: ...


class Pump:
    def __init__(
        self,
        hold: Hold,
        *,
        feed: Feed,
        store: LeaseStore,
        work: Work,
        clock: Clock,
        report: Report,
        pace: Pace,
        retry: Retry | None = None,
        policy: Every | None = None,
        chance: Callable[[], float] = random,
        save_when_idle: bool = False,
        turn: threading.Lock | None = None,
    ) -> None:
        self.hold = hold
        self.life, self._action = lifecycle.begin()
        self._feed, self._store, self._work = feed, store, work
        self._clock, self._report, self._pace = clock, report, pace
        self._retry, self._policy = retry or Retry(), policy or Every(batches=1)
        self._chance, self._save_when_idle = chance, save_when_idle
        self._position = hold.lease.checkpoint
        self._batch = Batch(next=self._position)
        self._has_read = False
        self._done = 0
        """Events of the batch that are finished."""
        self._ahead: asyncio.Task[Batch] | None = None
        self._attempts = max(hold.lease.attempts, 1 if hold.orphaned else 0)
        self._suspect = hold.orphaned and hold.lease.attempts > 0
        """Was being tried when an instance died, and not for the first time."""
        self._turn = turn or threading.Lock()
        self._error = "the instance that handled it died"
        self._unsaved_events = self._unsaved_batches = 0
        self._saved_at = clock.monotonic()
        self._events_due = self._save_at = inf
        self._called_at, self._call_done = 0.0, 0
        """When the handler was given an event last, and how many of its run it had done then."""
        self._failures = 0
        self._closed = False
        self._signals: deque[lifecycle.Event] = deque()
        self._signalled = asyncio.Event()
        self._offered_to: str | None = None
        self._do = {
            Phase.OPENING: self._open,
            Phase.READING: self._read,
            Phase.HANDLING: self._handle,
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
        try:
            while self.life.phase is not Phase.CLOSED:
                self._signalled.clear()
                while self._signals:
                    self._advance(self._signals.popleft())
                event = await self._perform(self._action)
                if event is not None:
                    self._advance(event)
        finally:
            self._forget_ahead()
        return self.life.ending or Reason.SHUTDOWN

    @property
    def position(self) -> Checkpoint | None:
        """Everything before it is handled. None until the feed was read: it may be made anew."""
        return self._position if self._has_read else None

    @property
    def held(self) -> bool:
        """Whether what is being done here may still take effect. Any thread may ask."""
        lost = lifecycle.Lost() in self._signals or self.life.ending is Reason.LOST
        return not lost and not self._stale

    async def save(self, position: Checkpoint) -> bool:
        """The user's own checkpoint. False: the lease is somebody else's."""
        return await self._write(position, 0, by_hand=True)

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
        except Exception as error:  # whatever the feed, the store or a callback raises
            self._report(f"{action.phase.value} partition {self.hold.lease.partition}", error)
            self._failures += 1
            pace = self._pace
            delay_s = min(pace.retry_s * 2 ** min(self._failures - 1, 16), pace.retry_max_s)
            return Again(delay_s, self._unsaved)
        self._failures = 0
        return replace(event, unsaved=self._unsaved) if isinstance(event, Again) else event

    # The actions, one per phase

    async def _open(self) -> lifecycle.Event:
        await self._work.open()
        return Done()

    async def _read(self) -> lifecycle.Event:
        if self._done < len(self._batch.events):
            return Read()
        try:
            self._batch, self._done = await self._fetch(), 0
            self._has_read = True
        except PositionGone as gone:
            return await self._without(gone)
        if len(self._batch.events):
            if self._work.one_by_one:
                self._batch = replace(self._batch, events=Once(self._batch.events))
            if self._pace.read_ahead:
                self._ahead = asyncio.ensure_future(self._read_from(self._batch.next))
            return Read()
        if self._batch.children:
            return Read(ended=True)
        if self._batch.next.next_sequence > self._position.next_sequence and not await self._pass():
            return Refused()
        if self._unsaved and (self._save_when_idle or self._due):
            return Handled(save=True)
        return Again(self._pace.poll_interval_s)

    async def _handle(self) -> lifecycle.Event:
        if self._stale:
            return Again(self._pace.poll_interval_s)
        events = self._batch.events[self._done :]
        if not len(events):
            return self._handled()
        if self._attempts:
            return await self._handle_again(events)
        outcome = await self._try(events)
        if outcome is None:
            return await self._yield(self._search(events))
        self._finished(outcome.done)
        if outcome.error is None:
            return self._handled()
        if isinstance(outcome.error, SinkUnavailable):
            raise outcome.error  # no fault of the events, so nothing to count
        return await self._failed(outcome.error, self._search(events[outcome.done :]))

    async def _save(self) -> lifecycle.Event:
        return Done() if await self._write(self._position, self._attempts) else Refused()

    async def _split(self) -> lifecycle.Event:
        children: dict[str, Checkpoint] = dict(self._batch.children)
        done = await self._ask(self._store.split(self.hold.lease, children))
        return Done() if done else Refused()

    async def _close(self) -> lifecycle.Event:
        reason = self.life.ending or Reason.SHUTDOWN
        if not self._closed:
            self._closed = True
            try:
                await self._work.close(reason)
            except Exception as error:
                self._report(f"closing partition {self.hold.lease.partition}", error)
        if reason in (Reason.BALANCED, Reason.SHUTDOWN, Reason.HUNG):
            wanted = replace(self.hold.lease, offered_to=self._offered_to)
            await self._ask(self._store.release([wanted]))
        return Done()

    # Reading

    async def _fetch(self) -> Batch:
        """The batch read in the background, or a new one if there was nothing at the time."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            batch = await ahead
            if len(batch.events):
                return batch
        return await self._read_from(self._position)

    async def _read_from(self, position: Checkpoint) -> Batch:
        return await self._feed.read(self.hold.lease.partition, position, self._pace.max_events)

    async def _pass(self) -> bool:
        """Go on behind what the feed has nothing of any more, such as deleted documents, and with
        them whatever failed there: those who wait for the end of the feed look at the checkpoint.
        False: the lease is somebody else's."""
        position, all_saved = self._batch.next, self._position == self.hold.lease.checkpoint
        if self._policy.manual and all_saved and not await self._write(position, 0, by_hand=True):
            return False
        self._position, self._attempts, self._suspect = position, 0, False
        self._unsaved_events += 1  # as the policy sees it
        self._unsaved_batches += 1
        return True

    def _forget_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None

    async def _without(self, gone: PositionGone) -> lifecycle.Event:
        """What to do about a position that the feed no longer has."""
        self._forget_ahead()
        await self._work.failed(gone)
        if self._pace.gone == "fail":
            self._work.give_up(gone)
            return Again(self._pace.retry_max_s)
        self._position, self._attempts = gone.earliest, 0
        if gone.reason != "retention":
            return await self._go_back(gone.earliest)
        return Again(0.0) if await self._write(self._position, 0, by_hand=True) else Refused()

    async def _go_back(self, position: Checkpoint) -> lifecycle.Event:
        """The feed was made anew: the checkpoint has to go back, which only a rewind may."""
        lease = self.hold.lease
        mine = (lease.partition, lease.owner, lease.epoch)
        for _ in range(5):  # a renewal may come between the look and the rewind
            leases = (await self._ask(self._store.snapshot(lease.group))).leases
            found = [seen for seen in leases if (seen.partition, seen.owner, seen.epoch) == mine]
            wanted = [replace(seen, checkpoint=position) for seen in found]
            if not wanted or len(await self._ask(self._store.rewind(wanted))):
                break
        return Refused()  # the rewind fenced this owner off too; the lease is taken anew

    # Handling

    async def _handle_again(self, events: Sequence[Any]) -> lifecycle.Event:
        """A batch that failed before, whole or bisected. Each try is counted before it begins, so
        that one that kills the process counts as well."""
        search = self._search(events)
        if search.poison:
            await self._work.bury(events[0], self._error, self._retry.attempts)
            return await self._proceed(search.dead_lettered(), 1)
        if not (self._suspect or (self.hold.orphaned and search.failed().poison)):
            return await self._try_counted(search, events)
        # One suspect at a time in a process, or one that kills it would have others blamed that
        # were only at hand.
        if not self._turn.acquire(blocking=False):
            return Again(self._pace.poll_interval_s)
        try:
            return await self._try_counted(search, events)
        finally:
            self._turn.release()

    async def _try_counted(self, search: Bisection, events: Sequence[Any]) -> lifecycle.Event:
        if not await self._write(self._position, search.attempts_if_unfinished):
            return Refused()
        if self._stale:  # the store took its time
            return Again(self._pace.poll_interval_s)
        size = len(search.target)
        outcome = await self._try(events[:size])
        if outcome is None:
            return await self._yield(search)
        if outcome.error is None:
            return await self._proceed(search.succeeded(), size)
        if isinstance(outcome.error, SinkUnavailable):
            raise outcome.error
        return await self._failed(outcome.error, search)

    def _search(self, events: Sequence[Any]) -> Bisection:
        size = 1 if self._work.one_by_one else len(events)
        return resume(self._retry, 0, size, self._attempts)

    async def _try(self, events: Sequence[Any]) -> Outcome | None:
        """None: a plain function that did not come back in time, and is still at it."""
        limit_s, policy = self._pace.handler_timeout_s, self._policy
        self._events_due = inf if policy.events is None else policy.events - self._unsaved_events
        self._save_at = inf if policy.seconds is None else self._saved_at + policy.seconds
        if limit_s is None:
            return await self._work.handle(events, self._enough)
        self._called_at, self._call_done = self._clock.monotonic(), 0
        call = asyncio.ensure_future(self._work.handle(events, self._enough))
        try:
            while (left_s := self._called_at + limit_s - self._clock.monotonic()) > 0:
                with suppress(TimeoutError):
                    return await within(self._clock, left_s, asyncio.shield(call))
        finally:
            call.cancel()
        return await self._hung(call, limit_s)

    async def _hung(self, call: asyncio.Task[Outcome], limit_s: float) -> Outcome | None:
        hung = HandlerHung(
            f"the handler of partition {self.hold.lease.partition} did not come back within "
            f"handler_timeout_s={limit_s:g}"
        )
        if not self._work.interruptible:
            self.let_go(None, Reason.HUNG)  # first, so that the thread begins nothing more
        with suppress(TimeoutError):
            await self._ask(asyncio.wait((call,)))
        if self._work.interruptible:
            return Outcome(done=self._call_done, error=hung)
        self._finished(self._call_done)
        self._error = str(hung)
        await self._work.failed(hung)
        return None

    async def _failed(self, error: BaseException, search: Bisection) -> lifecycle.Event:
        self._attempts = search.failed().attempts
        self._error = f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._work.give_up(error)
            await self._write(self._position, self._attempts)
            return Again(self._pace.retry_max_s)
        await self._work.failed(error)
        decision = decide(self._retry, self._attempts, self._chance())
        if not await self._write(self._position, self._attempts):
            return Refused()
        if decision.do == "give-up":
            self._work.give_up(error)
            return Again(self._pace.retry_max_s)
        return Again(decision.delay_s)

    async def _proceed(self, search: Bisection, count: int) -> lifecycle.Event:
        self._attempts = search.attempts
        self._suspect = self._suspect and self._attempts > 0
        self._finished(count)
        if not await self._write(self._position, self._attempts):
            return Refused()
        return Again(0.0) if self._done < len(self._batch.events) else self._handled()

    async def _yield(self, search: Bisection) -> lifecycle.Event:
        """Others may try; what the hung call still does is fenced off."""
        self._attempts = search.failed().attempts
        await self._write(self._position, self._attempts)
        return Again(self._pace.retry_max_s)

    def _finished(self, count: int) -> None:
        if not count:
            return
        self._done += count
        self._unsaved_events += count
        if self._done == len(self._batch.events):
            self._position = self._batch.next
            self._unsaved_batches += 1
        else:
            last = self._batch.events[self._done - 1]
            self._position = Checkpoint(next_sequence=last.sequence + 1, token=last.offset)

    def _handled(self) -> lifecycle.Event:
        return Handled(save=self._due, unsaved=self._unsaved)

    @property
    def _unsaved(self) -> bool:
        return self._unsaved_events > 0 and not self._policy.manual

    @property
    def _stale(self) -> bool:
        """Not renewed in time: maybe not ours any more, so nothing new may begin."""
        return self._clock.monotonic() >= self.hold.until

    @property
    def _due(self) -> bool:
        since = self._clock.monotonic() - self._saved_at
        return self._policy.due(self._unsaved_events, since, self._unsaved_batches)

    def _enough(self, done: int) -> bool:
        """Asked between two events, maybe from a thread, maybe long after the lease was let go.

        It is the one thing done for every event, so what does not change meanwhile is in
        ``_events_due`` and ``_save_at``.
        """
        now = self._called_at = self._clock.monotonic()
        self._call_done = done
        return (
            done >= self._events_due
            or now >= self._save_at
            or now >= self.hold.until
            or len(self._signals) > 0
            or self.life.ending is not None
        )

    # The store

    async def _write(self, position: Checkpoint, attempts: int, *, by_hand: bool = False) -> bool:
        """Checkpoint and attempts, if the lease is still ours. Where the user checkpoints by hand,
        failures on the way to the next one are not the stored position's, and stay in memory."""
        lease = self.hold.lease
        if self._policy.manual and not by_hand and position != lease.checkpoint:
            return True
        wanted = replace(lease, checkpoint=position, attempts=attempts)
        kept = await self._ask(self._store.checkpoint([wanted]))
        if kept:
            self.hold.lease = replace(lease, checkpoint=kept[0].checkpoint, attempts=attempts)
            self._unsaved_events = self._unsaved_batches = 0
            self._saved_at = self._clock.monotonic()
        return bool(kept)

    async def _ask(self, request: Awaitable[T]) -> T:
        return await within(self._clock, self._pace.request_timeout_s, request)

    async def _sleep(self, seconds: float) -> bool:
        """True after the whole pause, False when a signal came first."""
        with suppress(TimeoutError):
            await within(self._clock, seconds, self._signalled.wait())
            return False
        return True
