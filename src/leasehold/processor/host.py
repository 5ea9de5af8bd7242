"""One instance's upkeep of its group: heartbeat, renew, look, plan, take, shed, release.

The loop asks the store, lets ``core.balance`` decide, and starts or stops a pump per partition. It
never decides by its own wall clock and holds no state that the store does not know better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from zlib import crc32

from leasehold.clock import gather_all, within
from leasehold.core.balance import (
    Assign,
    Plan,
    Waiting,
    by_count,
    expires_in_s,
    missing,
    next_look_s,
    plan,
)
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.core.watch import Watched, watch
from leasehold.errors import BadInput, InstanceReplaced, PositionGone
from leasehold.ports import Clock, Feed, LeaseStore
from leasehold.processor.claims import Claims
from leasehold.processor.offers import Offers
from leasehold.processor.renewals import LEASES_MAX, Renewals
from leasehold.processor.work import Hold, Report, Worker
from leasehold.settings import TIMING, Timing

T = TypeVar("T")
LOCATE_MAX = 32
"""Start positions that the feed is asked for at once."""


class Host:
    renewals = Renewals

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
        settings: Timing = TIMING,
        start: Any = "earliest",
        assign: Assign = by_count,
        weigh: Callable[[str], float] = lambda partition: 1.0,
    ) -> None:
        self.settings = settings
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
        self._start_worker, self._assign = start_worker, assign
        self._clock, self._report = clock, report
        self._tasks: dict[str, asyncio.Task[Reason]] = {}
        self._waiting: Waiting = {}
        self._met: frozenset[str] = frozenset()
        self._watched: Watched | None = None
        self._heard_at, self._cut_off = clock.monotonic(), False
        """When the store last answered, and whether it was silent for long since the last look."""
        self._renewals = self.renewals(
            self.group,
            self.workers,
            store,
            ask=self._ask_store,
            heartbeat=lambda: self._heartbeat(self._member()),
            weigh=weigh,
            clock=clock,
            report=report,
            settings=settings,
        )
        self._unsettled_since: float | None = None
        self.offers = Offers()
        self._claims = Claims(instance)
        self._giving: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping_since: float | None = None
        self.stop_asked = asyncio.Event()
        self._announced = False
        self._turned_at: float | None = None
        """When the loop last made a step; None: it has not begun."""
        self._renewed_at: float | None = None
        """When this instance last said that it is there, and renewed what it holds."""

    async def run(self) -> None:
        """Take part in the group until ``stop``; then pass everything on and leave."""
        try:
            await self._take_part()
        finally:
            self._renewals.close()
            if self._giving is not None:
                self._giving.cancel()

    async def _take_part(self) -> None:
        joined = ready = False
        self._heard_at = self._clock.monotonic()  # it may have been made long ago
        while not self._drained():
            began = self._turned_at = self._clock.monotonic()
            next_at = began + self._stride * self.settings.hurry_s
            try:
                if not joined:
                    await self._ask_store(self._store.join(self.group, self._member()))
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
                if self._watched is None:
                    self._cut_off = True  # others may have come up to the same silent store
                self._report(f"upkeep of {self.group} at {self.instance}", error)
                if self._stopping_since is not None:  # whoever shall have them: begin nothing more
                    for worker in self.workers.values():
                        worker.let_go(None, Reason.SHUTDOWN)
            await self._sleep(max(next_at - self._clock.monotonic(), 0.0))
        await self._leave()

    @property
    def is_turning(self) -> bool:
        """Whether the loop makes its steps. Other threads may ask."""
        turned_at = self._turned_at
        now = self._clock.monotonic()
        return turned_at is None or now - turned_at <= self.settings.alive_s

    @property
    def is_renewing(self) -> bool:
        """Whether it is a member and stays one. Other threads may ask."""
        renewed_at, now = self._renewed_at, self._clock.monotonic()
        fresh = renewed_at is not None and now - renewed_at <= self.settings.lease_ttl_s
        return fresh and not self._renewals.unknown and self._stopping_since is None

    def stop(self) -> None:
        """Begin an orderly stop: finish batches in hand, checkpoint, release, leave."""
        if self._stopping_since is None:
            self._stopping_since = self._clock.monotonic()
            self._wake.set()
            self.stop_asked.set()

    @property
    def stopping_for_s(self) -> float | None:
        """How long ago an orderly stop began; None: it did not."""
        since = self._stopping_since
        return None if since is None else self._clock.monotonic() - since

    def abandon(self) -> None:
        """End whatever is still under way here, now, without a word to anybody."""
        for task in tuple(self._tasks.values()):
            task.cancel()

    async def _tick(self, began: float) -> float:
        """One round of upkeep; when to begin the next."""
        member = self._member()
        try:
            await self._heartbeat(member)
        except InstanceReplaced:
            raise
        except Exception:
            await self._renew(reached=False)  # one bad record must not cost the others
            raise
        if member.leaving and not self._announced:
            # Others that stop at the same moment say so, too, before anyone deals out its leases.
            self._announced = True
            if self._met - {self.instance}:
                await self._clock.sleep(self.settings.moment_s)
        await self._renew()
        self._renewed_at = began
        known = await self._meanwhile(self._ask(self._feed.partitions()))
        snapshot = await self._look()
        if self._stopping_since is None and (new := missing(snapshot, known)):
            # One that appeared since the group began is all news, wherever the others began.
            begun = any(lease.epoch for lease in snapshot.leases)
            wanted = {p: "earliest" if begun else self._start_of(p) for p in new}
            starts = await self._meanwhile(self._locate(wanted))
            if starts is None:
                return began
            await self._ask_store(self._store.create(self.group, starts))
            snapshot = await self._look()
        if self._stopping_since is not None and not self._announced:
            return began  # asked to stop meanwhile: the others must hear of it first
        now = self._clock.monotonic()
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
            given_up=self.offers.given_up(now),
            missed=self.offers.missed(now),
            assign=self._assign,
        )
        self.offers.look(snapshot, self.instance, todo.members, now)
        await self._follow(todo)
        if self._stopping_since is not None:
            self._give_back(snapshot)
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

    async def _heartbeat(self, member: Member) -> None:
        if not await self._ask_store(self._store.heartbeat(self.group, member)):
            raise InstanceReplaced(
                f"instance {self.instance!r} of {self.group} was started again elsewhere; "
                "this one stops. Give each instance a name of its own."
            )

    async def _meanwhile(self, work: Awaitable[T]) -> T:
        """What the feed is asked for. However slow it is, what is held stays renewed, and a long
        silence remains one of the store's."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                with suppress(TimeoutError):
                    await within(self._clock, self.settings.hurry_s, asyncio.wait((task,)))
                if task.done():
                    return task.result()
                await self._heartbeat(self._member())
                await self._renew()
                self._renewed_at = self._clock.monotonic()
        finally:
            task.cancel()

    async def _locate(self, wanted: Mapping[str, Any]) -> dict[str, Checkpoint] | None:
        """Where each begins. All of them are written at once, or another instance would take those
        that it does not find for newcomers, and begin them elsewhere. None: asked to stop, and
        of thousands nobody should wait for the last."""
        found: dict[str, Checkpoint] = {}
        names = list(wanted)
        for first in range(0, len(names), LOCATE_MAX):
            if self._stopping_since is not None:
                return None
            some = names[first : first + LOCATE_MAX]
            asked = [self._ask(self._feed.locate(p, wanted[p])) for p in some]
            found |= zip(some, await gather_all(asked), strict=True)
        return found

    async def _look(self) -> Snapshot:
        """All leases and members, with ages that this instance's own clock agrees to."""
        asked = self._clock.monotonic()
        snapshot = await self._ask_store(self._store.snapshot(self.group))
        if self._cut_off:
            self._waiting = {}  # nobody was kept waiting by others meanwhile
        self._watched, snapshot = watch(
            self._watched,
            snapshot,
            asked=asked,
            answered=(answered := self._clock.monotonic()),
            cut_off=self._cut_off,
            doubt_s=self.settings.doubt_s,
        )
        # What took so long to come is of before the silence: the next look spares them as well.
        self._cut_off = answered - asked > self.settings.silence_s
        self._claims.look(snapshot)
        return snapshot

    async def _renew(self, *, reached: bool = True) -> None:
        await self._renewals.renew(reached=reached)

    async def _follow(self, todo: Plan) -> None:
        self._waiting, self._met = todo.waiting, todo.members
        stopping = self._stopping_since is not None
        for partition, member in todo.shed.items():
            worker, now = self.workers[partition], self._clock.monotonic()
            if stopping or self.offers.offer(worker.hold.lease, member, now):
                worker.let_go(member, Reason.SHUTDOWN if stopping else Reason.BALANCED)
        renewed = self._clock.monotonic()
        for first in range(0, len(todo.take), LEASES_MAX):
            sent, some = self._clock.monotonic(), todo.take[first : first + LEASES_MAX]
            if sent - renewed > self.settings.balance_interval_s:
                # Taking many takes long where each record is a request: those had stay renewed.
                await self._heartbeat(self._member())
                await self._renew()
                renewed = sent = self._clock.monotonic()
            former = self._claims.send(some)
            won = await self._ask_store(
                self._store.acquire(some, self.instance, self.settings.lease_ttl_s)
            )
            for lease in won:
                self.moves += 1
                self.offers.taken(lease, sent)
                self._claims.answered(lease.partition)
                orphaned, overruled = former[lease.partition]
                until = self._until(sent)
                self._start_work(Hold(lease, until, orphaned=orphaned, overruled=overruled))

    def _give_back(self, snapshot: Snapshot) -> asyncio.Task[None] | None:
        """What it has without having been told so; beside upkeep, which waits for no locked one."""
        strays = self._claims.strays(snapshot, self.workers)
        if strays and (self._giving is None or self._giving.done()):
            self._giving = asyncio.ensure_future(self._release(strays))
        return self._giving

    async def _release(self, leases: Sequence[Lease]) -> None:
        async def release(lease: Lease) -> None:
            try:
                await self._ask_store(self._store.release([replace(lease, offered_to=None)]))
                self._claims.answered(lease.partition)
            except Exception as error:
                self._report(f"releasing {lease.partition} of {self.group}", error)

        try:
            await self._heartbeat(self._member())  # or they are the next one's of that name
        except Exception:  # upkeep will find the same, and say so
            return
        await gather_all([release(lease) for lease in leases])

    def _start_work(self, hold: Hold) -> None:
        partition = hold.lease.partition
        worker = self.workers[partition] = self._start_worker(hold)
        task = self._tasks[partition] = asyncio.ensure_future(worker.run())
        task.add_done_callback(lambda done: self._ended(partition, done))

    def _ended(self, partition: str, task: asyncio.Task[Reason]) -> None:
        del self.workers[partition], self._tasks[partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(f"work on partition {partition} of {self.group}", error)
        elif not task.cancelled() and task.result() is Reason.HUNG:
            self.offers.give_up(partition, self._clock.monotonic())
        if self._drained():
            self._wake.set()

    def _until(self, sent: float) -> float:
        """Stop beginning new work well before others may take the lease."""
        return sent + self.settings.fresh_s

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
        member, late = self._member(), bool(self.workers)
        await self._lose_all()
        if not late:
            await self._give_back_in_time()
        try:
            if (late or self._claims) and member.leaving:
                # What it could not let go in time, or may still get, is its own until that expires.
                # A member that is leaving gets nothing; an owner that is no member would count as
                # another processor.
                await self._ask_store(self._store.heartbeat(self.group, member))
            else:
                await self._ask_store(self._store.leave(self.group, member))
        except Exception as error:  # it will be noticed as gone by its age
            self._report(f"leaving {self.group} as {self.instance}", error)

    async def _give_back_in_time(self) -> None:
        """Others wait for what is left until it expires."""

        async def give_back() -> None:
            if (giving := self._give_back(await self._look())) is not None:
                await giving

        try:
            if self._claims:
                await self._ask(give_back())
        except Exception as error:
            self._report(f"looking for what {self.instance} has of {self.group}", error)

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

    async def _ask_store(self, request: Awaitable[T]) -> T:
        answer = await self._ask(request)
        now = self._clock.monotonic()
        if now - self._heard_at > self.settings.silence_s:
            self._cut_off = True
        self._heard_at = now
        return answer

    async def _ask(self, request: Awaitable[T]) -> T:
        self._turned_at = self._clock.monotonic()
        return await within(self._clock, self.settings.request_timeout_s, request)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await within(self._clock, seconds, self._wake.wait())
            self._wake.clear()
