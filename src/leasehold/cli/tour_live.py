"""Real processes that share a hub: one joins, one is killed, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from leasehold.core.event import EventData
from leasehold.core.model import Group
from leasehold.errors import LeaseholdError
from leasehold.feeds.hub import Hub
from leasehold.stores import open_store

INSTANCE = """
import os, sys
import leasehold as lh

folder, name = sys.argv[1:]
out = os.open(f"{folder}/{name}.handled", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def on_batch(events):
    os.write(out, "".join(f"{e.partition}:{e.sequence}\\n" for e in events).encode())

lh.Processor(
    lh.Hub.open(f"{folder}/hub.db"),
    group="demo",
    store=lh.open_store(f"sqlite:///{folder}/leases.db"),
    on_batch=on_batch,
    instance=name,
    lease_ttl_s=2,
    balance_interval_s=0.5,
).run()
"""
BOUND_S = 90.0


def live(console: Console) -> None:
    """Takes about ten seconds; everything is in a temporary folder and stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="leasehold-demo-") as folder:
        hub = Hub.create(f"{folder}/hub.db", name="sensors", namespace="homes.local", partitions=16)
        stop = threading.Event()
        producer = threading.Thread(target=_produce, args=(hub, stop))
        producer.start()
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in ("one", "two", "three"):
                running[name] = _start(folder, name)
            _await_owners(console, folder, running, "three processes have joined")
            killed = running.pop("two")
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait()
            began = time.monotonic()
            _await_owners(console, folder, running, "two was killed (SIGKILL)")
            console.print(
                f"   its partitions were taken over {time.monotonic() - began:.1f} s later"
            )
            stop.set()
            producer.join()
            sent = {(p, n) for p in hub.properties().partition_ids for n in range(_end(hub, p))}
            handled = _await_all(folder, sent)
            console.print(
                f"   {len(sent):,} events sent, {len(handled):,} handled, "
                f"{sum(handled.values()) - len(handled):,} of them twice because of the kill, "
                f"[bold]{len(sent - handled.keys())} lost[/]",
                highlight=False,
            )
        finally:
            stop.set()
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait(BOUND_S)
            producer.join()
            hub.close()


def _produce(hub: Hub, stop: threading.Event) -> None:
    n = 0
    while not stop.wait(0.05):
        hub.send([EventData(f"reading {n}") for _ in range(100)], partition_key=f"H{n}")
        n += 1


def _start(folder: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", INSTANCE, folder, name], stderr=subprocess.DEVNULL
    )


def _await_owners(
    console: Console, folder: str, running: dict[str, subprocess.Popen[bytes]], what: str
) -> None:
    """Wait until the partitions are evenly with exactly these."""
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        counts = asyncio.run(_owners(folder))
        if set(counts) == set(running) and max(counts.values()) - min(counts.values()) <= 1:
            owned = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
            console.print(f"   {what}: {owned} partitions", highlight=False)
            return
        time.sleep(0.05)
    raise LeaseholdError(
        f"{what}, but the partitions did not even out within {BOUND_S:g} s: this machine is too "
        "busy; try again later"
    )


async def _owners(folder: str) -> Counter[str]:
    store = open_store(f"sqlite:///{folder}/leases.db")
    try:
        group = Group(namespace="homes.local", feed="sensors", name="demo")
        leases = (await store.snapshot(group)).leases
        return Counter(lease.owner or "nobody" for lease in leases)
    finally:
        await store.close()


def _end(hub: Hub, partition: str) -> int:
    return hub.partition_properties(partition).next_sequence


def _await_all(folder: str, sent: set[tuple[str, int]]) -> Counter[tuple[str, int]]:
    end = time.monotonic() + BOUND_S
    while True:
        handled: Counter[tuple[str, int]] = Counter()
        for log in Path(folder).glob("*.handled"):
            for line in log.read_text().splitlines():
                partition, _, sequence = line.partition(":")
                handled[partition, int(sequence)] += 1
        if sent <= handled.keys() or time.monotonic() > end:
            return handled
        time.sleep(0.1)
