"""``Processor``: the user's functions, run on the partitions that this instance holds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from traceback import walk_tb
from typing import Any
from uuid import uuid4

from leasehold.clock import SystemClock, within
from leasehold.core.balance import Assign, by_count
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Group, Lease, partition_order
from leasehold.core.retry import describe_try
from leasehold.errors import BadInput, DeadLettersHeld, HandlerHung
from leasehold.ports import Clock, DeadLetters, Feed, LeaseStore, MirrorsCheckpoints, Telemetry
from leasehold.processor.apart import apart, run_on, using
from leasehold.processor.arguments import check_names, check_parts, parse_starts
from leasehold.processor.budget import Budget
from leasehold.processor.drain import Drain
from leasehold.processor.feed_lag import FeedLag, feed_lag
from leasehold.processor.handlers import Context, Handlers, Outcome, Quit, Stop
from leasehold.processor.host import Host
from leasehold.processor.letter_gate import LetterGate
from leasehold.processor.letters import letter_for
from leasehold.processor.mirror import Mirror
from leasehold.processor.naming import name_for
from leasehold.processor.news import News
from leasehold.processor.pump import Pump
from leasehold.processor.rates import EventRates
from leasehold.processor.signals import stop_on_signals
from leasehold.processor.threads import HandlerThreads
from leasehold.processor.turns import Turns
from leasehold.processor.work import Hold, answered
from leasehold.settings import CHECKPOINT, PACE, TIMING, Every, OnPositionGone, Pace, Retry, Timing
from leasehold.telemetry.counted_store import counted
from leasehold.telemetry.health import Health
from leasehold.telemetry.metrics import Metrics
from leasehold.telemetry.prometheus import Registry

log = logging.getLogger("leasehold")
OnDrain = Callable[[int, int], None]
HUNG_MAX = 16
"""Plain handlers hanging at once before the instance stops: only a new process is rid of them."""
TRACES_MAX = 1_000
"""Different tracebacks that are logged."""
TELLING_MAX = 64
"""Calls of ``on_error`` under way at once; what comes on top is only logged."""
DRAINED_CHECK_S = 0.05
_turns = Turns()  # of all processors in a process, as they would share its death


class Processor:
    """One instance of a group. Run as many as you like, anywhere; they share the partitions.

    Handlers may be plain or async functions and may take a context after their own arguments:
    ``on_event(event)``, ``on_batch(events, context)``, ``on_error(error)``,
    ``on_partition_open(context)``, ``on_partition_close(reason, context)``.
    """

    _handles_here = False
    """Whether the handler is not the user's own and may run where the upkeep does."""

    def __init__(
        self,
        feed: Feed,
        *,
        group: str,
        store: LeaseStore,
        on_event: Callable[..., Any] | None = None,
        on_batch: Callable[..., Any] | None = None,
        on_error: Callable[..., Any] | None = None,
        on_partition_open: Callable[..., Any] | None = None,
        on_partition_close: Callable[..., Any] | None = None,
        start: Any = "earliest",
        checkpoint: Every | None = None,
        retry: Retry | None = None,
        dead_letters: DeadLetters | None = None,
        instance: str | None = None,
        lease_ttl_s: float = TIMING.lease_ttl_s,
        balance_interval_s: float = TIMING.balance_interval_s,
        shed_timeout_s: float = TIMING.shed_timeout_s,
        request_timeout_s: float = TIMING.request_timeout_s,
        drain_timeout_s: float = TIMING.drain_timeout_s,
        max_events: int = PACE.max_events,
        max_bytes: int = PACE.max_bytes,
        read_ahead: bool = PACE.read_ahead,
        poll_interval_s: float = PACE.poll_interval_s,
        read_timeout_s: float = PACE.read_timeout_s,
        retry_s: float = PACE.retry_s,
        retry_max_s: float = PACE.retry_max_s,
        handler_timeout_s: float | None = PACE.handler_timeout_s,
        on_position_gone: OnPositionGone = PACE.on_position_gone,
        assign: Assign = by_count,
        mirror_offsets: bool = False,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """What is not said here is said in ``leasehold.settings``, as is every default.

        Args:
            group: the name of the group: all instances of that name share the partitions
            store: where the group keeps its leases: `open_store(url)`
            on_event: the handler for one event; give this or `on_batch`
            on_batch: the handler for a sequence of events
            on_error: told of every error: of handlers, feed and store
            on_partition_open: called before the first event of a partition
            on_partition_close: called after the last one, with the reason
            start: where to begin without a checkpoint; a mapping: per partition
            checkpoint: when to write one: `every(…)` or `manual()`; none: `every(batches=1)`
            retry: what to do about failures; none: `Retry()`
            dead_letters: where events that fail for good go: `open_dead_letters(url)`
            instance: its name; none: `POD_NAME` of the environment if there is one
                ([the rule](../how-to/deploy.md#names)), else hostname, PID and a random suffix
            assign: how to deal out partitions; `by_weight()`: even events per second
            mirror_offsets: show the group's checkpoints to the feed's own tools as well, best
                effort; only a feed that has such tools takes it:
                [Kafka](../how-to/kafka.md#show-the-group-to-kafkas-tools)
            clock: another clock, for simulations; none: the real one
            telemetry: where to report: a `Registry` for Prometheus, or
                [another](../how-to/observe.md#elsewhere-than-prometheus); none: a registry of its
                own, `processor.telemetry`
        """
        if isinstance(feed, str | PathLike):
            raise BadInput(f"feed cannot be {feed!r}: give open_feed({feed!r})")
        check_names(group, instance)
        check_parts(store, checkpoint, retry, dead_letters)
        self.over = False
        """Whether it has run, and ended."""
        of = Group(namespace=feed.namespace, feed=feed.name, name=group)
        self.instance = name_for(self, of) if instance is None else instance
        self.telemetry: Any = Registry() if telemetry is None else telemetry
        self._metrics = Metrics(of, self.instance, self.telemetry)
        self._metrics.watch(store=store, feed=feed)
        self._feed, self._store, self._dead_letters = feed, store, dead_letters
        self._leases = counted(store, self._metrics.store_failed)
        self._clock = clock or SystemClock()
        self._rates = EventRates(self._clock)
        self._threads = HandlerThreads("leasehold-handler")
        self._handlers = Handlers(
            on_event=on_event,
            on_batch=on_batch,
            on_error=on_error,
            on_partition_open=on_partition_open,
            on_partition_close=on_partition_close,
            threads=self._threads,
            handles_here=self._handles_here,
        )
        self._policy = checkpoint or CHECKPOINT
        self._retry = retry or Retry()
        if dead_letters is not None and not self._uses_letters:
            raise BadInput(
                f"dead_letters= would never be used: retry then={self._retry.then!r} puts none "
                'there, and the handler takes no context. Give retry=Retry(then="dead-letter"), or '
                "leave dead_letters out"
            )
        self._gate = LetterGate(self._retry, self._clock, self._letters_held)
        self._pace = Pace(
            max_events=max_events,
            max_bytes=max_bytes,
            read_ahead=read_ahead,
            poll_interval_s=poll_interval_s,
            read_timeout_s=read_timeout_s,
            request_timeout_s=request_timeout_s,
            retry_s=retry_s,
            retry_max_s=retry_max_s,
            handler_timeout_s=handler_timeout_s,
            on_position_gone=on_position_gone,
        )
        self._pace.check()
        self._news = News(feed, self._clock, self._pace)
        self._mirror = self._mirror_of(feed, group) if mirror_offsets else None
        self._budget = Budget(max_bytes)
        self._host = Host(
            feed=feed,
            group=group,
            store=self._leases,
            instance=self.instance,
            incarnation=uuid4().hex,
            start_worker=self._start_pump,
            clock=self._clock,
            report=self._report,
            settings=Timing(
                lease_ttl_s=lease_ttl_s,
                balance_interval_s=balance_interval_s,
                shed_timeout_s=shed_timeout_s,
                request_timeout_s=request_timeout_s,
                drain_timeout_s=drain_timeout_s,
            ),
            start=parse_starts(start),
            assign=assign,
            weigh=self._rates.weight,
        )
        self.group = self._host.group
        self._metrics.watch_renewals(self._renewal_age_s)
        if isinstance(self.telemetry, Registry):
            self.telemetry.probe((self.group, self.instance), lambda: self.health)
        self._gave_up: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._until_drained = self._stop_asked = False
        self._on_drain: OnDrain | None = None
        self._errors: set[asyncio.Task[None]] = set()
        self._traced: set[tuple[str, str, int]] = set()

    def run(self, *, until_drained: bool = False, on_drain: OnDrain | None = None) -> None:
        """Process until stopped (Ctrl-C, SIGTERM, ``stop``), then pass everything on in order.

        ``until_drained``: stop by itself once everything that was in the feed at the start is done
        by this group, by whichever instance. ``on_drain`` is then told how much is done, and of
        how much, a few times a second.
        """
        asyncio.run(self.run_async(until_drained=until_drained, on_drain=on_drain))

    async def run_async(
        self, *, until_drained: bool = False, on_drain: OnDrain | None = None
    ) -> None:
        """The same inside a running event loop; several processors may share one. Async handlers
        run there, all else apart from it: a handler that blocks the loop costs no lease.

        If it is cancelled it stops in order first; cancelled again, at once.
        """
        if self._loop is not None:
            raise BadInput("a processor runs once: make another one")
        home = self._handlers.home = asyncio.get_running_loop()
        # A clock of the caller's own, such as a virtual one, goes with the caller's loop.
        self._loop = apart() if isinstance(self._clock, SystemClock) else home
        self._until_drained, self._on_drain = until_drained, on_drain
        with stop_on_signals(self.stop, self._end):
            try:
                await run_on(self._loop, self._run(), self.stop)
            except Exception as error:
                self._gave_up = self._gave_up or error
                raise
        if self._gave_up is not None:
            raise self._gave_up

    @property
    def _uses_letters(self) -> bool:
        """Whether anything here can put dead letters."""
        return self._retry.then == "dead-letter" or self._handlers.takes_context

    @property
    def health(self) -> Health | None:
        """For probes: whether its upkeep turns, and whether it has joined and is renewing. None
        once it has stopped in order. Any thread may ask."""
        if self.over and self._gave_up is None:
            return None
        alive = self._host.is_turning and not self.over
        ready = alive and self._host.is_renewing
        missing = "" if ready else "not joined, or not renewing" if alive else "upkeep is stuck"
        if self.over:
            missing = f"ended by {type(self._gave_up).__name__}"
        who = f"{self.instance} in {self.group}"
        return Health(alive=alive, ready=ready, why=missing and f"{who}: {missing}")

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        async with using(self._store):
            if self._stop_asked:
                self._host.stop()
            await self._prepare()
            log.info("%s joins %s", self.instance, self.group)
            beside = [asyncio.ensure_future(self._show_lag()), asyncio.ensure_future(self._stay())]
            if self._until_drained:
                beside.append(asyncio.ensure_future(self._stop_when_drained()))
            try:
                await self._host.run()
            finally:
                self.over = True
                self._host.abandon()
                self._news.close()
                if self._mirror is not None:
                    await self._mirror.close()
                for task in beside:
                    task.cancel()
                if self._errors:
                    await asyncio.wait(self._errors, timeout=self._pace.request_timeout_s)
                for task in tuple(self._errors):
                    task.cancel()
                self._threads.shutdown()
                log.info("%s left %s", self.instance, self.group)

    async def _prepare(self) -> None:
        """What comes before everything else."""

    async def _stay(self) -> None:
        """Until the loop of the handlers is closed, or has not run for the time to live: nobody is
        left to work for, or to tell."""
        home, settings = self._handlers.home, self._host.settings
        assert home is not None
        ran_at = self._clock.monotonic()
        while not home.is_closed() and self._clock.monotonic() - ran_at < settings.lease_ttl_s:
            await self._clock.sleep(settings.balance_interval_s)
            if home.is_running():
                ran_at = self._clock.monotonic()
        log.error("%s ends: the event loop that it was run on runs no more", self.instance)
        self._end()

    def _end(self) -> None:
        """End now, without a word to anybody. Any thread may call it."""
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def stop(self) -> None:
        """Begin an orderly stop. May be called from any thread, and before ``run``."""
        self._stop_asked = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._host.stop)

    @property
    def partitions(self) -> Sequence[str]:
        """The partitions that this instance holds right now."""
        return sorted(self._host.workers, key=partition_order)

    def _start_pump(self, hold: Hold) -> Pump:
        work = _Work(self, hold.lease)
        pump = Pump(
            hold,
            feed=self._feed,
            store=self._leases,
            work=work,
            clock=self._clock,
            report=self._report,
            pace=self._pace,
            retry=self._retry,
            policy=self._policy,
            save_when_idle=self._until_drained,
            turns=_turns,
            gate=self._gate,
            news=self._news,
            budget=self._budget,
            on_saved=None if self._mirror is None else self._mirror.saved,
        )
        by_hand = pump.bury if self._dead_letters is not None else None
        work.context = Context(
            hold.lease,
            self.instance,
            pump.save,
            by_hand,
            over=lambda: self.over,
            home=self._handlers.home,
        )
        self._rates.begin(hold.lease.partition, hold.lease.weight)
        self._metrics.opened(hold.lease.partition, "orphaned" if hold.orphaned else "offered")
        return pump

    def _mirror_of(self, feed: Feed, group: str) -> Mirror:
        if not isinstance(feed, MirrorsCheckpoints):
            raise BadInput(
                f"mirror_offsets=True: {feed!r} has nowhere to show checkpoints; Kafka topics do"
            )
        limit_s = self._pace.request_timeout_s
        return Mirror(feed, group, clock=self._clock, report=self._report, limit_s=limit_s)

    def _report(self, what: str, error: BaseException) -> None:
        """Troubles of stores and feeds: logged, and told to the user's ``on_error``."""
        log.warning("%s: %s: %s: it will be tried again", what, type(error).__name__, error)
        if len(self._errors) < TELLING_MAX:
            self._begin_telling(error, None)

    def _letters_held(self, held: DeadLettersHeld) -> None:
        self._report("dead letters", held)

    def _begin_telling(self, error: BaseException, context: Context | None) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._tell(error, context))
        self._errors.add(task)
        task.add_done_callback(self._errors.discard)
        return task

    async def _tell(self, error: BaseException, context: Context | None) -> None:
        try:
            await self._handlers.error(error, context)
        except Quit as wish:
            self._give_up(wish.error)
        except Exception:
            log.exception("on_error failed itself, when told of %r", error)

    def _give_up(self, error: BaseException) -> None:
        log.error("%s stops: %s: %s", self.instance, type(error).__name__, error)
        self._gave_up = self._gave_up or error
        self._host.stop()

    def _renewal_age_s(self) -> float | None:
        """Since the oldest renewal of a lease in hand; None without any. Other threads may ask."""
        until = [worker.hold.until for worker in list(self._host.workers.values())]
        fresh_s = self._host.settings.fresh_s
        return max(self._clock.monotonic() - min(until) + fresh_s, 0.0) if until else None

    async def _show_lag(self) -> None:
        """Keep the lag of the partitions in hand among the metrics. One that is not known any more
        goes: at its last value it would hide that the feed is in trouble."""
        while True:
            found: Mapping[str, FeedLag] = {}
            try:
                asked = feed_lag(self._feed, self._positions(), self._clock.wall())
                found = await within(self._clock, self._pace.read_timeout_s, asked)
            except Exception as error:  # the pumps tell of a feed in trouble
                log.debug("the lag is not known: %s", error)
            for partition in self._host.workers:
                self._metrics.lag(partition, *found.get(partition, (None, None)))
            await self._clock.sleep(max(self._host.settings.balance_interval_s, 1.0))

    async def _stop_when_drained(self) -> None:
        pause_s = min(self._host.settings.hurry_s, 1.0)
        drain = Drain(
            self._feed,
            self._leases,
            self.group,
            clock=self._clock,
            pace=self._pace,
            pause_s=pause_s,
        )
        while True:
            try:
                done = await drain.is_done(self._in_hand())
                self._tell_drain(drain)
                if done:
                    self._host.stop()
                    return
            except Exception as error:
                self._report("looking whether all is done", error)
                await self._clock.sleep(pause_s)
            await self._clock.sleep(DRAINED_CHECK_S)

    def _tell_drain(self, drain: Drain) -> None:
        """Whoever fails to hear it is told no more, and keeps the drain from no end."""
        try:
            if self._on_drain is not None:
                self._on_drain(drain.total - drain.left, drain.total)
        except Exception as error:
            self._on_drain = None
            log.warning("on_drain failed, and is called no more: %r", error)

    def _in_hand(self) -> dict[str, float]:
        return {p: float(at.next_sequence) for p, at in self._positions().items()}

    def _positions(self) -> dict[str, Checkpoint]:
        pumps = [pump for pump in self._host.workers.values() if isinstance(pump, Pump)]
        found = {pump.hold.lease.partition: pump.position for pump in pumps}
        return {p: position for p, position in found.items() if position is not None}


class _Work:
    """The user's handlers on one partition, with what is counted and told around them."""

    context: Context

    def __init__(self, processor: Processor, lease: Lease) -> None:
        self._processor, self._lease = processor, lease
        self._handlers, self._metrics = processor._handlers, processor._metrics
        self.one_by_one = self._handlers.one_by_one
        self.interruptible = self._handlers.is_async
        self._telling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            await self._handlers.open(self.context)
        except Quit as wish:
            self.give_up(wish.error)
            raise
        log.info("partition %s opened in epoch %d", self._lease.partition, self._lease.epoch)

    async def handle(self, events: Sequence[Any], stop: Stop) -> Outcome:
        began = time.perf_counter()
        try:
            outcome = await self._handlers.handle(events, self.context, stop)
        finally:  # also if it was given up: that took time, too
            self._metrics.handler_took(time.perf_counter() - began)
        self._metrics.handled(self._lease.partition, outcome.done)
        self._processor._rates.add(self._lease.partition, outcome.done)
        return outcome

    async def failed(self, error: BaseException) -> None:
        self._log(error)
        self._metrics.retried(self._lease.partition)
        if isinstance(error, HandlerHung) and len(self._handlers.left_behind) >= HUNG_MAX:
            self.give_up(error)
        await self._tell(error)

    async def _tell(self, error: BaseException) -> None:
        """A call that nobody waits for any more goes on, and there is no other beside it: plain
        functions that hang would use up all threads."""
        if self._telling is not None and not self._telling.done():
            text = "partition %s: on_error still has to come back, and is not told of %r"
            log.warning(text, self._lease.partition, error)
            return
        self._telling = self._processor._begin_telling(error, self.context)
        try:
            await asyncio.shield(self._telling)
        except asyncio.CancelledError:
            text = "partition %s: on_error did not come back in time; work goes on without it"
            log.warning(text, self._lease.partition)
            raise

    def _log(self, error: BaseException) -> None:
        """With its traceback the first time that this place in the code fails so."""
        processor, partition = self._processor, self._lease.partition
        place, news = _place(error), False
        if place is not None and place not in processor._traced:
            news = len(processor._traced) < TRACES_MAX
            processor._traced.add(place)
        pump, where = processor._host.workers.get(partition), ""
        if isinstance(pump, Pump) and pump.position is not None:
            tried = describe_try(processor._retry, pump.attempts)
            where = f" at sequence {pump.position.next_sequence}, {tried}"
        text, name = "partition %s%s: %s: %s", type(error).__name__
        log.warning(text, partition, where, name, error, exc_info=error if news else None)

    async def bury(self, event: Any, error: BaseException | str, attempts: int = 1) -> None:
        letters, pace = self._processor._dead_letters, self._processor._pace
        assert letters is not None
        letter = letter_for(self._lease.group, event, error, attempts)
        clock = self._processor._clock
        await answered(clock, pace.request_timeout_s, letters.put([letter]))
        self._metrics.dead_lettered(self._lease.partition)
        text = "event %s of partition %s is dead: %s"
        log.error(text, event.sequence, event.partition, letter.reason)

    def give_up(self, error: BaseException) -> None:
        self._processor._give_up(error)

    async def close(self, reason: Reason) -> None:
        log.info("partition %s closes: %s", self._lease.partition, reason.value)
        self._metrics.closed(self._lease.partition, reason)
        try:
            await self._handlers.close(reason, self.context)
        except Quit as wish:
            self.give_up(wish.error)


def _place(error: BaseException) -> tuple[str, str, int] | None:
    """Where it was raised; None: nowhere in a handler."""
    if error.__traceback__ is None:
        return None
    *_, (frame, line) = walk_tb(error.__traceback__)
    return type(error).__name__, frame.f_code.co_filename, line
