"""Rules that only show with real processes."""

import json
import multiprocessing
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leasehold.core.event import EventData
from leasehold.feeds.hub import Hub

PRODUCER = """
import sys
from leasehold.feeds.hub import Hub
hub, name = Hub.open(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    keys = [f"{name}-{place % 5}" for place in range(40)]
    bodies = [f"{name} {number} {place} " + "x" * (place * 50) for place in range(40)]
    hub.send_columns(keys, bodies)
    print(number, flush=True)
"""


def start_producer(hub: Hub, name: str, sends: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(hub.path), name, str(sends)],
        stdout=subprocess.PIPE,
        text=True,
    )


def sends_of(hub: Hub) -> dict[str, dict[int, list[int]]]:
    """What the hub holds: by producer and send, the places of its events; checks order and gaps."""
    found: dict[str, dict[int, list[int]]] = {}
    for partition in hub.properties().partition_ids:
        last: dict[str | None, tuple[int, int]] = {}
        start = hub.position_of(partition, "earliest")
        for expected, event in enumerate(hub.read_batch(partition, start, 1_000_000).events):
            assert event.sequence == expected
            name, number, place, _ = event.body.decode().split(" ")
            assert last.get(event.partition_key, (-1, -1)) < (int(number), int(place))
            last[event.partition_key] = (int(number), int(place))
            found.setdefault(name, {}).setdefault(int(number), []).append(int(place))
    return found


def test_a_send_that_returned_survives_a_kill_and_a_torn_one_never_shows(hub: Hub) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    returned = {}
    for life in range(6):
        producer = start_producer(hub, f"p{life}", 100_000)
        assert producer.stdout is not None
        producer.stdout.readline()
        time.sleep(chance.uniform(0, 0.15))
        producer.send_signal(signal.SIGKILL)
        rest = producer.stdout.read().split()
        returned[f"p{life}"] = int(rest[-1]) if rest else 0
        assert producer.wait() == -signal.SIGKILL
    held = sends_of(hub)
    for name, last in returned.items():
        assert set(range(last + 1)) <= set(held[name])
        assert len(held[name]) <= last + 2
        for number, places in held[name].items():
            assert sorted(places) == list(range(40)), (name, number)


KILLED_INSIDE = """
import os, sys
from leasehold.feeds.hub import Hub
from leasehold.local.sqlite import Connections
connect = Connections._connect
def with_trap(self):
    db = connect(self)
    db.set_trace_callback(lambda sql: os.kill(os.getpid(), 9) if sys.argv[2] in sql else None)
    return db
Connections._connect = with_trap
Hub.open(sys.argv[1]).send_columns(["a", "b", "c", "d", "e"] * 100, ["x" * 500] * 500)
"""


@pytest.mark.parametrize("moment", ["UPDATE partitions", "COMMIT"])
def test_a_send_killed_before_its_commit_leaves_nothing(hub: Hub, moment: str) -> None:
    before = [
        hub.send([EventData(b"x")], partition_id=p)[0] for p in hub.properties().partition_ids
    ]
    command = [sys.executable, "-c", KILLED_INSIDE, str(hub.path), moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    for appended in before:
        assert hub.partition_properties(appended.partition).next_sequence == 1
        assert hub.read_arrow(appended.partition, 0).column("body").to_pylist() == [b"x"]
        (again,) = hub.send([EventData(b"y")], partition_id=appended.partition)
        assert again.first_sequence == 1


def test_several_producers_at_once_lose_nothing_and_leave_no_gap(hub: Hub) -> None:
    producers = [start_producer(hub, f"p{each}", 30) for each in range(4)]
    for producer in producers:
        out, _ = producer.communicate()
        assert producer.returncode == 0
        assert len(out.split()) == 30
    held = sends_of(hub)
    assert sorted(held) == ["p0", "p1", "p2", "p3"]
    for sends in held.values():
        assert {number: sorted(places) for number, places in sends.items()} == {
            number: list(range(40)) for number in range(30)
        }


def test_a_reader_beside_a_producer_sees_only_whole_sends_in_order(hub: Hub) -> None:
    producer = start_producer(hub, "p", 60)
    position = hub.position_of(0, "earliest")
    seen = 0
    while (running := producer.poll() is None) or seen < hub.partition_properties(0).events:
        batch = hub.read_batch(0, position, 7)
        for event in batch.events:
            assert event.sequence == seen
            seen += 1
        position = batch.next
        if running:
            states = hub._file.states()
            assert sum(state.next_sequence for state in states) % 40 == 0
    assert producer.communicate()[0].count("\n") == 60
    assert seen == hub.partition_properties(0).events


def test_threads_may_share_one_hub(hub: Hub) -> None:
    failures: list[BaseException] = []

    def produce(name: str) -> None:
        try:
            for number in range(25):
                hub.send_columns([name] * 8, [f"{name} {number} {p} " for p in range(8)])
                hub.read_arrow(0, 0, 50)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(f"t{each}",)) for each in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {name: len(sends) for name, sends in sends_of(hub).items()} == {
        f"t{each}": 25 for each in range(6)
    }


def test_a_forked_child_can_go_on_with_its_parents_hub(hub: Hub) -> None:
    hub.send([EventData(b"parent")], partition_id=0)
    hub.read_arrow(0, 0)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: hub.send([EventData(b"child")], partition_id=0)
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    hub.send([EventData(b"parent")], partition_id=0)
    bodies = hub.read_arrow(0, 0).column("body").to_pylist()
    assert bodies == [b"parent", b"child", b"parent"]


def test_a_child_forked_while_its_parent_was_sending_is_not_stuck(hub: Hub) -> None:
    hub.send([EventData(b"parent")], partition_id=0)
    with hub._file._connections._turn:
        child = multiprocessing.get_context("fork").Process(
            target=lambda: hub.send([EventData(b"child")], partition_id=0)
        )
        child.start()
    child.join(30)
    child.kill()
    assert child.exitcode == 0
    assert hub.read_arrow(0, 0).num_rows == 2


def test_a_child_may_be_handed_the_hub_however_it_is_started(hub: Hub) -> None:
    child = multiprocessing.get_context("spawn").Process(
        target=hub.send, args=([EventData(json.dumps({"a": 1}))],), kwargs={"partition_id": 1}
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    assert hub.read_arrow(1, 0).column("body").to_pylist() == [b'{"a": 1}']


def test_creation_that_was_killed_leaves_nothing_that_passes_for_a_hub(tmp_path: Path) -> None:
    script = """
import os, sys
from leasehold.feeds.hub import file as hub_file
from leasehold.feeds.hub import Hub
hub_file._add_partitions = lambda *_: os._exit(9)
Hub.create(sys.argv[1], name="h", namespace="n", partitions=2)
"""
    path = tmp_path / "h.db"
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == 9
    assert not path.exists()
    with Hub.create(path, name="h", namespace="n", partitions=2) as hub:
        assert hub.properties().events == 0
