"""Whatever is written, split, crashed and joined: each unit ends with what the container has.

The real container and the real processor run on virtual time, one step at a time.
"""

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.blocking import result_of

from leasehold.errors import BadInput
from leasehold.feeds.container import Container
from leasehold.operations.estimator import Estimator
from leasehold.processor.changefeed import ChangeFeedProcessor
from leasehold.settings import Retry
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock, SimLoop

pytestmark = pytest.mark.takes_s(40)

UNITS = {"newest": "latest", "history": "all"}
ids = st.sampled_from([f"d{n}" for n in range(6)])
homes = st.sampled_from([f"H{n}" for n in range(4)])
units = st.sampled_from(sorted(UNITS))


class Inline:
    """The container's feed without threads, so that virtual time decides the order of things."""

    def __init__(self, feed):
        self._feed = feed
        self.namespace, self.name = feed.namespace, feed.name

    async def partitions(self):
        return result_of(self._feed.partitions())

    async def locate(self, partition, start):
        return self._feed.position_of(partition, start)

    async def read(self, partition, position, max_events):
        return self._feed.read_batch(partition, position, max_events)

    async def ends(self):
        return result_of(self._feed.ends())

    async def extents(self):
        return result_of(self._feed.extents())

    async def event_times(self, positions):
        return result_of(self._feed.event_times(positions))

    async def remaining(self, positions):
        return result_of(self._feed.remaining(positions))


class ContainerAndUnits(RuleBasedStateMachine):
    @initialize(ranges=st.integers(1, 3))
    def begin(self, ranges):
        self.folder = tempfile.TemporaryDirectory()
        self.loop = SimLoop()
        self.loop.set_exception_handler(lambda loop, context: None)
        self.clock = self.within(self.make_clock())
        self.container = Container.create(
            Path(self.folder.name) / "c.db",
            name="c",
            namespace="n",
            partition_key="/home",
            ranges=ranges,
            versions_s=None,
        )
        self.store = MemoryStore(self.clock)
        self.running = {unit: [] for unit in UNITS}
        self.failing = 0
        self.count = 0
        self.wrote = defaultdict(list)
        """(home, id) → what was done to the document, in order."""
        self.newest = {}
        self.history = defaultdict(list)
        for unit in UNITS:
            self.join(unit)
        self.wait(1)

    async def make_clock(self):
        return SimClock()

    def within(self, work):
        return self.loop.run_until_complete(work)

    # What happens to the container

    @rule(id=ids, home=homes)
    def put(self, id, home):
        self.count += 1
        known = self.container.read(id, home) is not None
        done = self.container.upsert({"id": id, "home": home, "n": self.count})
        self.wrote[home, id].append(("replace" if known else "insert", done["_lsn"]))

    @rule(id=ids, home=homes)
    def delete(self, id, home):
        if self.container.delete(id, home):
            self.wrote[home, id].append(("delete", None))

    @rule(data=st.data())
    def split(self, data):
        if len(self.leaves()) < 8:
            try:
                self.container.split(data.draw(st.sampled_from(self.leaves())))
            except BadInput as error:
                if "single hash" not in str(error):  # it goes no further
                    raise

    def leaves(self):
        return [each.id for each in result_of(self.container.feed().partitions())]

    # What happens to the instances

    @rule(unit=units)
    def join(self, unit):
        if len(self.running[unit]) < 4:
            self.within(self._join(unit))

    async def _join(self, unit):
        processor = self._processor(unit)
        task = asyncio.ensure_future(processor.run_async())
        self.running[unit].append((processor, task))

    @rule(unit=units)
    def drain(self, unit):
        self.failing = 0
        self.within(self._drain(unit))
        self._require_told(unit)

    async def _drain(self, unit):
        async with asyncio.timeout(200):
            await self._processor(unit).run_async(until_drained=True)

    def _processor(self, unit):
        return ChangeFeedProcessor(
            Inline(self.container.feed(UNITS[unit])),
            name=unit,
            on_changes=getattr(self, f"on_{unit}"),
            store=self.store,
            start="beginning",
            max_items=3,
            retry=Retry(backoff_s=0.1, backoff_max_s=1),
            clock=self.clock,
        )

    @rule(unit=units)
    def leave(self, unit):
        if len(self.running[unit]) > 1:
            processor, task = self.running[unit].pop()
            self.within(self._leave(processor, task))

    async def _leave(self, processor, task):
        processor.stop()
        await task

    @rule(unit=units)
    def crash(self, unit):
        if len(self.running[unit]) > 1:
            processor, task = self.running[unit].pop()
            processor._host.abandon()
            self.within(self._kill(task))

    async def _kill(self, task):
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)

    @rule(times=st.integers(1, 3))
    def fail(self, times):
        self.failing += times

    @rule(seconds=st.sampled_from([0.05, 0.7, 4.0, 15.0]))
    def wait(self, seconds):
        self.within(asyncio.sleep(seconds))

    # What the units are told

    async def on_newest(self, changes):
        await self.clock.sleep(0.1)
        self._maybe_fail()
        for change in changes:
            document = change.document
            self.newest[document["home"], document["id"]] = document

    async def on_history(self, changes):
        await self.clock.sleep(0.1)
        self._maybe_fail()
        for change in changes:
            document = change.document or change.previous
            place = self.history[document["home"], document["id"]]
            if change.lsn not in [lsn for _, lsn in place]:  # at least once: it may come again
                place.append((change.operation, change.lsn))

    def _maybe_fail(self):
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the handler failed")

    def _require_told(self, unit):
        for (home, id), done in self.wrote.items():
            now = self.container.read(id, home)
            if unit == "newest":
                assert now is None or self.newest[home, id]["n"] == now["n"]
                continue
            told = self.history[home, id]
            assert [operation for operation, _ in told] == [what for what, _ in done]
            assert all(
                lsn == wanted
                for (_, lsn), (_, wanted) in zip(told, done, strict=True)
                if wanted is not None
            )

    @invariant()
    def each_documents_changes_come_in_order(self):
        for place in getattr(self, "history", {}).values():
            lsns = [lsn for _, lsn in place]
            assert lsns == sorted(lsns)

    def teardown(self):
        if not hasattr(self, "container"):
            return
        self.failing = 0
        self.wait(120)
        try:
            leaves = set(self.leaves())
            for unit, mode in UNITS.items():
                self._require_told(unit)
                group = self.running[unit][0][0].group
                look = self.within(self.store.snapshot(group))
                assert {lease.partition for lease in look.leases} == leaves, mode
                ends = {
                    each.partition: each.end
                    for each in result_of(self.container.feed(mode).extents())
                }
                for lease in look.leases:
                    assert lease.checkpoint.next_sequence == ends[lease.partition], mode
                estimator = Estimator(
                    Inline(self.container.feed(mode)),
                    group=unit,
                    store=self.store,
                    clock=self.clock,
                )
                estimate = self.within(estimator.observe())
                assert (estimate.lag_events, estimate.lag_s, estimate.gone) == (0, 0.0, ())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.within(asyncio.sleep(0))
            self.loop.close()
            self.container.close()
            self.folder.cleanup()


TestContainerAndUnits = ContainerAndUnits.TestCase
TestContainerAndUnits.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, phases=[Phase.explicit, Phase.generate]
)
