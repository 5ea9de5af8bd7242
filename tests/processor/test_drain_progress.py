"""Whoever drains a feed can tell how far it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from support.processing import make_hub
from support.pump_rig import GROUP

import leasehold as lh
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.processor.drain import Drain
from leasehold.settings import Pace
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock, run_virtual


def drained(hub: lh.Hub) -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    lh.Processor(
        hub,
        group="g",
        store=lh.open_store(f"sqlite:///{hub.path.parent}/leases.db"),
        on_event=lambda event: None,
        max_events=5,
    ).run(until_drained=True, on_drain=lambda done, total: told.append((done, total)))
    return told


def test_progress_rises_to_all_that_was_there(tmp_path: Path) -> None:
    hub = make_hub(tmp_path, partitions=2, events=50)
    told = drained(hub)
    assert told[-1] == (hub.properties().events,) * 2
    assert told == sorted(told)
    assert drained(hub)[-1] == (0, 0)  # there was nothing left to do


def test_a_drain_ends_although_telling_of_it_fails(tmp_path: Path) -> None:
    hub = make_hub(tmp_path, partitions=2, events=50)
    told: list[tuple[int, int]] = []

    def broken(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 40:
            worker.stop()  # it would go on for ever
        raise BrokenPipeError("nobody listens")

    worker = lh.Processor(
        hub,
        group="g",
        store=lh.open_store(f"sqlite:///{tmp_path}/leases.db"),
        on_event=lambda event: None,
    )
    worker.run(until_drained=True, on_drain=broken)
    assert len(told) == 1
    assert drained(hub)[-1] == (0, 0)


class MergedAgain:
    """Range P was split into A and B, and those were merged into M: before the group knew."""

    async def partitions(self) -> list[Partition]:
        return [Partition(id="M", ancestors=("B", "A", "P"))]

    async def extents(self) -> list[Extent]:
        return [Extent(partition=each, first=0, end=10) for each in "MABP"]

    async def event_times(self, positions: Any) -> dict[str, float]:
        return {}


def test_a_range_that_was_split_and_merged_again_is_drained_to_its_end() -> None:
    async def main() -> list[tuple[bool, int]]:
        clock = SimClock()
        store = MemoryStore(clock)
        drain = Drain(MergedAgain(), store, GROUP, clock=clock, pace=Pace(), pause_s=1.0)
        told = []

        async def look() -> None:
            await clock.sleep(2.0)
            told.append((await drain.is_done({}), drain.left))

        await store.create(GROUP, {"P": Checkpoint(next_sequence=4)})
        (lease,) = await store.acquire(store._snapshot(GROUP).leases, "a", 100.0)
        await look()
        await store.split(lease, {"M": Checkpoint(next_sequence=4)})
        await look()
        await look()
        (lease,) = await store.acquire(store._snapshot(GROUP).leases, "a", 100.0)
        await store.checkpoint([replace(lease, checkpoint=Checkpoint(next_sequence=10))])
        await look()
        return [told[0], *told[2:]]

    assert run_virtual(main()) == [(False, 6), (False, 6), (True, 0)]
