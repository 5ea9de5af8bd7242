"""What a processor keeps in memory, by Arrow's own count: no timing, no guess."""

import asyncio
import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processing import make_processor, open_leases, running, until

import leasehold as lh
from leasehold.core.model import Checkpoint
from leasehold.local.threads import THREADS
from leasehold.processor.budget import Budget
from leasehold.processor.reader import Reader
from leasehold.settings import Pace
from leasehold.testing.sim_time import run_virtual
from leasehold.testing.sim_world import SimFeed

BODY_BYTES = 16_000
EVENTS = 200
BATCH_BYTES = BODY_BYTES * EVENTS


@pytest.fixture
def hub(tmp_path):
    hub = lh.Hub.create(
        tmp_path / "hub.db",
        name="sensors",
        namespace="homes",
        partitions=4,
        batch_bytes_max=1 << 24,
    )
    yield hub
    hub.close()


def send(hub, batches):
    for partition in hub.properties().partition_ids:
        for _ in range(batches):
            hub.send([lh.EventData(bytes(BODY_BYTES))] * EVENTS, partition_id=partition)


@pytest.mark.parametrize("how", ["on_batch", "on_event"])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_processor_with_nothing_to_do_keeps_no_events(tmp_path, hub, how, is_async):
    contexts = {}

    def plain(given, context):
        contexts[context.partition] = context

    async def on_loop(given, context):
        contexts[context.partition] = context

    async def main():
        handler = {how: on_loop if is_async else plain}
        processor = make_processor(hub, open_leases(tmp_path), max_events=EVENTS, **handler)
        before = pa.total_allocated_bytes()
        async with running(processor):
            send(hub, batches=2)
            end = {str(p): 2.0 * EVENTS for p in range(4)}
            await until(lambda: processor._in_hand() == end)
            await until(lambda: pa.total_allocated_bytes() - before < BATCH_BYTES / 10)
            # What may still be asked for is there.
            assert {each.latest.sequence for each in contexts.values()} == {2 * EVENTS - 1}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("allowed", "least", "most"), [(0, 4, 4), (2.5, 4, 6), (100, 8, 8)], ids=lambda n: f"{n}"
)
def test_read_ahead_keeps_to_max_bytes_over_all_partitions(tmp_path, hub, allowed, least, most):
    """One batch a partition is in hand whatever it takes; what is ahead of them has to fit. All
    numbers are of batches."""
    began, go = [], threading.Event()

    def on_batch(events):
        began.append(events.partition)
        go.wait(60)

    async def main():
        processor = make_processor(
            hub,
            open_leases(tmp_path),
            on_batch=on_batch,
            max_events=EVENTS,
            max_bytes=int(allowed * BATCH_BYTES),
            poll_interval_s=3600.0,
        )
        send(hub, batches=3)
        before = pa.total_allocated_bytes()
        async with running(processor):
            try:
                await until(lambda: len(began) == 4)
                for _ in range(3 * THREADS):  # whatever was asked for before these is there
                    await asyncio.gather(*(hub.extents() for _ in range(THREADS)))
                in_memory = (pa.total_allocated_bytes() - before) / BATCH_BYTES
                assert least - 0.1 < in_memory < most + 0.5
            finally:
                go.set()
            await until(lambda: len(began) == 12)
            await until(lambda: processor._budget.held_bytes == 0)
        assert processor._budget.held_bytes == 0

    asyncio.run(main())


@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["read", "ahead", "forget"]))),
    max_bytes=st.integers(0, 50),
)
def test_what_is_counted_is_what_is_there(steps, max_bytes):
    """However reads, reading ahead and giving up follow on one another."""

    class Sized(SimFeed):
        async def read(self, partition, position, max_events):
            batch = await super().read(partition, position, max_events)
            return replace(batch, size_bytes=position.next_sequence % 7 * len(batch.events))

    async def main():
        feed, budget = Sized(3), Budget(max_bytes)
        readers = [Reader(feed, p, Pace(max_events=3), budget) for p in feed.leaves()]
        at = [Checkpoint(next_sequence=0)] * 3
        for partition in feed.leaves():
            feed.append(partition, 12)
        for number, step in steps:
            reader = readers[number]
            if step == "read":
                at[number] = (await reader.read(at[number])).next
            elif step == "forget":
                reader.forget()
            elif reader._ahead is None:
                before = budget.held_bytes
                reader.read_ahead(at[number])
                assert reader._ahead is None or before + reader._in_hand_bytes <= max_bytes
            await asyncio.sleep(0)
        for reader in readers:
            reader.close()
        assert budget.held_bytes == 0

    run_virtual(main())
