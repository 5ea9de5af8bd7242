"""Two deployment units on one container under kills, pauses, stops, joins and splits.

One has a delegate that fails now and then. In the end, what each was told amounts to the container.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path

from chaos.instance import REPLACED
from chaos.processes import Process, Processes, WentWrong, wait_until
from chaos.test_chaos import SECONDS, SEED

import leasehold as lh

MODES = {"notify": "latest", "archive": "all"}
FAILS = {"notify": 0.0, "archive": 0.1}
GOOD_ENDS = (0, -signal.SIGKILL, -signal.SIGTERM, REPLACED)
"""SIGTERM: it came before the instance was up to being stopped."""


class Units:
    def __init__(self, folder: Path, store_url: str, processes: Processes) -> None:
        self.folder, self.store_url, self.processes = folder, store_url, processes
        self.chance = random.Random(SEED)
        self.path = folder / "alerts.db"
        self.container = lh.Container.create(
            self.path,
            name="alerts",
            namespace="homes.local",
            partition_key="/home",
            ranges=4,
            versions_s=None,
        )
        self.running: dict[str, list[Process]] = {unit: [] for unit in MODES}
        self.started = 0

    def start(self, unit: str, *, until_drained: bool = False) -> Process:
        self.started += 1
        label = f"{unit}-{self.started}"
        said = {
            "container": str(self.path),
            "store": self.store_url,
            "unit": unit,
            "mode": MODES[unit],
            "fails": FAILS[unit],
            "instance": label,
            "log": str(self.folder / f"{unit}.{label}.log"),
            "seed": self.chance.randrange(1 << 32),
            "until_drained": until_drained,
        }
        process = self.processes.start(label, "unit", json.dumps(said))
        self.running[unit].append(process)
        return process

    def disturb(self) -> None:
        unit = self.chance.choice(sorted(MODES))
        running = self.running[unit]
        what = self.chance.choice(["kill", "pause", "stop", "join", "join"])
        if what == "join" or len(running) < 2:
            if len(running) < 4:
                self.start(unit)
            return
        process = running.pop(self.chance.randrange(len(running)))
        if what == "kill":
            process.popen.kill()
        elif what == "stop":
            process.popen.terminate()
        else:  # longer than its leases live, so that it wakes up as a zombie
            os.kill(process.popen.pid, signal.SIGSTOP)
            time.sleep(self.chance.uniform(2.5, 3.5))
            os.kill(process.popen.pid, signal.SIGCONT)
            running.append(process)

    def finish(self) -> None:
        for unit, running in self.running.items():
            for process in running:
                process.popen.terminate()
            for process in running:
                wait_until(lambda process=process: not process.running, f"{process.label} stops")
                if process.popen.returncode not in GOOD_ENDS:
                    raise WentWrong(f"{process.label}: {process.printed()}")
            for _ in range(8):  # what is split is drained a generation at a time
                last = self.start(unit, until_drained=True)
                wait_until(lambda last=last: not last.running, f"{last.label} drains the rest")
                if last.popen.returncode != 0:
                    raise WentWrong(f"{last.label}: {last.printed()}")
                if asyncio.run(self.leased(unit)) == {x.id for x in self.container.feed().leaves()}:
                    break
            last = self.start(unit, until_drained=True)
            wait_until(lambda last=last: not last.running, f"{last.label} drains the rest")

    async def leased(self, unit: str) -> set[str]:
        feed, store = self.container.feed(MODES[unit]), lh.open_store(self.store_url)
        try:
            group = lh.Group(namespace=feed.namespace, feed=feed.name, name=unit)
            return {lease.partition for lease in (await store.snapshot(group)).leases}
        finally:
            await store.close()

    def told(self, unit: str) -> dict[str, list[tuple[str, int, int, int]]]:
        """place → operation, LSN, n and epoch of every delivery, in the order of LSNs."""
        found = defaultdict(list)
        for log in self.folder.glob(f"{unit}.*.log"):
            for line in log.read_text().splitlines():
                place, operation, lsn, n, epoch = json.loads(line)
                found[place].append((operation, lsn, n, epoch))
        return {place: sorted(told, key=lambda each: each[1]) for place, told in found.items()}


def test_each_unit_ends_with_what_the_container_has(store_url: str, tmp_path: Path) -> None:
    print(f"seed {SEED}, {SECONDS:g} s")
    with Processes(tmp_path) as processes:
        units = Units(tmp_path, store_url, processes)
        for unit in MODES:
            units.start(unit)
            units.start(unit)
        said = {"container": str(units.path), "seed": SEED, "seconds": SECONDS, "splits": 6}
        writer = processes.start("writer", "writer", json.dumps(said))
        while writer.running:
            time.sleep(units.chance.uniform(0.2, 1.0))
            units.disturb()
        assert writer.popen.returncode == 0, writer.printed()
        units.finish()
        judge(units)


def judge(units: Units) -> None:
    feed = units.container.feed("all")
    written = defaultdict(list)
    for leaf in feed.leaves():
        page = units.container.changes(leaf.id, max_items=100_000, start="beginning", mode="all")
        for change in page.changes:
            document = change.document or change.previous or {}
            place = f"{document['home']}/{document['id']}"
            written[place].append((change.operation, change.lsn, document["n"]))
    assert written, "nothing was written"
    history = units.told("archive")
    for place, wanted in written.items():
        told = list(dict.fromkeys((op, lsn, n) for op, lsn, n, _ in history.get(place, [])))
        assert told == sorted(wanted, key=lambda each: each[1]), place
    newest = units.told("notify")
    present = 0
    for place, wanted in written.items():
        operation, lsn, n = max(wanted, key=lambda each: each[1])
        if operation != "delete":
            present += 1
            assert newest[place][-1][1:3] == (lsn, n), place
    assert present
    deliveries = sum(len(told) for told in history.values())
    changes = sum(len(wanted) for wanted in written.values())
    print(f"{changes} changes, {deliveries - changes} told again, {units.started} instances")
