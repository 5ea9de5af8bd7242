"""A pump with everything around it, on virtual time."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

from leasehold.core.event import Event
from leasehold.core.model import Checkpoint, Group
from leasehold.errors import FeedUnavailable, PositionGone
from leasehold.ports import Batch
from leasehold.processor.handlers import Outcome
from leasehold.processor.pump import Pump
from leasehold.processor.work import Hold
from leasehold.settings import Pace, Retry
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock

GROUP = Group(namespace="n", feed="f", name="g")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BURY = Retry(attempts=2, then="dead-letter", backoff_s=1, backoff_max_s=4)


class ListFeed:
    namespace, name = "n", "f"

    def __init__(self, count):
        self.count = count
        self.first = 0
        self.reads = []
        self.fails = 0

    async def read(self, partition, position, max_events):
        self.reads.append(position.next_sequence)
        if self.fails:
            self.fails -= 1
            raise FeedUnavailable("try again")
        if position.next_sequence < self.first or position.next_sequence > self.count:
            raise PositionGone(
                "gone",
                partition=partition,
                position=position,
                reason="retention" if position.next_sequence < self.first else "beyond end",
                earliest=Checkpoint(next_sequence=self.first),
                latest=Checkpoint(next_sequence=self.count),
            )
        upto = min(position.next_sequence + max_events, self.count)
        events = [
            Event(b"x", n, str(n), NOON, partition) for n in range(position.next_sequence, upto)
        ]
        return Batch(events=events, next=Checkpoint(next_sequence=upto, token=str(upto - 1)))


class GappyFeed(ListFeed):
    """One whose last sequences hold nothing any more, as if what was there had been deleted; nor
    do those in ``without``."""

    def __init__(self, count, empty_from):
        super().__init__(count)
        self.empty_from = empty_from
        self.without = set()

    async def read(self, partition, position, max_events):
        batch = await super().read(partition, position, max_events)
        events = [
            event
            for event in batch.events
            if event.sequence < self.empty_from and event.sequence not in self.without
        ]
        upto = events[-1].sequence + 1 if events else self.count
        return replace(batch, events=events, next=Checkpoint(next_sequence=upto))


class Desk:
    """The work, and a record of it."""

    def __init__(self, clock, bad=(), one_by_one=False, takes_s=0.1, interruptible=True):
        self.clock, self.bad, self.takes_s = clock, set(bad), takes_s
        self.one_by_one, self.interruptible = one_by_one, interruptible
        self.calls, self.done, self.buried, self.errors = [], [], [], []
        self.closed, self.gave_up, self.pump = [], None, None
        self.opens = 0
        self.open_fails = 0

    async def open(self):
        self.opens += 1
        if self.opens <= self.open_fails:
            raise OSError("no room")

    async def handle(self, events, stop):
        self.calls.append([event.sequence for event in events])
        await self.clock.sleep(self.takes_s)
        if not self.one_by_one:
            if poison := [e.sequence for e in events if e.sequence in self.bad]:
                return Outcome(done=0, error=ValueError(f"bad {poison[0]}"))
            self.done += [event.sequence for event in events]
            return Outcome(done=len(events))
        for done, event in enumerate(events):
            if event.sequence in self.bad:
                return Outcome(done=done, error=ValueError(f"bad {event.sequence}"))
            self.done.append(event.sequence)
            if stop(done + 1):
                return Outcome(done=done + 1)
        return Outcome(done=len(events))

    async def failed(self, error):
        self.errors.append(error)

    async def bury(self, event, error, attempts):
        self.buried.append((event.sequence, error, attempts))

    def give_up(self, error):
        self.gave_up = error

    async def close(self, reason):
        self.closed.append(reason)


class Rig:
    def __init__(self, count=10, at=0, **desk):
        self.clock = SimClock()
        self.store = MemoryStore(self.clock)
        self.feed = ListFeed(count)
        self.desk = Desk(self.clock, **desk)
        self.at = at
        self.reports = []

    async def start(
        self,
        *,
        policy=None,
        retry=None,
        orphaned=False,
        overruled=False,
        turns=None,
        gate=None,
        **pace,
    ):
        start = Checkpoint(next_sequence=self.at)
        await self.store.create(GROUP, {"0": start})
        (lease,) = await self.store.acquire([self.lease()], "a", 10.0)
        hold = Hold(lease, until=float("inf"), orphaned=orphaned, overruled=overruled)
        pump = Pump(
            hold,
            feed=self.feed,
            store=self.store,
            work=self.desk,
            clock=self.clock,
            report=lambda what, error: self.reports.append((what, error)),
            pace=Pace(**{"max_events": 10, **pace}),
            retry=retry,
            policy=policy,
            chance=lambda: 0.5,
            turns=turns,
            gate=gate,
        )
        self.desk.pump = pump
        self.task = asyncio.ensure_future(pump.run())
        return pump

    def lease(self):
        return self.store._snapshot(GROUP).leases[0]

    @property
    def checkpoint(self):
        return self.lease().checkpoint.next_sequence

    @property
    def writes(self):
        return self.store.requests["checkpoint"]
