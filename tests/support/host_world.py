"""Hosts with real pumps on virtual time, over the memory store."""

import asyncio

from leasehold.core.model import Group
from leasehold.processor.handlers import Outcome
from leasehold.processor.host import Host
from leasehold.processor.pump import Pump
from leasehold.settings import Pace, Timing
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock
from leasehold.testing.sim_world import SimFeed

GROUP = Group(namespace="sim", feed="feed", name="g")
INTERVAL_S = Timing().balance_interval_s


class Work:
    one_by_one, interruptible = False, True

    def __init__(self, world, instance, hold):
        self.world, self.instance, self.hold = world, instance, hold

    async def open(self):
        pass

    async def handle(self, events, stop):
        await self.world.hold_up.wait()
        partition = self.hold.lease.partition
        self.world.handled += [(partition, event, self.instance) for event in events]
        return Outcome(done=len(events))

    async def failed(self, error):
        self.world.reports.append(("handling", error))

    async def close(self, reason):
        pass


class World:
    def __init__(self, partitions=4, settings=None):
        self.clock = SimClock()
        self.feed = SimFeed(partitions)
        self.store = MemoryStore(self.clock)
        self.settings = settings or Timing()
        self.handled = []
        self.reports = []
        self.hold_up = asyncio.Event()
        self.hold_up.set()
        self.tasks = {}

    def host(self, instance, store=None, incarnation=None, work=Work, feed=None, **more):
        store, feed = store or self.store, feed or self.feed

        def pump(hold):
            return Pump(
                hold,
                feed=feed,
                store=store,
                work=work(self, instance, hold),
                clock=self.clock,
                report=lambda what, error: self.reports.append((what, error)),
                pace=Pace(max_events=10),
            )

        given = {
            "incarnation": incarnation or instance,
            "start_worker": pump,
            "settings": self.settings,
        }
        return Host(
            feed=feed,
            group="g",
            store=store,
            instance=instance,
            clock=self.clock,
            report=lambda what, error: self.reports.append((what, error)),
            **(given | more),
        )

    def start(self, instance, **more):
        host = self.host(instance, **more)
        self.tasks[host] = asyncio.ensure_future(host.run())
        return host

    async def stop(self, host):
        host.stop()
        await self.tasks[host]

    def owners(self):
        return {lease.partition: lease.owner for lease in self.store._snapshot(GROUP).leases}
