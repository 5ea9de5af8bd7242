"""What the web process knows of the instances' cycles."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import leasehold as lh
from homes.local.cycles import CycleFile, read_cycles
from homes.web.operations import Operations, WatchedGroup
from leasehold.spark import Progress

PROGRESS = Progress(
    events=100_000,
    seconds=1.9,
    partitions=8,
    owned=8,
    lag_events=5,
    target_s=2.0,
    next_events=110_000,
    size_bytes=15_000_000,
    parts={"plan": 0.01, "job": 1.8, "commit": 0.05},
)


def test_the_latest_cycle_of_each_instance_is_known_while_it_is_recent(tmp_path: Path) -> None:
    folder = tmp_path / "cycles"
    for name, at in (("one", 1000.0), ("two", 500.0)):
        CycleFile(folder / f"{name}.json", lambda at=at: at).write(PROGRESS)  # type: ignore[misc]
    (folder / "torn.json").write_text('{"at_ms": 1')
    (folder / "odd.json").write_text("[]")
    assert read_cycles(folder, lambda: 1010.0) == {
        "one": {
            "at_ms": 1_000_000,
            "target_s": 2.0,
            "seconds": 1.9,
            "events": 100_000,
            "bytes": 15_000_000,
            "parts": {"plan": 0.01, "job": 1.8, "commit": 0.05},
        }
    }


def test_no_instance_fails_because_nobody_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "cycles").write_text("no folder")
    CycleFile(tmp_path / "cycles" / "one.json").write(PROGRESS)
    assert read_cycles(tmp_path / "cycles") == {}


def test_operators_see_the_cycle_beside_its_instance(tmp_path: Path) -> None:
    hub = lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="homes", partitions=1)
    store = lh.open_store("memory://")
    CycleFile(tmp_path / "cycles" / "one.json").write(PROGRESS)
    watched = WatchedGroup(feed=hub, group="activity", store=store)
    operations = Operations([watched], cycles=lambda: read_cycles(tmp_path / "cycles"))
    opened = threading.Event()
    worker = lh.Processor(
        hub,
        group="activity",
        store=store,
        on_event=print,
        on_partition_open=opened.set,
        instance="one",
        balance_interval_s=0.05,
    )

    async def main() -> None:
        running = asyncio.ensure_future(worker.run_async())
        assert await asyncio.to_thread(opened.wait, 60)
        await operations.look()
        worker.stop()
        await running

    asyncio.run(main())
    (instance,) = operations.as_dict()["groups"][0]["instances"]
    assert instance["cycle"]["target_s"] == 2.0
    assert os.listdir(tmp_path / "cycles") == ["one.json"]
