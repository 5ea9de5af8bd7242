"""One partition at one instance: read, handle, checkpoint, until it is let go or lost.

``core.lifecycle`` decides what comes next, ``core.retry`` what a failure means, ``settings.Every``
when a checkpoint is due; this module carries out one action at a time and reports back.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from random import random
from typing import Any, Protocol, TypeVar, runtime_checkable

from leasehold.clock import within
from leasehold.core import lifecycle, progress
from leasehold.core.breaker import TryAgain, Wait
from leasehold.core.lifecycle import Again, Done, Handled, Pause, Phase, Read, Reason, Refused
from leasehold.core.model import Checkpoint
from leasehold.core.retry import Bisection, decide, resume
from leasehold.errors import (
    HandlerHung,
    LeaseLost,
    PositionGone,
    ReadHung,
    blameless,
)
from leasehold.ports import Batch, Clock, Feed, LeaseStore, traced_text
from leasehold.processor.budget import Budget
from leasehold.processor.calls import Calls
from leasehold.processor.checkpoints import Checkpoints, Saved
from leasehold.processor.handlers import Once, Outcome
from leasehold.processor.letter_gate import LetterGate
from leasehold.processor.news import News
from leasehold.processor.reader import Reader
from leasehold.processor.turns import TURN_S, Turns
from leasehold.processor.work import Hold, Report, Work, answered
from leasehold.settings import CHECKPOINT, Every, Pace, Retry

T = TypeVar("T")
AT_LEAST_S = 0.01
"""Waiting for less may end before the time has come, by rounding, again and again."""


@runtime_checkable
class ReadsLate(Protocol):
    """Events that are read when somebody asks for one, which blocks."""

    def sequence_at(self, place: int) -> int: ...


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
        news: News | None = None,
        budget: Budget | None = None,
        turns: Turns | None = None,
        gate: LetterGate | None = None,
        on_saved: Saved | None = None,
    ) -> None:
        self.hold = hold
        self.life, self._action = lifecycle.begin()
        self._store, self._work = store, work
        self._reader = Reader(
            feed, hold.lease.partition, pace, budget, lease=hold.lease, on_lost=self.lose
        )
        self._news = news or News(feed, clock, pace)
        self._clock, self._report, self._pace = clock, report, pace
        self._retry = retry or Retry()
        self._chance, self._save_when_idle = chance, save_when_idle
        self._checkpoints = Checkpoints(
            hold,
            store,
            policy or CHECKPOINT,
            clock=clock,
            limit_s=pace.request_timeout_s,
            on_saved=on_saved,
        )
        self._calls = Calls(work, clock, pace)
        self._batch = Batch(next=hold.lease.checkpoint)
        self._has_read = False
        self._done = 0
        """Events of the batch that are finished."""
        self._attempts = max(hold.lease.attempts, 1 if hold.orphaned else 0)
        self._suspect = hold.orphaned and hold.lease.attempts > 0
        """Was being tried when an instance died, and not for the first time."""
        self._turns = turns or Turns()
        self._gate = gate or LetterGate(self._retry, clock, lambda held: None)
        self._tried_at = -inf
        self._error: str | None = _why_orphaned(hold)
        """Why what comes next failed: a try here, or one that its former owner never finished."""
        self._events_due = self._save_at = inf
        self._failures = 0
        self._remind_at: float | None = None
        self._closed = self._gave_up = False
        self._signals: deque[lifecycle.Event] = deque()
        self._signalled, self._end_asked = asyncio.Event(), asyncio.Event()
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
            self._gave_up = self._gave_up or reason is Reason.HUNG
            self._offered_to = offered_to
            self._signal(lifecycle.LetGo(reason))

    def lose(self) -> None:
        """The lease is gone: write nothing more."""
        self._signal(lifecycle.Lost())

    def wake(self) -> None:
        """There may be something to do, or the store answers again: a pause ends now, and the next
        one is short."""
        self._failures = 0
        self._signalled.set()

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
            self._reader.close()
            self._news.forget(self.hold.lease.partition)
            self._turns.end(self)
        if self._gave_up:
            return Reason.HUNG  # even if a late renewal took what was released for lost
        return self.life.ending or Reason.SHUTDOWN

    @property
    def position(self) -> Checkpoint | None:
        """Everything before it is handled. None until the feed was read: it may be recreated."""
        return self._checkpoints.handled if self._has_read else None

    @property
    def attempts(self) -> int:
        """Tries of what is in hand that failed."""
        return self._attempts

    @property
    def held(self) -> bool:
        """Whether what is being done here may still take effect. Any thread may ask."""
        return not self.lost and not self._stale

    @property
    def lost(self) -> bool:
        """Whether the lease is somebody else's by now, as far as known. Any thread may ask."""
        return lifecycle.Lost() in self._signals or self.life.ending is Reason.LOST

    @property
    def ending(self) -> bool:
        """Whether it was told to let go, or that it has lost. Any thread may ask."""
        return bool(self._signals) or self.life.ending is not None

    async def save(self, position: Checkpoint) -> bool:
        """The user's own checkpoint. False: the lease is somebody else's, and work on it ends."""
        writing = self._checkpoints.write_by_hand(
            position, self._attempts, ahead=lambda: self._is_in_hand(position)
        )
        kept = await self._calls.aside(writing)
        if not kept:
            self.lose()
        return kept

    async def bury(self, event: Any, error: BaseException | str) -> None:
        """The user's own dead letter."""
        await self._calls.aside(self._work.bury(event, error, 1))

    def _signal(self, event: lifecycle.Event) -> None:
        self._signals.append(event)
        self._signalled.set()
        self._end_asked.set()
        self._reader.break_off()  # a read is no work in hand

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
            if isinstance(error, ReadHung) and self._reader.hopeless:
                self.let_go(None, Reason.HUNG)
            self._report(f"{action.phase.value} partition {self.hold.lease.partition}", error)
            self._failures += 1
            pace = self._pace
            delay_s = min(pace.retry_s * 2 ** min(self._failures - 1, 16), pace.retry_max_s)
            return Again(delay_s, self._checkpoints.unsaved)
        self._failures = 0
        return (
            replace(event, unsaved=self._checkpoints.unsaved) if isinstance(event, Again) else event
        )

    # The actions, one per phase

    async def _open(self) -> lifecycle.Event:
        await self._work.open()
        return Done()

    async def _read(self) -> lifecycle.Event | None:
        if self._done < len(self._batch.events):
            return Read()
        self._news.forget(self.hold.lease.partition)
        try:
            batch = await self._reader.read(self._checkpoints.handled)
        except PositionGone as gone:
            return await self._without(gone)
        except LeaseLost:
            return Refused()  # by the broker, before the store has told
        if batch is None:
            return None
        self._batch, self._done, self._has_read = batch, 0, True
        if len(self._batch.events):
            if self._work.one_by_one:
                self._batch = replace(self._batch, events=Once(self._batch.events))
            self._reader.read_ahead(self._batch.next)
            return Read()
        if self._batch.children:
            return self._ended()
        if self._batch.next.next_sequence > self._checkpoints.handled.next_sequence:
            self._pass()
        if self._checkpoints.unsaved and (self._save_when_idle or self._checkpoints.due):
            return Handled(save=True)
        return Again(self._wait_for_news())

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
            return await self._yield(self._search(events[self._calls.overdue :]))
        self._finished(outcome.done, behind=outcome.behind)
        if outcome.error is None:
            return self._handled()
        if blameless(outcome.error):
            raise outcome.error  # nothing to count against the events
        return await self._failed(outcome.error, self._search(events[outcome.done :]))

    async def _save(self) -> lifecycle.Event:
        return Done() if await self._checkpoints.write(self._attempts) else Refused()

    async def _split(self) -> lifecycle.Event:
        children: dict[str, Checkpoint] = dict(self._batch.children)
        done = await self._ask(self._store.split(self.hold.lease, children))
        return Done() if done else Refused()

    async def _close(self) -> lifecycle.Event:
        reason = self.life.ending or Reason.SHUTDOWN
        if not self._closed:
            self._closed = True
            try:
                closing = self._work.close(reason)
                await (self._soon(closing) if reason is Reason.HUNG else closing)
            except Exception as error:
                self._report(f"closing partition {self.hold.lease.partition}", error)
            with suppress(Exception):  # the broker finds out, at the latest from the next owner
                await self._soon(self._reader.let_go())
        if reason in (Reason.BALANCED, Reason.SHUTDOWN, Reason.HUNG):
            if self.hold.lease.attempts > self._attempts:  # a try that turned out to be nobody's
                await self._checkpoints.write(self._attempts)
            wanted = replace(self.hold.lease, offered_to=self._offered_to)
            await self._ask(self._store.release([wanted]))
        return Done()

    # Reading

    def _wait_for_news(self) -> float:
        """How long to wait, unless woken: for something to read, or for a checkpoint to be due."""
        wait_s = self._news.watch(self.hold.lease.partition, self._batch.next, self.wake)
        if self._checkpoints.unsaved:
            due_in_s = self._checkpoints.due_at - self._clock.monotonic()
            wait_s = min(wait_s, max(due_in_s, AT_LEAST_S))
        return wait_s

    def _pass(self) -> None:
        """Go on behind what the feed has nothing of any more, such as deleted documents, and with
        them whatever failed there: those who wait for the end of the feed look at the checkpoint.
        """
        self._checkpoints.advance(self._batch.next)
        self._attempts, self._suspect, self._error = 0, False, None

    def _ended(self) -> lifecycle.Event:
        """The children begin behind all of it, so all of it must be stored before they may."""
        if self._checkpoints.unsaved:
            return Handled(save=True)
        if not self._checkpoints.owed:
            return Read(ended=True)
        now, partition = self._clock.monotonic(), self.hold.lease.partition
        if self._remind_at is not None and now >= self._remind_at:
            self._report(f"splitting partition {partition}", self._checkpoints.missing())
            self._remind_at = None
        if self._remind_at is None:
            self._remind_at = now + self._pace.retry_max_s
        return Again(self._pace.poll_interval_s)

    async def _without(self, gone: PositionGone) -> lifecycle.Event:
        """What to do about a position that the feed no longer has."""
        self._reader.forget()
        await self._tell(gone)
        if self._pace.on_position_gone == "fail":
            self._work.give_up(gone)
            return Again(self._pace.retry_max_s)
        self._checkpoints.jump(gone.resume)
        self._attempts, self._error = 0, None
        if gone.reason != "retention":
            return await self._go_back(gone.resume)
        return Again(0.0) if await self._checkpoints.write(0) else Refused()

    async def _go_back(self, position: Checkpoint) -> lifecycle.Event:
        """The feed was recreated or rolled back: the checkpoint has to go back, which only a rewind
        may."""
        lease = self.hold.lease
        mine = (lease.partition, lease.owner, lease.epoch)
        for _ in range(5):  # a renewal may come between the look and the rewind
            leases = (await self._ask(self._store.snapshot(lease.group))).leases
            found = [seen for seen in leases if (seen.partition, seen.owner, seen.epoch) == mine]
            wanted = [replace(seen, checkpoint=position) for seen in found]
            if not wanted or len(await self._ask(self._store.rewind(wanted))):
                break
        return Refused()  # the rewind fenced this owner off too; the lease is taken again

    # Handling

    async def _handle_again(self, events: Sequence[Any]) -> lifecycle.Event:
        """A batch that failed before, whole or bisected. Each try is counted before it begins, so
        that one that kills the process counts as well."""
        search = self._search(events)
        if search.poison and (event := await self._bury(search)) is not None:
            return event
        if not (self._suspect or (self.hold.orphaned and search.failed().poison)):
            return await self._try_counted(search, events)
        # One suspect at a time in a process, or one that kills it would have others blamed that
        # were only at hand.
        wait_s = self._pace.poll_interval_s
        if not self._turns.take(
            self,
            now=self._clock.monotonic(),
            share_s=self._pace.handler_timeout_s or TURN_S,
            again_s=2 * wait_s,
        ):
            return Again(wait_s)
        try:
            return await self._try_counted(search, events)
        finally:
            self._turns.end(self)

    async def _try_counted(self, search: Bisection, events: Sequence[Any]) -> lifecycle.Event:
        if not await self._checkpoints.write(search.attempts_if_unfinished):
            return Refused()
        if self._stale:  # the store took its time
            return Again(self._pace.poll_interval_s)
        size = len(search.target)
        outcome = await self._try(events[:size])
        if outcome is None:
            return await self._yield(search)
        if outcome.error is None and outcome.done < size:  # the rest was never tried
            self._finished(outcome.done, behind=outcome.behind)
            kept = await self._checkpoints.write(self._attempts)
            return Again(0.0) if kept else Refused()
        if outcome.error is None:
            return await self._proceed(search.succeeded(), size)
        if blameless(outcome.error):
            raise outcome.error
        return await self._failed(outcome.error, search)

    def _search(self, events: Sequence[Any]) -> Bisection:
        size = 1 if self._work.one_by_one else len(events)
        return resume(self._retry, 0, size, self._attempts)

    async def _try(self, events: Sequence[Any]) -> Outcome | None:
        """None: a function that did not come back in time, and is still at it."""
        checkpoints = self._checkpoints
        self._events_due, self._save_at = checkpoints.events_due, checkpoints.due_at
        self._tried_at = self._clock.monotonic()
        outcome = await self._calls.run(events, self._enough)
        return outcome if isinstance(outcome, Outcome) else await self._hung(outcome)

    async def _hung(self, call: asyncio.Task[Outcome]) -> Outcome | None:
        if not self._work.interruptible:
            self.let_go(None, Reason.HUNG)  # first, so that the thread begins nothing more
        with suppress(TimeoutError):
            await self._soon(asyncio.wait((call,)))
        done = self._calls.done
        late = done > self._calls.overdue  # what took too long is done, and what follows is new
        hung = HandlerHung(
            f"the handler of partition {self.hold.lease.partition} did not come back within "
            f"handler_timeout_s={self._pace.handler_timeout_s:g}"
            f"{'; it did later, so no try is counted' * late}"
        )
        if self._work.interruptible and call.done() and not late:
            return Outcome(done=done, error=hung)
        if not call.done():
            self.let_go(None, Reason.HUNG)  # an async function that blocks its loop hears nothing
        if not late:
            self._finished(done)
            self._error = str(hung)
        await self._tell(hung)
        return Outcome(done=done) if late else None

    async def _failed(self, error: BaseException, search: Bisection) -> lifecycle.Event:
        self._attempts = search.failed().attempts
        self._error = traced_text(error)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._work.give_up(error)
            await self._checkpoints.write(self._attempts)
            return Again(self._pace.retry_max_s)
        await self._tell(error)
        decision = decide(self._retry, self._attempts, self._chance())
        if not await self._checkpoints.write(self._attempts):
            return Refused()
        if decision.do == "give-up":
            self._work.give_up(error)
            return Again(self._pace.retry_max_s)
        return Again(decision.delay_s)

    async def _tell(self, error: BaseException) -> None:
        """The user's function for errors may never come back. It has as long as a handler has, and
        no end that comes meanwhile waits for it; one that came before waits for a last word."""
        limit_s = self._pace.request_timeout_s if self.ending else self._pace.handler_timeout_s
        telling = asyncio.ensure_future(self._work.failed(error))
        ended = asyncio.ensure_future(self._end_asked.wait())
        either = (telling,) if self.ending else (telling, ended)
        waiting = asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        try:
            with suppress(TimeoutError):
                await (waiting if limit_s is None else within(self._clock, limit_s, waiting))
            if telling.done():
                telling.result()
        finally:
            telling.cancel()
            ended.cancel()

    async def _proceed(
        self, search: Bisection, count: int, *, taken: bool = True
    ) -> lifecycle.Event:
        behind = await self._behind(count)
        self._attempts = search.attempts
        self._suspect = self._suspect and self._attempts > 0
        self._finished(count, taken=taken, behind=behind)
        if not await self._checkpoints.write(self._attempts):
            return Refused()
        return Again(0.0) if self._done < len(self._batch.events) else self._handled()

    async def _bury(self, search: Bisection) -> lifecycle.Event | None:
        """None: it must be tried first. The stored tries may be of another event, since one that
        is gone, such as a document that was mended, leaves its place to the next."""
        if self._error is None:
            return None
        match self._gate.verdict(self._tried_at):
            case Wait(seconds=seconds):
                return Again(min(seconds, self._pace.retry_max_s))
            case TryAgain():
                return None
        poison = await self._in_hand(self._batch.events[self._done : self._done + 1])
        if poison is None:
            return Again(0.0)
        for event in poison:  # more than one, if they share a sequence
            await self._work.bury(event, self._error, self._retry.attempts)
        self._gate.buried(self._error)
        return await self._proceed(search.dead_lettered(), 1, taken=False)

    async def _in_hand(self, events: Sequence[Any]) -> Sequence[Any] | None:
        """None: it has to be read for that, and an end was asked for meanwhile."""
        if not isinstance(events, ReadsLate):
            return events
        return await self._reader.fetch(events, self._checkpoints.handled)

    async def _behind(self, count: int) -> Checkpoint | None:
        """Where the next of them end, if only a read of the last one would tell."""
        events, place = self._batch.events, self._done + count
        if place >= len(events) or not isinstance(events, ReadsLate):
            return None
        sequence = events.sequence_at(place)
        with suppress(Exception):  # the number alone will do
            found = await self._soon(self._reader.locate(sequence))
            if found.next_sequence == sequence:
                return found
        return Checkpoint(next_sequence=sequence)

    async def _yield(self, search: Bisection) -> lifecycle.Event:
        """Others may try; what the hung call still does is fenced off. After the last try it is
        buried here, for nobody else buries what they have not tried."""
        search = search.failed()
        self._attempts = search.attempts
        if not await self._checkpoints.write(self._attempts):
            return Refused()
        buried = await self._bury(search) if search.poison else None
        return buried or Again(self._pace.retry_max_s)

    def _finished(
        self, count: int, *, taken: bool = True, behind: Checkpoint | None = None
    ) -> None:
        if not count:
            return
        if taken:
            self._gate.handled()
        self._done += count
        self._error = None
        whole, last = self._done == len(self._batch.events), self._batch.next
        if not whole and behind is not None:
            last = behind
        elif not whole:
            last = progress.behind(self._batch.events[self._done - 1])
        past_saved = self._checkpoints.progress.ahead and self._is_in_hand(
            self._checkpoints.progress.saved, self._done - count, self._done
        )
        self._checkpoints.advance(
            last, events=count, batches=whole, taken=taken, past_saved=past_saved
        )

    def _is_in_hand(
        self, position: Checkpoint, first: int | None = None, end: int | None = None
    ) -> bool:
        """Whether one of these events of the batch, if not given those not finished, ends at that
        position, and others follow that share its sequence. Elsewhere sequences alone tell."""
        events = self._batch.events
        if not position.token or isinstance(events, ReadsLate):
            return False
        first = self._done if first is None else first
        end = len(events) if end is None else end
        at = position.next_sequence
        place = bisect_left(events, at, first, end, key=_sequence)
        while place < end and _sequence(events[place]) == at:
            if progress.behind(events[place]) == position:
                return True
            place += 1
        return False

    def _handled(self) -> lifecycle.Event:
        return Handled(save=self._checkpoints.due, unsaved=self._checkpoints.unsaved)

    @property
    def _stale(self) -> bool:
        """Not renewed in time: maybe not ours any more, so nothing new may begin."""
        return self._clock.monotonic() >= self.hold.until

    def _enough(self, done: int) -> bool:
        """Asked between two events, maybe from a thread, maybe long after the lease was let go.

        It is the one thing done for every event, so what does not change meanwhile is in
        ``_events_due`` and ``_save_at``.
        """
        now, calls = self._clock.monotonic(), self._calls
        calls.heard_at, calls.done = now, done
        return (
            done >= self._events_due
            or now >= self._save_at
            or now >= self.hold.until
            or len(self._signals) > 0
            or self.life.ending is not None
        )

    # The store

    async def _ask(self, request: Awaitable[T]) -> T:
        return await answered(self._clock, self._pace.request_timeout_s, request)

    async def _soon(self, work: Awaitable[T]) -> T:
        """What the user's code does, where it may never come back."""
        return await within(self._clock, self._pace.request_timeout_s, work)

    async def _sleep(self, seconds: float) -> bool:
        """True after the whole pause or when woken, False when a signal came first."""
        with suppress(TimeoutError):
            await within(self._clock, seconds, self._signalled.wait())
        return not self._signals


def _sequence(event: Any) -> int:
    sequence: int = event.sequence
    return sequence


def _why_orphaned(hold: Hold) -> str | None:
    if hold.overruled:
        return "the instance that handled it did not let it go"
    return "the instance that handled it died" if hold.orphaned else None
