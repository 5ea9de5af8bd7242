"""Two deployment units on one container under kills, pauses, stops, joins, splits, and outages of
the lease store.

One has a handler that fails now and then. In the end, what each was told amounts to the container.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from chaos.instance import REPLACED
from chaos.processes import Process, Processes, WentWrong, wait_until
from chaos.stores import Store
from chaos.test_chaos import PATIENT, SECONDS, SEED
from support.blocking import result_of
from support.cosmos_process import served_container

import leasehold as lh

pytestmark = [PATIENT, pytest.mark.takes_s(110)]

Mode = Literal["latest", "all"]
MODES: dict[str, Mode] = {"notify": "latest", "archive": "all"}
FAILS = {"notify": 0.0, "archive": 0.1}
ACTIONS = ("kill", "pause", "stop", "join", "outage")
GOOD_ENDS = (0, -signal.SIGKILL, -signal.SIGTERM, REPLACED)
"""SIGTERM: it came before the instance was up to being stopped."""


class Told(NamedTuple):
    operation: str
    lsn: int
    n: int
    at: float = 0.0

    @property
    def what(self) -> tuple[str, int, int]:
        return self.operation, self.lsn, self.n


class Units:
    def __init__(
        self, folder: Path, store: Store, processes: Processes, feed_url: str | None = None
    ) -> None:
        """``feed_url``: of what serves the container."""
        self.folder, self.store_url, self.processes = folder, store.url, processes
        self.outages = cycle(store.outages)
        self.chance = random.Random(SEED)
        self.path = folder / "alerts.db"
        self.feed_url = feed_url or str(self.path)
        self.container = alerts_in(folder)
        self.running: dict[str, list[Process]] = {unit: [] for unit in MODES}
        self.started: list[Process] = []
        self.done: Counter[str] = Counter()

    def start(self, unit: str, *, until_drained: bool = False) -> Process:
        label = f"{unit}-{len(self.started) + 1}"
        said = {
            "feed": self.feed_url,
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
        self.started.append(process)
        return process

    def run(self) -> None:
        for unit in MODES:
            self.start(unit)
            self.start(unit)
        said = {
            "container": str(self.path),
            "seed": SEED,
            "seconds": SECONDS,
            "splits": max(6, int(SECONDS / 10)),
        }
        writer = self.processes.start("writer", "writer", json.dumps(said))
        while writer.running or not all(self.done[action] for action in ACTIONS):
            time.sleep(self.chance.uniform(0.2, 1.0))
            self.disturb()
        if writer.popen.returncode != 0:
            raise WentWrong(f"the writer: {writer.printed()}")
        for unit in MODES:
            self.finish(unit)

    def disturb(self) -> None:
        unit = self.chance.choice(sorted(MODES))
        running = self.running[unit]
        what = self.chance.choice([*ACTIONS, "join"])
        if what != "join" and len(running) < 2:
            what = "join"
        if what == "join" and len(running) >= 4:
            return
        self.done[what] += 1
        if what == "join":
            self.start(unit)
            return
        if what == "outage":
            with next(self.outages)():
                time.sleep(self.chance.uniform(2.5, 4.5))
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

    def finish(self, unit: str) -> None:
        """Stop all of them; then one alone does what is left, and ends by itself."""
        for process in self.running[unit]:
            process.popen.terminate()
        for process in self.started:
            if process.label.startswith(f"{unit}-"):
                self.ends(process, GOOD_ENDS)
        self.ends(self.start(unit, until_drained=True), (0,))

    def ends(self, process: Process, codes: tuple[int, ...]) -> None:
        try:
            wait_until(lambda: not process.running, f"{process.label} ends")
        except WentWrong as error:
            raise WentWrong(f"{error}: {process.printed()}") from None
        if process.popen.returncode not in codes:
            raise WentWrong(f"{process.label}: {process.popen.returncode}: {process.printed()}")

    async def estimate(self, unit: str) -> lh.Estimate:
        store = lh.open_store(self.store_url)
        feed: Any = lh.open_feed(self.feed_url, MODES[unit])
        try:
            return await lh.Estimator(feed, group=unit, store=store).observe()
        finally:
            feed.close()
            await store.close()

    def told(self, unit: str) -> dict[str, list[Told]]:
        """By document: every delivery, in the order of time."""
        found: defaultdict[str, list[Told]] = defaultdict(list)
        for log in self.folder.glob(f"{unit}.*.log"):
            for line in log.read_text().splitlines():
                place, *told = json.loads(line)
                found[place].append(Told(*told))
        return {place: sorted(told, key=lambda each: each.at) for place, told in found.items()}

    def written(self) -> dict[str, list[Told]]:
        """By document: every change, in the order of LSNs."""
        found: defaultdict[str, list[Told]] = defaultdict(list)
        for leaf in result_of(self.container.feed("all").partitions()):
            page = self.container.changes(leaf.id, start="beginning", mode="all")
            while page.changes:
                for change in page.changes:
                    document: dict[str, Any] = change.document or change.previous or {}
                    place = f"{document['home']}/{document['id']}"
                    found[place].append(Told(change.operation, change.lsn, document["n"]))
                page = self.container.changes(leaf.id, page.continuation, mode="all")
        return found


def alerts_in(folder: Path) -> lh.Container:
    """Made when it is first asked for."""
    path = folder / "alerts.db"
    if path.exists():
        return lh.Container.open(path)
    return lh.Container.create(
        path,
        name="alerts",
        namespace="homes.local",
        partition_key="/home",
        ranges=4,
        versions_s=None,
    )


def test_each_unit_ends_with_what_the_container_has(store: Store, tmp_path: Path) -> None:
    holds(tmp_path, store)


def test_so_it_does_with_feed_and_leases_in_cosmos_db(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are gone while the endpoint is stopped, or killed and started again."""
    alerts_in(tmp_path).close()
    with served_container(tmp_path / "alerts.db") as served:
        monkeypatch.setenv("AZURE_COSMOS_KEY_FILE", str(served.key_file))
        store = Store(
            url=served.url_of("leases", "alerts") + "?timeout_s=2",
            outages=[served.frozen, served.down],
        )
        holds(tmp_path, store, served.url_of("homes.local", "alerts"))


def holds(tmp_path: Path, store: Store, feed_url: str | None = None) -> None:
    said = f"seed {SEED}, {SECONDS:g} s, logs in {tmp_path}"
    print(said)
    with Processes(tmp_path) as processes:
        units = Units(tmp_path, store, processes, feed_url)
        try:
            units.run()
        except WentWrong as error:
            pytest.fail(f"{said}: {error}")
    written = units.written()
    assert written
    archive, notify = units.told("archive"), units.told("notify")
    problems = [*of_history(written, archive), *of_newest(written, notify)]
    assert not problems, f"{said}: {len(problems)}, {problems[:20]}"
    leaves = {leaf.id for leaf in result_of(units.container.feed().partitions())}
    for unit in MODES:
        estimate = asyncio.run(units.estimate(unit))
        assert {each.partition for each in estimate.partitions} == leaves
        assert (estimate.lag_events, estimate.lag_s, estimate.gone) == (0, 0.0, ())
        assert all(each.checkpoint == each.end for each in estimate.partitions)
    changes = sum(map(len, written.values()))
    again = sum(map(len, archive.values())) - changes
    print(f"{dict(units.done)}: {changes} changes in {len(leaves)} ranges, {again} told again")


def of_history(written: dict[str, list[Told]], told: dict[str, list[Told]]) -> list[str]:
    """Each change at least once, and for the first time in its turn, whatever was split meanwhile:
    a child that overtook its parent would show here."""
    problems = [f"{place} was told and never written" for place in told.keys() - written.keys()]
    for place, changes in written.items():
        first = list(dict.fromkeys(each.what for each in told.get(place, [])))
        if first != [each.what for each in changes]:
            problems.append(f"{place}: {first} instead of {[each.what for each in changes]}")
    return problems


def of_newest(written: dict[str, list[Told]], told: dict[str, list[Told]]) -> list[str]:
    """Nothing but what was written, and the newest state of each document that is there."""
    problems = []
    for place, changes in written.items():
        known = {each.lsn: each.n for each in changes}
        found = {each.lsn: each.n for each in told.get(place, [])}
        if not found.items() <= known.items():
            problems.append(f"{place}: {found} was told, {known} written")
        newest = changes[-1]
        if newest.operation != "delete" and newest.lsn not in found:
            problems.append(f"{place}: {newest} is missing")
    return problems


ONE, TWO, END = Told("insert", 1, 1), Told("replace", 4, 2), Told("delete", 6, 2)


@pytest.mark.parametrize(
    ("told", "well"),
    [
        ([ONE, TWO, END], True),
        ([ONE, ONE, TWO, ONE, TWO, END, TWO], True),
        ([ONE, END], False),
        ([ONE, TWO], False),
        ([TWO, ONE, END], False),
        ([ONE, TWO, END, Told("insert", 9, 3)], False),
        ([ONE, Told("replace", 4, 3), END], False),
        ([], False),
    ],
)
def test_a_history_with_a_gap_or_out_of_order_is_noticed(told: list[Told], well: bool) -> None:
    assert (not of_history({"H1/d1": [ONE, TWO, END]}, {"H1/d1": told})) == well
    assert of_history({}, {"H1/d1": [ONE]})


def test_a_newest_state_that_is_missing_is_noticed() -> None:
    upsert, stale = Told("upsert", 4, 2), Told("upsert", 4, 1)
    assert not of_newest({"H1/d1": [ONE, TWO]}, {"H1/d1": [upsert]})
    assert not of_newest({"H1/d1": [ONE, TWO, END]}, {})
    assert of_newest({"H1/d1": [ONE, TWO]}, {"H1/d1": [Told("upsert", 1, 1)]})
    assert of_newest({"H1/d1": [ONE, TWO]}, {"H1/d1": [stale]})
    assert of_newest({"H1/d1": [ONE, TWO]}, {})
