"""``Processor``: the user's functions, run on the partitions that this instance holds."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Literal
from uuid import uuid4

from leasehold.clock import SystemClock
from leasehold.core import start as starts
from leasehold.core.balance import Assign, by_count
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Lease
from leasehold.core.policy import Every, every
from leasehold.core.retry import Retry
from leasehold.errors import BadInput, HandlerHung, PositionGone
from leasehold.ports import Clock, CountsRemaining, DeadLetters, Feed, LeaseStore
from leasehold.processor.handlers import Context, Handlers, Outcome, Quit, Stop
from leasehold.processor.host import Host, Settings
from leasehold.processor.metrics import Metrics, Registry
from leasehold.processor.pump import Hold, Pace, Pump
from leasehold.processor.rates import Rates
from leasehold.processor.redrive import letter_for
from leasehold.processor.signals import stop_on_signals
from leasehold.processor.threads import Threads

log = logging.getLogger("leasehold")
DEAD_LETTERS = 'open_dead_letters("sqlite:///data/dead.db")'
HUNG_MAX = 16
"""Plain handlers hanging at once before the instance stops: only a new process is rid of them."""
TELLING_MAX = 64
"""Calls of ``on_error`` under way at once; what comes on top is only logged."""
DRAINED_CHECK_S = 0.05
_turn = threading.Lock()  # of all processors in a process, as they would share its death


class Processor:
    """One instance of a group. Run as many as you like, anywhere; they share the partitions.

    Handlers may be plain or async functions and may take a context after their own arguments:
    ``on_event(event)``, ``on_batch(events, context)``, ``on_error(error)``,
    ``on_partition_open(context)``, ``on_partition_close(reason, context)``.
    """

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
        lease_ttl_s: float = 10.0,
        balance_interval_s: float = 3.0,
        shed_timeout_s: float = 60.0,
        request_timeout_s: float = 5.0,
        drain_timeout_s: float = 60.0,
        max_events: int = 1000,
        poll_interval_s: float = 0.5,
        handler_timeout_s: float | None = None,
        gone: Literal["earliest", "fail"] = "earliest",
        assign: Assign = by_count,
        clock: Clock | None = None,
        registry: Registry | None = None,
    ) -> None:
        _check_names(group, instance)
        _check_part("store", store, LeaseStore, 'open_store("sqlite:///data/leases.db")')
        if checkpoint is not None:
            _check_part("checkpoint", checkpoint, Every, "every(events=500, seconds=5)")
        if retry is not None:
            _check_part("retry", retry, Retry, "Retry(attempts=5)")
        if dead_letters is not None:
            _check_part("dead_letters", dead_letters, DeadLetters, DEAD_LETTERS)
        self.instance = _default_name() if instance is None else instance
        self._feed, self._store, self._dead_letters = feed, store, dead_letters
        self._clock = clock or SystemClock()
        self._rates = Rates(self._clock)
        self._threads = Threads("leasehold-handler")
        self._handlers = Handlers(
            on_event=on_event,
            on_batch=on_batch,
            on_error=on_error,
            on_partition_open=on_partition_open,
            on_partition_close=on_partition_close,
            threads=self._threads,
        )
        self._policy = checkpoint or every(batches=1)
        self._retry = retry or Retry()
        if self._retry.then == "dead-letter" and dead_letters is None:
            raise BadInput(
                f'retry then="dead-letter" needs a store for the letters: '
                f"dead_letters={DEAD_LETTERS}"
            )
        self._pace = Pace(
            max_events=max_events,
            poll_interval_s=poll_interval_s,
            request_timeout_s=request_timeout_s,
            handler_timeout_s=handler_timeout_s,
            gone=gone,
        )
        self._pace.check()
        self._host = Host(
            feed=feed,
            group=group,
            store=store,
            instance=self.instance,
            incarnation=uuid4().hex,
            start_worker=self._start_pump,
            clock=self._clock,
            report=self._report,
            settings=Settings(
                lease_ttl_s=lease_ttl_s,
                balance_interval_s=balance_interval_s,
                shed_timeout_s=shed_timeout_s,
                request_timeout_s=request_timeout_s,
                drain_timeout_s=drain_timeout_s,
            ),
            start=_starts(start),
            assign=assign,
            weigh=self._rates.weight,
        )
        self.group = self._host.group
        self.metrics = Metrics(self.group, self.instance, registry)
        self.metrics.watch(store=store, feed=feed)
        self._gave_up: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until_drained = self._stop_asked = False
        self._errors: set[asyncio.Task[None]] = set()

    def run(self, *, until_drained: bool = False) -> None:
        """Process until stopped (Ctrl-C, SIGTERM, ``stop``), then pass everything on in order.

        ``until_drained``: stop by itself once everything that was in the feed at the start is done
        by this group, by whichever instance.
        """
        asyncio.run(self._run_and_close(until_drained))

    async def _run_and_close(self, until_drained: bool) -> None:
        try:
            await self.run_async(until_drained=until_drained)
        finally:  # its connections belong to this event loop; it opens new ones when used again
            await self._store.close()

    async def run_async(self, *, until_drained: bool = False) -> None:
        """The same inside a running event loop; several processors may share one.

        If it is cancelled it stops in order first; cancelled again, at once.
        """
        if self._loop is not None:
            raise BadInput("a processor runs once: make another one")
        self._loop, self._until_drained = asyncio.get_running_loop(), until_drained
        if self._stop_asked:
            self._host.stop()
        log.info("%s joins %s", self.instance, self.group)
        beside = [asyncio.ensure_future(self._show_lag())]
        if until_drained:
            beside.append(asyncio.ensure_future(self._stop_when_drained()))
        try:
            with stop_on_signals(self._host.stop):
                await self._run_host()
        finally:
            for task in beside:
                task.cancel()
            if self._errors:
                await asyncio.wait(self._errors, timeout=self._pace.request_timeout_s)
            self._threads.shutdown()
            log.info("%s left %s", self.instance, self.group)
        if self._gave_up is not None:
            raise self._gave_up

    async def _run_host(self) -> None:
        running = asyncio.ensure_future(self._host.run())
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self._host.stop()
            await running
            raise
        finally:
            self._host.abandon()

    def stop(self) -> None:
        """Begin an orderly stop. May be called from any thread, and before ``run``."""
        self._stop_asked = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._host.stop)

    @property
    def partitions(self) -> Sequence[str]:
        """The partitions that this instance holds right now."""
        return sorted(self._host.workers)

    def _start_pump(self, hold: Hold) -> Pump:
        work = _Work(self, hold.lease)
        pump = Pump(
            hold,
            feed=self._feed,
            store=self._store,
            work=work,
            clock=self._clock,
            report=self._report,
            pace=self._pace,
            retry=self._retry,
            policy=self._policy,
            save_when_idle=self._until_drained,
            turn=_turn,
        )
        by_hand = work.bury if self._dead_letters is not None else None
        work.context = Context(hold.lease, self.instance, pump.save, by_hand)
        self.metrics.opened(hold.lease.partition, "orphaned" if hold.orphaned else "offered")
        return pump

    def _report(self, what: str, error: BaseException) -> None:
        """Troubles of stores and feeds: logged, and told to the user's ``on_error``."""
        log.warning("%s: %s: %s: it will be tried again", what, type(error).__name__, error)
        if len(self._errors) < TELLING_MAX:
            task = asyncio.ensure_future(self._tell(error, None))
            self._errors.add(task)
            task.add_done_callback(self._errors.discard)

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

    async def _show_lag(self) -> None:
        """Keep the lag of the partitions in hand among the metrics."""
        while True:
            try:
                for partition, events in (await self._remaining()).items():
                    if partition in self._host.workers:
                        self.metrics.lag(partition, events)
            except Exception as error:  # the pumps tell of a feed in trouble
                log.debug("the lag is not known: %s", error)
            await self._clock.sleep(max(self._host.settings.balance_interval_s, 1.0))

    async def _remaining(self) -> Mapping[str, int]:
        """Events behind the positions in hand; where sequences have gaps, the feed counts them."""
        positions = self._positions()
        if isinstance(self._feed, CountsRemaining):
            return await self._feed.remaining(positions)
        ends = {each.partition: each.end for each in await self._feed.extents()}
        return {
            partition: max(0, ends[partition] - position.next_sequence)
            for partition, position in positions.items()
            if partition in ends
        }

    async def _stop_when_drained(self) -> None:
        """Looks at what is in hand here often, and at the store about as often as upkeep does."""
        pause_s = min(self._host.settings.hurry_s, 1.0)
        ends: Mapping[str, int] | None = None
        stored: dict[str, float] = {}
        look_at = self._clock.monotonic()
        while True:
            try:
                if ends is None:
                    ends = await self._ends()
                if self._clock.monotonic() >= look_at:
                    stored = await self._stored(ends)
                    if await self._were_split(ends.keys() - stored.keys()):
                        ends = await self._ends()
                    look_at = self._clock.monotonic() + pause_s
                at = stored | self._in_hand()
                if all(partition in at and at[partition] >= end for partition, end in ends.items()):
                    self._host.stop()
                    return
            except Exception as error:
                self._report("looking whether all is done", error)
                await self._clock.sleep(pause_s)
            await self._clock.sleep(DRAINED_CHECK_S)

    async def _ends(self) -> dict[str, int]:
        """How far to go, for each partition that the group reads or will. One that was split before
        the group knew of it never gets a lease: its children have all of it."""
        leaves = {each.id for each in await self._feed.partitions()}
        leased = {each.partition for each in (await self._store.snapshot(self.group)).leases}
        extents = await self._feed.extents()
        return {each.partition: each.end for each in extents if each.partition in leaves | leased}

    async def _were_split(self, partitions: Collection[str]) -> bool:
        """Whether any of them was, between a look at the feed and the making of leases."""
        if not partitions:
            return False
        known = await self._feed.partitions()
        return any(each in partition.ancestors for partition in known for each in partitions)

    async def _stored(self, partitions: Collection[str]) -> dict[str, float]:
        """Where the group is, as far as those are positions of this feed: it may be made anew."""
        look = await self._store.snapshot(self.group)
        positions = {x.partition: x.checkpoint for x in look.leases if x.partition in partitions}
        times = await self._feed.event_times(positions)
        at = {
            partition: float(position.next_sequence)
            for partition, position in positions.items()
            if not isinstance(times.get(partition), PositionGone)
        }
        return at | dict.fromkeys(look.replaced, inf)

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
        self._handlers, self._metrics = processor._handlers, processor.metrics
        self.one_by_one = self._handlers.one_by_one
        self.interruptible = self._handlers.is_async

    async def open(self) -> None:
        try:
            await self._handlers.open(self.context)
        except Quit as wish:
            self.give_up(wish.error)
            raise
        log.info("partition %s opened in epoch %d", self._lease.partition, self._lease.epoch)

    async def handle(self, events: Sequence[Any], stop: Stop) -> Outcome:
        began = time.perf_counter()
        outcome = await self._handlers.handle(events, self.context, stop)
        took = time.perf_counter() - began
        self._metrics.handled(self._lease.partition, outcome.done, took)
        self._processor._rates.add(self._lease.partition, outcome.done)
        return outcome

    async def failed(self, error: BaseException) -> None:
        log.warning("partition %s: %s: %s", self._lease.partition, type(error).__name__, error)
        self._metrics.retried(self._lease.partition)
        await self._processor._tell(error, self.context)
        if isinstance(error, HandlerHung) and len(self._handlers.left_behind) >= HUNG_MAX:
            self.give_up(error)

    async def bury(self, event: Any, error: BaseException | str, attempts: int = 1) -> None:
        assert self._processor._dead_letters is not None
        letter = letter_for(self._lease.group, event, error, attempts)
        await self._processor._dead_letters.put([letter])
        self._metrics.dead_lettered(self._lease.partition)
        log.error("event %s of partition %s is dead: %s", event.sequence, event.partition, error)

    def give_up(self, error: BaseException) -> None:
        self._processor._give_up(error)

    async def close(self, reason: Reason) -> None:
        log.info("partition %s closes: %s", self._lease.partition, reason.value)
        self._metrics.closed(self._lease.partition, reason)
        self._processor._rates.forget(self._lease.partition)
        try:
            await self._handlers.close(reason, self.context)
        except Quit as wish:
            self.give_up(wish.error)


def _check_names(group: Any, instance: Any) -> None:
    if not isinstance(group, str) or not group.strip():
        raise BadInput(f"group must be a name, for example alerts, not {group!r}")
    if instance is not None and not (isinstance(instance, str) and instance.strip()):
        raise BadInput(f"instance must be a name, for example worker-1, not {instance!r}")


def _check_part(name: str, value: Any, kind: type, example: str) -> None:
    """A URL in place of a store would fail only in the middle of the work."""
    if not isinstance(value, kind):
        raise BadInput(f"{name} cannot be {value!r}: give {name}={example}")


def _starts(start: Any) -> Mapping[str, Any]:
    try:
        return starts.parse_per_partition(start)
    except ValueError as error:
        raise BadInput(str(error)) from error


def _default_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
