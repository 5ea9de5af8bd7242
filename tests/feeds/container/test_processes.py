"""Rules that only show with real processes."""

import multiprocessing
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from support.blocking import result_of
from support.feed_files import can_be_split

from leasehold.core.change import Change
from leasehold.core.model import Checkpoint
from leasehold.feeds.container import Container
from leasehold.feeds.container.change_feed import ChangeFeed

WRITER = """
import sys
from leasehold.feeds.container import Container
container, name = Container.open(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    homes = [f"{name}-{place % 7}" for place in range(10)]
    container.upsert_many(
        {"id": str(place), "home_id": home, "n": number, "x": "x" * (place * 50)}
        for place, home in enumerate(homes)
    )
    print(number, flush=True)
"""


def start_writer(container: Container, name: str, writes: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(container.path), name, str(writes)],
        stdout=subprocess.PIPE,
        text=True,
    )


def follow(feed: ChangeFeed, leases: dict[str, Checkpoint], found: list[Change]) -> bool:
    """One read of each range; split ones give way to their children."""
    moved = False
    for range, position in tuple(leases.items()):
        batch = feed.read_batch(range, position, 37)
        found += batch.events
        leases[range] = batch.next
        if batch.children:
            del leases[range]
            leases |= batch.children
        moved = moved or bool(batch.events) or bool(batch.children)
    return moved


def beginning(feed: ChangeFeed) -> dict[str, Checkpoint]:
    return {leaf.id: feed.position_of(leaf.id, "earliest") for leaf in result_of(feed.partitions())}


def all_changes(container: Container, mode: Any) -> list[Change]:
    feed, found = container.feed(mode), []
    leases = beginning(feed)
    while follow(feed, leases, found):
        pass
    return found


def test_a_write_that_returned_survives_a_kill_and_a_torn_one_never_shows(
    container: Container,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    returned = {}
    for life in range(5):
        writer = start_writer(container, f"p{life}", 100_000)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        returned[f"p{life}"] = int(rest[-1]) if rest else 0
        assert writer.wait() == -signal.SIGKILL
        container.split(chance.choice(can_be_split(container)))
    for name, last in returned.items():
        documents = [d for n in range(7) for d in container.list(f"{name}-{n}")]
        assert len(documents) == 10
        assert len({d["n"] for d in documents}) == 1
        assert documents[0]["n"] in (last, last + 1)
    versions: dict[tuple[str, int], int] = {}
    for change in all_changes(container, "all"):
        assert change.document is not None
        key = (change.document["home_id"].split("-")[0], change.document["n"])
        versions[key] = versions.get(key, 0) + 1
    assert set(versions.values()) == {10}
    assert container.properties().documents == 50


KILLED_INSIDE = """
import os, sys
from leasehold.feeds.container import Container
from leasehold.local.sqlite import Connections
connect = Connections._connect
def with_trap(self):
    db = connect(self)
    db.set_trace_callback(lambda sql: os.kill(os.getpid(), 9) if sys.argv[2] in sql else None)
    return db
Connections._connect = with_trap
container = Container.open(sys.argv[1])
if sys.argv[3] == "split":
    container.split("0")
else:
    container.upsert_many({"id": str(n), "home_id": f"H{n}"} for n in range(100))
"""


@pytest.mark.parametrize(
    ("moment", "what"),
    [
        ("INSERT INTO changes", "write"),
        ("UPDATE ranges", "write"),
        ("COMMIT", "write"),
        ("INSERT INTO ranges", "split"),
        ("UPDATE head", "split"),
        ("COMMIT", "split"),
    ],
)
def test_what_is_killed_before_its_commit_leaves_nothing(
    container: Container, moment: str, what: str
) -> None:
    stored = container.insert({"id": "a", "home_id": "H1"})
    command = [sys.executable, "-c", KILLED_INSIDE, str(container.path), moment, what]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    properties = container.properties()
    assert (properties.documents, properties.next_lsn, len(properties.ranges)) == (1, 2, 4)
    assert [change.document for change in all_changes(container, "all")] == [stored]
    assert container.insert({"id": "b", "home_id": "H1"})["_lsn"] == 2
    container.split("0")


def test_a_reader_beside_writers_and_splits_passes_over_no_change(container: Container) -> None:
    """Changes become visible in the order of their LSNs, so reading on can miss none."""
    writers = [start_writer(container, f"p{each}", 25) for each in range(3)]
    readers = {mode: container.feed(mode) for mode in ("latest", "all")}
    leases = {mode: beginning(feed) for mode, feed in readers.items()}
    found: dict[str, list[Change]] = {"latest": [], "all": []}
    chance, running = random.Random(1), True
    while running:
        running = any(writer.poll() is None for writer in writers)
        for mode, feed in readers.items():
            follow(feed, leases[mode], found[mode])
        if sum(not each.split for each in container.ranges()) < 10:
            container.split(chance.choice(can_be_split(container)))
    for mode, feed in readers.items():
        while follow(feed, leases[mode], found[mode]):
            pass
    assert [writer.communicate()[0].count("\n") for writer in writers] == [25] * 3
    assert sorted(change.lsn for change in found["all"]) == list(range(1, 751))
    for changes in found.values():
        last: dict[tuple[str, str], int] = {}
        for change in changes:
            assert change.document is not None
            which = (change.document["home_id"], change.document["id"])
            assert last.get(which, -1) < change.document["n"]
            last[which] = change.document["n"]
        assert set(last.values()) == {24}
        assert len(last) == 30


def test_threads_may_share_one_container(container: Container) -> None:
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for n in range(25):
                container.upsert({"id": str(n), "home_id": name})
                container.changes(container.range_of(name))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"t{each}",)) for each in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert container.properties().documents == 150
    assert container.properties().next_lsn == 151


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_child_may_go_on_with_its_parents_container(container: Container, way: str) -> None:
    container.insert({"id": "parent", "home_id": "H1"})
    container.changes("0")
    child = multiprocessing.get_context(way).Process(
        target=container.insert, args=({"id": "child", "home_id": "H1"},)
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    container.insert({"id": "parent again", "home_id": "H1"})
    ids = [change.document["id"] for change in all_changes(container, "latest") if change.document]
    assert ids == ["parent", "child", "parent again"]
