"""One instance's upkeep of its group: heartbeat, renew, look, plan, take, shed, release.

The loop asks the store, lets ``core.balance`` decide, and starts or stops a pump per partition. It
never decides by its own wall clock and holds no state that the store does not know better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol, TypeVar
from zlib import crc32

from leasehold.clock import within
from leasehold.core.balance import (
    Assign,
    Plan,
    Timing,
    by_count,
    expires_in_s,
    missing,
    next_look_s,
    plan,
)
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Group, Member
from leasehold.errors import BadInput, InstanceReplaced, PositionGone
from leasehold.ports import Clock, Feed, LeaseStore
from leasehold.processor.pump import Hold, Report

T = TypeVar("T")
TAKE_MAX = 128
"""Leases taken in one request: a store with a record at a time must get done within a timeout."""


class Worker(Protocol):
    """What the host starts for each lease it holds; ``Pump`` is one."""

    hold: Hold

    def let_go(self, offered_to: str | None, reason: Reason) -> None: ...

    def lose(self) -> None: ...

    async def run(self) -> Reason: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Timing):
    request_timeout_s: float = 5.0
    drain_timeout_s: float = 60.0
    """How long an orderly stop waits for work in hand."""

    def check(self) -> None:
        """Refuse settings that cannot work, by name."""
        for name in ("lease_ttl_s", "balance_interval_s", "shed_timeout_s", "request_timeout_s"):
            if not 0 < getattr(self, name) < inf:
                raise BadInput(f"{name} must be more than 0 seconds, not {getattr(self, name)!r}")
        if not 0 <= self.drain_timeout_s < inf:
            raise BadInput(f"drain_timeout_s must be 0 or more, not {self.drain_timeout_s!r}")
        if self.lease_ttl_s < 2 * self.balance_interval_s:
            raise BadInput(
                f"lease_ttl_s={self.lease_ttl_s:g} leaves no time for a second renewal: make it at "
                f"least twice balance_interval_s ({2 * self.balance_interval_s:g})"
            )


class Host:
    def __init__(
        self,
        *,
        feed: Feed,
        group: str,
        store: LeaseStore,
        instance: str,
        incarnation: str,
        start_worker: Callable[[Hold], Worker],
        clock: Clock,
        report: Report,
        settings: Settings | None = None,
        start: Any = "earliest",
        assign: Assign = by_count,
        weigh: Callable[[str], float] = lambda partition: 1.0,
    ) -> None:
        self.settings = settings or Settings()
        self.settings.check()
        if not instance.strip():
            raise BadInput("instance must be a name, for example worker-1")
        self.group = Group(namespace=feed.namespace, feed=feed.name, name=group)
        self.instance = instance
        self.workers: dict[str, Worker] = {}
        self.moves = 0
        """Leases taken so far, for metrics."""
        self._incarnation = incarnation
        # No two instances keep in step, where a renewal could always come between another's look
        # and its claim.
        self._stride = 0.9 + 0.1 * crc32(incarnation.encode()) / 2**32
        self._feed, self._store, self._start = feed, store, start
        self._start_worker, self._assign, self._weigh = start_worker, assign, weigh
        self._clock, self._report = clock, report
        self._tasks: dict[str, asyncio.Task[Reason]] = {}
        self._waiting: Mapping[tuple[str, int], float] = {}
        self._met: frozenset[str] = frozenset()
        self._looked_at = 0.0
        self._unsettled_since: float | None = None
        self._wake = asyncio.Event()
        self._stopping_since: float | None = None
        self._announced = False

    async def run(self) -> None:
        """Take part in the group until ``stop``; then pass everything on and leave."""
        joined = ready = False
        while not self._drained():
            began = self._clock.monotonic()
            next_at = began + self._stride * self.settings.hurry_s
            try:
                if not joined:
                    await self._ask(self._store.join(self.group, self._member()))
                    joined = True
                next_at = await self._tick(began)
                ready = True
            except InstanceReplaced:
                await self._lose_all()
                raise
            except Exception as error:
                # Trouble passes and must not end an instance; what cannot work from the start (a
                # wrong password, a start position that is not there) does not.
                if not ready and isinstance(error, BadInput | PositionGone):
                    if joined:
                        await self._leave()
                    raise
                self._report(f"upkeep of {self.group} at {self.instance}", error)
                if self._stopping_since is not None:  # whoever shall have them: begin nothing more
                    for worker in self.workers.values():
                        worker.let_go(None, Reason.SHUTDOWN)
            await self._sleep(max(next_at - self._clock.monotonic(), 0.0))
        await self._leave()

    def stop(self) -> None:
        """Begin an orderly stop: finish batches in hand, checkpoint, release, leave."""
        if self._stopping_since is None:
            self._stopping_since = self._clock.monotonic()
            self._wake.set()

    def abandon(self) -> None:
        """End whatever is still under way here, now, without a word to anybody."""
        for task in tuple(self._tasks.values()):
            task.cancel()

    async def _tick(self, began: float) -> float:
        """One round of upkeep; when to begin the next."""
        member = self._member()
        if not await self._ask(self._store.heartbeat(self.group, member)):
            raise InstanceReplaced(
                f"instance {self.instance!r} of {self.group} was started again elsewhere; "
                "this one stops. Give each instance a name of its own."
            )
        if member.leaving and not self._announced:
            # Others that stop at the same moment say so, too, before anyone deals out its leases.
            self._announced = True
            if self._met - {self.instance}:
                await self._clock.sleep(self.settings.moment_s)
        await self._renew()
        known = await self._ask(self._feed.partitions())
        snapshot = await self._ask(self._store.snapshot(self.group))
        if new := missing(snapshot, known):
            begun = any(lease.epoch for lease in snapshot.leases)
            starts = {
                p: await self._ask(self._feed.locate(p, "earliest" if begun else self._start_of(p)))
                for p in new  # one that appeared since then is all news, wherever the others began
            }
            await self._ask(self._store.create(self.group, starts))
            snapshot = await self._ask(self._store.snapshot(self.group))
        if self._stopping_since is not None and not self._announced:
            return began  # asked to stop meanwhile: the others must hear of it first
        now = self._clock.monotonic()
        if now - self._looked_at > 2 * self.settings.balance_interval_s:
            self._waiting = {}  # asleep or cut off meanwhile: nobody was kept waiting
        self._looked_at = now
        todo = plan(
            snapshot,
            known,
            me=self.instance,
            held=self.workers,
            waiting=self._waiting,
            met=self._met,
            now=now,
            timing=self.settings,
            leaving=self._stopping_since is not None,
            assign=self._assign,
        )
        await self._follow(todo)
        if todo.settled:
            self._unsettled_since = None
        elif self._unsettled_since is None:
            self._unsettled_since = now
        if todo.look_again:
            return now + self.settings.moment_s
        since = self._unsettled_since
        usual_s = next_look_s(None if since is None else now - since, self.settings)
        expiry_s = expires_in_s(snapshot, self.instance) + 0.02 * self.settings.balance_interval_s
        # Half of a hurry at least: a store may tell ages in whole seconds only.
        return min(began + self._stride * usual_s, now + max(expiry_s, self.settings.hurry_s / 2))

    async def _renew(self) -> None:
        holds = {p: worker.hold for p, worker in self.workers.items()}
        if not holds:
            return
        sent = self._clock.monotonic()
        wanted = [replace(hold.lease, weight=self._weigh(p)) for p, hold in holds.items()]
        kept = {lease.partition for lease in await self._ask(self._store.renew(wanted))}
        for partition, hold in holds.items():
            if partition in kept:
                hold.until = self._until(sent)
            elif (worker := self.workers.get(partition)) and worker.hold is hold:
                worker.lose()

    async def _follow(self, todo: Plan) -> None:
        self._waiting, self._met = todo.waiting, todo.members
        stopping = self._stopping_since is not None
        for partition, member in todo.shed.items():
            reason = Reason.SHUTDOWN if stopping else Reason.BALANCED
            self.workers[partition].let_go(member, reason)
        orphans = {lease.partition for lease in todo.take if lease.owner is not None}
        for first in range(0, len(todo.take), TAKE_MAX):
            sent, some = self._clock.monotonic(), todo.take[first : first + TAKE_MAX]
            won = await self._ask(
                self._store.acquire(some, self.instance, self.settings.lease_ttl_s)
            )
            for lease in won:
                self.moves += 1
                orphaned = lease.partition in orphans
                self._start_work(Hold(lease, self._until(sent), orphaned=orphaned))

    def _start_work(self, hold: Hold) -> None:
        partition = hold.lease.partition
        worker = self.workers[partition] = self._start_worker(hold)
        task = self._tasks[partition] = asyncio.ensure_future(worker.run())
        task.add_done_callback(lambda done: self._ended(partition, done))

    def _ended(self, partition: str, task: asyncio.Task[Reason]) -> None:
        del self.workers[partition], self._tasks[partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(f"work on partition {partition} of {self.group}", error)
        if self._drained():
            self._wake.set()

    def _until(self, sent: float) -> float:
        """Stop beginning new work well before others may take the lease."""
        return sent + 0.75 * self.settings.lease_ttl_s

    def _member(self) -> Member:
        return Member(
            instance=self.instance,
            incarnation=self._incarnation,
            ttl_s=self.settings.lease_ttl_s,
            leaving=self._stopping_since is not None,
        )

    def _start_of(self, partition: str) -> Any:
        """Start positions may be given per partition, with "*" for the rest."""
        if not isinstance(self._start, Mapping):
            return self._start
        return self._start.get(partition, self._start.get("*", "earliest"))

    def _drained(self) -> bool:
        if self._stopping_since is None:
            return False
        late = self._clock.monotonic() - self._stopping_since > self.settings.drain_timeout_s
        return late or not self.workers

    async def _leave(self) -> None:
        await self._lose_all()
        try:
            await self._ask(self._store.leave(self.group, self._member()))
        except Exception as error:  # it will be noticed as gone by its age
            self._report(f"leaving {self.group} as {self.instance}", error)

    async def _lose_all(self) -> None:
        """End what did not end in time, without writing anything more."""
        for worker in tuple(self.workers.values()):
            worker.lose()
        if tasks := tuple(self._tasks.values()):
            try:
                await self._ask(asyncio.wait(tasks))
            except TimeoutError:
                for task in tasks:
                    task.cancel()

    async def _ask(self, request: Awaitable[T]) -> T:
        return await within(self._clock, self.settings.request_timeout_s, request)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await within(self._clock, seconds, self._wake.wait())
            self._wake.clear()
