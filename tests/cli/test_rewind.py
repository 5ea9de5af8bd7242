import asyncio
import json
from dataclasses import replace

import pytest
from support.command_line import leasehold

from leasehold.core.model import Group
from leasehold.feeds.hub import Hub
from leasehold.stores.sqlite import SqliteStore

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")


class World:
    """A hub with two partitions of 30 and 20 events, and a group that has processed 10 of each."""

    def __init__(self, folder):
        self.path, self.file = folder / "sensors.db", folder / "leases.db"
        self.words = (self.path, "--group", "alerts", "--store", f"sqlite:///{self.file}")
        with Hub.create(self.path, name="sensors", namespace="homes.local", partitions=2) as hub:
            for partition, batches in ((0, 3), (1, 2)):
                for _ in range(batches):
                    hub.send_columns(None, [b"x"] * 10, partition_id=partition)
            starts = {p: hub.position_of(p, 10) for p in ("0", "1")}
        self.do(lambda store: store.create(GROUP, starts))

    def do(self, story):
        async def with_store():
            store = SqliteStore(self.file)
            try:
                return await story(store)
            finally:
                await store.close()

        return asyncio.run(with_store())

    def take(self, partition, owner):
        async def story(store):
            seen = (await store.snapshot(GROUP)).leases
            wanted = [lease for lease in seen if lease.partition == partition]
            return (await store.acquire(wanted, owner, 600.0))[0]

        return self.do(story)

    def positions(self):
        look = self.do(lambda store: store.snapshot(GROUP))
        return {lease.partition: lease.checkpoint.next_sequence for lease in look.leases}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def refused(world, *words):
    before = world.positions()
    done = leasehold("rewind", *world.words, *words, "--yes", ok=False)
    assert done.returncode == 2
    assert world.positions() == before
    return " ".join(done.stderr.split())


def test_a_group_is_sent_back_after_a_yes_having_seen_what_will_happen(world):
    done = leasehold("rewind", *world.words, "--to", "sequence:4", stdin="y\n")
    said = " ".join(done.stderr.split())
    assert "10 │ 4 │ 6 events again" in said
    assert "Move 2 partitions of homes.local/sensors/alerts?" in said
    assert "12 events will be delivered again" in said
    assert "2 partitions moved to sequence:4" in done.stdout
    assert world.positions() == {"0": 4, "1": 4}


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_without_a_yes_nothing_is_changed(world, answer):
    done = leasehold("rewind", *world.words, "--to", "earliest", stdin=answer, ok=False)
    assert done.returncode == 1
    assert world.positions() == {"0": 10, "1": 10}


def test_only_the_named_partition_is_moved_and_json_tells_all(world):
    words = ("--to", "latest", "--partition", "1", "--yes", "--json")
    (row,) = json.loads(leasehold("rewind", *world.words, *words).stdout)
    assert row == {
        "partition": "1",
        "owner": None,
        "from": 10,
        "to": 20,
        "again": 0,
        "skipped": 10,
        "done": True,
        "why_not": None,
    }
    assert world.positions() == {"0": 10, "1": 20}


def test_events_that_will_be_skipped_are_said_before_the_question(world):
    done = leasehold("rewind", *world.words, "--to", "latest", stdin="n\n", ok=False)
    assert "30 events will be SKIPPED" in " ".join(done.stderr.split())


@pytest.mark.parametrize("kind", ["time:2020-01-01T00:00:00Z", "offset"])
def test_a_time_or_an_offset_will_do(world, kind):
    if kind == "offset":
        with Hub.open(world.path) as hub:
            kind += ":" + hub.read_batch("0", hub.position_of("0", "earliest"), 1).events[0].offset
    leasehold("rewind", *world.words, "--to", kind, "--partition", "0", "--yes")
    assert world.positions() == {"0": 0, "1": 10}


def test_a_live_owner_is_named_with_what_to_do(world):
    held = world.take("1", "[b]worker-7[/b]")
    text = refused(world, "--to", "earliest")
    assert "owners are alive: [b]worker-7[/b] (partition 1)" in text
    assert "killed is gone after 600 s" in text
    assert "--fence" in text
    leasehold("rewind", *world.words, "--to", "earliest", "--fence", "--yes")
    assert world.positions() == {"0": 0, "1": 0}
    late = replace(held, checkpoint=replace(held.checkpoint, next_sequence=15))
    assert world.do(lambda store: store.checkpoint([late])) == ()


def test_positions_that_are_not_there_are_refused_as_a_whole(world):
    with Hub.open(world.path) as hub:
        hub.trim_before("0", 10)
    text = refused(world, "--to", "sequence:25")
    assert "partition 1: sequence 25 is beyond the end" in text
    text = refused(world, "--to", "sequence:3")
    assert "partition 0: sequence 3 is older than what the hub keeps: it keeps sequences 10" in text
    assert "Nothing was changed" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "noon"), "--to: start 'noon' is not one of"),
        (("--to", "earliest", "--partition", "9"), "partition '9' is unknown: there are 0, 1"),
        (("--to", "earliest", "--group", "alert"), "homes.local/sensors/alert has no leases"),
    ],
)
def test_a_mistake_is_refused_with_what_would_do(world, words, says):
    assert says in refused(world, *words)


def test_where_all_is_in_place_nothing_is_done(world):
    text = leasehold("rewind", *world.words, "--to", "sequence:10").stdout
    assert "nothing to do" in text


def test_a_partition_that_could_not_be_moved_is_reported_and_the_exit_is_one(world):
    """An instance takes a partition while the operator is being asked."""
    program = f"""
import asyncio
from leasehold.cli import rewind
from leasehold.core.model import Group
from leasehold.stores.sqlite import SqliteStore

async def take():
    store = SqliteStore({str(world.file)!r})
    group = Group(namespace="homes.local", feed="sensors", name="alerts")
    leases = (await store.snapshot(group)).leases
    await store.acquire([lease for lease in leases if lease.partition == "1"], "worker-9", 600)
    await store.close()

def confirm(*_, **__):
    import threading
    thread = threading.Thread(target=lambda: asyncio.run(take()))
    thread.start()
    thread.join()

import sys
sys.modules["leasehold.cli.rewind"].confirm = confirm
from leasehold.cli import main
main()
"""
    done = leasehold("rewind", *world.words, "--to", "earliest", program=program, ok=False)
    assert done.returncode == 1
    assert "1 partition moved to earliest" in done.stdout
    assert "not moved: partition 1: worker-9 took it meanwhile" in done.stderr
    assert world.positions() == {"0": 0, "1": 10}
