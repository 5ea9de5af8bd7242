import asyncio
import json
import signal
import subprocess
from dataclasses import replace

import pytest
from support.command_line import PROGRAM, WIDE, leasehold

from leasehold.core.model import Group, Member
from leasehold.feeds.hub import Hub
from leasehold.stores.sqlite import SqliteStore

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")


class World:
    """A hub with two partitions, 30 and 5 events, and a store in files."""

    def __init__(self, folder):
        self.path, self.file = folder / "sensors.db", folder / "leases.db"
        self.words = (self.path, "--group", "alerts", "--store", f"sqlite:///{self.file}")
        with Hub.create(self.path, name="sensors", namespace="homes.local", partitions=2) as hub:
            hub.send_columns(None, [b"x"] * 30, partition_id=0)
            hub.send_columns(None, [b"x"] * 5, partition_id=1)

    def do(self, story):
        async def with_store():
            store = SqliteStore(self.file)
            try:
                await story(store)
            finally:
                await store.close()

        asyncio.run(with_store())

    def take_all(self, owner="worker-1", ttl_s=600.0, processed=10, attempts=0):
        with Hub.open(self.path) as hub:
            starts = {p: hub.position_of(p, "earliest") for p in hub.properties().partition_ids}
            after = hub.position_of("0", processed)

        async def story(store):
            await store.create(GROUP, starts)
            await store.join(GROUP, Member(instance=owner, incarnation="1", ttl_s=ttl_s))
            won = await store.acquire((await store.snapshot(GROUP)).leases, owner, ttl_s)
            mine = next(lease for lease in won if lease.partition == "0")
            await store.checkpoint([replace(mine, checkpoint=after, attempts=attempts)])

        self.do(story)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def rows(text):
    """The cells of a table by the first one."""
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells if row}


def test_lag_shows_each_partition_and_the_total(world):
    world.take_all(attempts=2)
    done = leasehold("lag", *world.words)
    table = rows(done.stdout)
    assert table["0"][:2] == ["worker-1", "20"]
    assert table["0"][-1] == "failed 2 times"
    assert table["1"][:2] + table["1"][-1:] == ["worker-1", "5", "never checkpointed"]
    assert table["all"][:2] == ["1 member", "25"]
    assert "requests" not in done.stdout
    assert done.stderr == ""


def test_lag_as_json_has_every_number(world):
    world.take_all()
    estimate = json.loads(leasehold("lag", *world.words, "--json").stdout)
    assert (estimate["lag_events"], estimate["started"], estimate["stuck"]) == (25, True, [])
    assert estimate["group"]["name"] == "alerts"
    zero = estimate["partitions"][0]
    assert (zero["checkpoint"], zero["lag_events"], zero["owner"]) == (10, 20, "worker-1")
    assert 0 <= zero["lag_s"] < 600
    assert zero["processed_per_s"] is None
    assert estimate["requests"]["store"]["snapshot"] == 1
    assert estimate["requests"]["feed"] == {"partitions": 1, "extents": 1, "event_times": 1}


def test_what_the_look_cost_is_shown_on_request(world):
    world.take_all()
    text = leasehold("lag", *world.words, "--requests").stdout
    lines = [[c.strip() for c in line.split("│")[1:-1]] for line in text.splitlines()]
    asked = {(line[0], line[1]): line[2] for line in lines if len(line) == 3}
    assert asked["store", "snapshot"] == "1"
    verbs = ("event_times", "extents", "partitions")
    assert {verb: asked["feed", verb] for verb in verbs} == dict.fromkeys(verbs, "1")
    assert "request units" not in text  # nobody charges for a file


def test_a_group_that_never_ran_counts_everything_and_a_slip_of_the_pen_is_hinted_at(world):
    world.take_all()
    words = [*world.words[:2], "alert", *world.words[3:]]
    done = leasehold("lag", *words)
    assert rows(done.stdout)["all"][:2] == ["0 members", "35"]
    said = " ".join(done.stderr.split())
    assert "homes.local/sensors/alert has no leases" in said
    assert "homes.local/sensors/alerts" in said.replace("sensors/alert has", "")


def test_what_is_wrong_with_a_checkpoint_is_said(world):
    world.take_all(owner="[red]dead[/]", ttl_s=0.001)
    with Hub.open(world.path) as hub:
        hub.send_columns(None, [b"x"] * 5, partition_id=0)
        hub.trim_before("0", 30)
    text = leasehold("lag", *world.words).stdout
    assert rows(text)["0"][0] == "[red]dead[/] (gone)"
    assert rows(text)["0"][-1] == "lost 20 events"
    assert "retention removed events before they were processed" in text


def test_a_hub_made_anew_is_noticed(world):
    world.take_all()
    for file in world.path.parent.glob("sensors.db*"):
        file.unlink()
    World(world.path.parent)
    text = leasehold("lag", *world.words).stdout
    assert rows(text)["0"][1:2] + rows(text)["0"][-1:] == ["30", "of another feed"]
    assert "leasehold rewind" in text


def watching(world, *words):
    return subprocess.Popen(
        [*PROGRAM, "lag", *map(str, world.words), "--watch", "--interval-s", "0.1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=WIDE,
    )


def test_watching_tells_rates_and_what_is_stuck_until_ctrl_c(world):
    world.take_all()
    watch = watching(world, "--json", "--stuck-after-s", "0.3")
    first = json.loads(watch.stdout.readline())
    assert first["processed_per_s"] is None
    while not (latest := json.loads(watch.stdout.readline()))["stuck"]:
        assert latest["processed_per_s"] == 0
    assert latest["stuck"] == ["0", "1"]
    with Hub.open(world.path) as hub:
        end = hub.position_of("0", "latest")

    async def finish(store):
        lease = (await store.snapshot(GROUP)).leases[0]
        assert await store.checkpoint([replace(lease, checkpoint=end)])

    world.do(finish)
    while (latest := json.loads(watch.stdout.readline()))["stuck"] != ["1"]:
        pass
    assert latest["partitions"][0]["lag_events"] == 0
    assert latest["partitions"][0]["processed_per_s"] > 0
    assert latest["partitions"][0]["checkpoint_age_max_s"] is not None
    watch.send_signal(signal.SIGINT)
    _, said = watch.communicate(timeout=60)
    assert watch.returncode == 130
    assert "Traceback" not in said


def test_watching_without_a_terminal_prints_page_after_page(world):
    world.take_all()
    watch = watching(world)
    pages = 0
    while pages < 2:
        line = watch.stdout.readline()
        assert line
        pages += line.startswith("│ all")
    watch.send_signal(signal.SIGINT)
    rest, said = watch.communicate(timeout=60)
    assert watch.returncode == 130
    assert "Traceback" not in rest + said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: "no/such.db"}, "there is no hub and no container at no/such.db"),
        ({4: "redis://here"}, "unknown store scheme"),
        ({2: " "}, "group must be a name"),
    ],
)
def test_a_mistake_gets_one_clear_line(world, change, says):
    world.file.touch()
    words = [change.get(place, word) for place, word in enumerate(world.words)]
    done = leasehold("lag", *words, ok=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
