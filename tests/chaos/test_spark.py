"""Three Spark applications on one hub or Kafka topic under kills, pauses, joins, and outages of
leases, table and brokers: exactly once, to the event.

The sum of the aggregates in Delta is what was sent, per home and minute, and what is no reading is
among the dead letters.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pytest
from azure.storage.blob import BlobServiceClient
from chaos.feeds import FeedPlace, hub_place, kafka_place
from chaos.instance import REPLACED
from chaos.processes import Process, Processes, WentWrong, wait_until
from chaos.readings import BAD
from chaos.stores import Store, postgres_store, sqlite_store
from chaos.test_chaos import SEED
from deltalake import DeltaTable
from support.blocking import result_of
from support.servers import Azurite, Postgres

import leasehold as lh
from leasehold.core.ranges import Range

pytestmark = pytest.mark.takes_s(150)

EVENTS = int(os.environ.get("LEASEHOLD_CHAOS_EVENTS") or 30_000)
SECONDS = float(os.environ.get("LEASEHOLD_CHAOS_S") or 25.0)
APPLICATIONS = 3
ACTIONS = ("kill", "pause", "join", "outage")
PATIENCE_S = 240.0
GOOD_ENDS = (0, -signal.SIGKILL, -signal.SIGTERM, REPLACED)
COUNTS = ["home_id", "minute", "count"]


class Applications:
    def __init__(
        self,
        folder: Path,
        places: tuple[Store, str, dict[str, str]],
        feed: FeedPlace,
        processes: Processes,
    ) -> None:
        self.folder, self.feed, self.processes = folder, feed, processes
        store, sink, options = places
        self.outages = cycle([*feed.outages[:1], *store.outages])
        self.chance = random.Random(SEED)
        self.said = {
            "folder": str(folder),
            "feed": feed.url,
            "store": store.url,
            "sink": sink,
            "options": options,
            "max_events": max(4_000, EVENTS // 20),
        }
        self.running: list[Process] = []
        self.started: list[Process] = []
        self.done: Counter[str] = Counter()

    def start(self, *, until_drained: bool = False) -> Process:
        label = f"app-{len(self.started) + 1}"
        said = self.said | {"instance": label, "until_drained": until_drained}
        process = self.processes.start(label, "spark_app", json.dumps(said))
        self.running.append(process)
        self.started.append(process)
        return process

    def run(self) -> None:
        for _ in range(APPLICATIONS):
            self.start()
        wait_until(self.all_at_work, "all applications have partitions", PATIENCE_S)
        rate = str(EVENTS / SECONDS)
        producer = self.processes.start("producer", "readings", self.feed.url, str(EVENTS), rate)
        while producer.running or not all(self.done[action] for action in ACTIONS):
            time.sleep(self.chance.uniform(2.0, 6.0))
            self.disturb()
        if producer.popen.returncode:
            raise WentWrong(f"the producer: {producer.printed()}")
        last = self.start(until_drained=True)
        wait_until(lambda: not last.running, "the last one drains the feed", PATIENCE_S)
        for process in self.running:
            if process.running:
                process.popen.terminate()
        wait_until(lambda: not any(p.running for p in self.started), "all end", PATIENCE_S)
        for process in self.started:
            if process.popen.returncode not in GOOD_ENDS:
                raise WentWrong(f"{process.label} ended with {process.popen.returncode}")

    def all_at_work(self) -> bool:
        for process in self.running:
            if not process.running:
                raise WentWrong(f"{process.label}: {process.printed()}")
        return all(map(_at_work, self.running))

    def disturb(self) -> None:
        self.running = [process for process in self.running if process.running]
        busy = [process for process in self.running if _at_work(process)]
        missing = [action for action in ACTIONS if not self.done[action]]
        what = self.chance.choice(missing or ACTIONS)
        if len(self.running) < APPLICATIONS:
            what = "join"
        elif what == "join" and len(self.running) > APPLICATIONS:
            what = "kill"
        if what != "join" and len(busy) < 2:
            return  # Java takes its time to start
        self.done[what] += 1
        if what == "join":
            self.start()
            return
        if what == "outage":
            with next(self.outages)():
                time.sleep(self.chance.uniform(4.5, 7.0))
            return
        process = self.chance.choice(busy)
        if what == "kill":  # with Java and its Python workers, as when a machine dies
            self.running.remove(process)
            _signal(process, signal.SIGKILL)
        else:  # longer than its leases live, so that it wakes up as a zombie
            _signal(process, signal.SIGSTOP)
            time.sleep(self.chance.uniform(4.5, 7.0))
            _signal(process, signal.SIGCONT)

    def sent(self) -> tuple[pl.DataFrame, int]:
        """Per home and minute, read from the feed; and how many are no readings."""
        frames, bad = [], 0
        with self.feed.opened() as feed:
            kept = result_of(feed.extents())
            ranges = [Range(partition=e.partition, first=e.first, end=e.end) for e in kept]
            for chunk in feed.read_columns(ranges):
                bodies = [b for b in chunk.columns(["body"]).column(0).to_pylist() if b != BAD]
                bad += len(chunk) - len(bodies)
                frames.append(pl.read_ndjson(b"\n".join(bodies)))
        minute = (pl.col("ts") // 60_000).alias("minute")
        found = pl.concat(frames).group_by("home_id", minute).agg(pl.len().alias("count"))
        return _sorted(found), bad

    def counted(self) -> pl.DataFrame:
        table = DeltaTable(self.said["sink"], storage_options=self.said["options"])
        rows = pl.DataFrame(table.to_pyarrow_table(columns=COUNTS))
        return _sorted(rows.group_by("home_id", "minute").agg(pl.col("count").sum()))


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("home_id", "minute", pl.col("count").cast(pl.Int64)).sort(
        "home_id", "minute"
    )


def _at_work(process: Process) -> bool:
    return "opened in epoch" in process.output.read_text(errors="replace")


def _signal(process: Process, number: int) -> None:
    try:
        os.killpg(process.popen.pid, number)
    except ProcessLookupError:
        return


COMBINATIONS = [("sqlite-folder", "hub"), ("postgresql-azurite", "kafka")]
if "LEASEHOLD_CHAOS_S" in os.environ:
    COMBINATIONS += [("sqlite-folder", "kafka"), ("postgresql-azurite", "hub")]


@pytest.fixture
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> FeedPlace:
    if request.param == "hub":
        return hub_place(tmp_path / "hub.db", 16)
    return kafka_place(request.getfixturevalue("own_kafka"), 16)


@pytest.fixture
def places(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Store, str, dict[str, str]]:
    """The lease store, the table, and how to get at its storage."""
    if request.param == "sqlite-folder":
        return sqlite_store(tmp_path / "leases.db"), str(tmp_path / "table"), {}
    azurite: Azurite = request.getfixturevalue("own_azurite")
    postgres: Postgres = request.getfixturevalue("own_postgres")
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    container = f"spark-{uuid4().hex[:8]}"
    with BlobServiceClient.from_connection_string(azurite.connection_string) as service:
        service.create_container(container)
    store = postgres_store(postgres)
    # So the storage client knows that it is the emulator, which cannot list from a blob on.
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azurite.url.removesuffix(f"/{azurite.account}"))
    store = replace(store, outages=[*store.outages, azurite.frozen])
    return store, f"az://{container}/activity", {"azure_storage_use_emulator": "true"}


@pytest.mark.timeout(1800 + 4 * SECONDS)
@pytest.mark.parametrize(("places", "feed"), COMBINATIONS, indirect=True)
def test_each_event_counts_once_whatever_happens_to_the_applications(
    places: tuple[Store, str, dict[str, str]], feed: FeedPlace, tmp_path: Path
) -> None:
    with Processes(tmp_path) as processes:
        group = Applications(tmp_path, places, feed, processes)
        try:
            group.run()
        finally:
            for process in group.started:
                _signal(process, signal.SIGKILL)
    expected, bad = group.sent()
    found = group.counted()
    print(f"{EVENTS:,} events, {dict(group.done)}, {found.height:,} homes and minutes, {bad} bad")
    assert expected["count"].sum() + bad == EVENTS
    assert found.equals(expected), found.join(
        expected, on=["home_id", "minute"], how="full"
    ).filter(pl.col("count").ne_missing(pl.col("count_right")))
    assert _letters(tmp_path) == bad


def _letters(folder: Path) -> Any:
    async def main() -> int:
        store = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
        found = await store.count(lh.LetterFilter())
        await store.close()
        return sum(found.values())

    return asyncio.run(main())
