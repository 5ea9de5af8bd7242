"""``lag``, ``rewind``, ``leases`` and ``dead-letters`` on a container's change feed."""

import asyncio
import json

import pytest
from support.command_line import leasehold

import leasehold as lh


def put(container, range, ids, **fields):
    """Documents whose key is in this range."""
    home = next(f"H{n}" for n in builtin_range(999) if container.range_of(f"H{n}") == range)
    for n in ids:
        container.upsert({"id": f"a{n}", "home": home, **fields})


builtin_range = range


class World:
    """Two ranges with 10 and 5 changes; the unit notify has processed them all, then come more."""

    def __init__(self, folder):
        self.path, self.url = folder / "alerts.db", f"sqlite:///{folder}/leases.db"
        self.letters = f"sqlite:///{folder}/dead.db"
        self.words = (self.path, "--group", "notify", "--store", self.url)
        self.container = lh.Container.create(
            self.path, name="alerts", namespace="homes.local", partition_key="/home", ranges=2
        )
        put(self.container, "0", range(10))
        put(self.container, "1", range(5))

    def run(self, on_changes=lambda changes: None, **settings):
        lh.ChangeFeedProcessor(
            self.container,
            name="notify",
            instance="n1",
            on_changes=on_changes,
            store=lh.open_store(self.url),
            start="beginning",
            balance_interval_s=0.2,
            poll_interval_s=0.05,
            **settings,
        ).run(until_drained=True)

    def lag(self, *words):
        estimate = json.loads(leasehold("lag", *self.words, "--json", *words).stdout)
        return {each["partition"]: each["lag_events"] for each in estimate["partitions"]}

    def rewind(self, *words):
        rows = json.loads(leasehold("rewind", *self.words, "--yes", "--json", *words).stdout)
        return {row["partition"]: (row["again"], row["skipped"], row["done"]) for row in rows}


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.run()
    yield made
    made.container.close()


def test_lag_is_shown_in_changes_with_what_the_look_cost(world):
    put(world.container, "0", range(3))
    put(world.container, "1", range(4))
    put(world.container, "0", range(3, 5))
    done = leasehold("lag", *world.words, "--requests")
    rows = [[c.strip() for c in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    cells = {row[0]: row[2] for row in rows if len(row) == 5}
    assert cells == {"0": "5", "1": "4", "all": "9"}
    assert "┃ changes ┃" in done.stdout
    asked = {(row[0], row[1]): row[2] for row in rows if len(row) == 3}
    assert asked["store", "snapshot"] == "1"
    verbs = ("event_times", "extents", "partitions", "remaining")
    assert {verb: asked["feed", verb] for verb in verbs} == dict.fromkeys(verbs, "1")
    assert done.stderr == ""


def test_the_feed_of_all_versions_has_units_of_its_own(world):
    world.container.upsert({"id": "a1", "home": "H1"})
    world.container.delete("a1", "H1")
    assert sum(world.lag("--mode", "latest").values()) == 0
    done = leasehold("lag", *world.words, "--mode", "all")
    assert "homes.local/alerts.all/notify has no leases" in " ".join(done.stderr.split())
    assert "│ 17 │" in " ".join(done.stdout.split())


def test_a_split_is_seen_until_it_is_worked_through(world):
    put(world.container, "0", range(4))
    world.container.upsert_many({"id": "b", "home": f"H{n}"} for n in range(40))
    before = world.lag()
    left, right = world.container.split("0")
    assert world.lag() == {**before, left: 0, right: 0}
    world.run()
    assert world.lag() == {"1": 0, left: 0, right: 0}


@pytest.mark.parametrize("to", ["beginning", "earliest", "sequence:1", "time:2020-01-01T00:00:00Z"])
def test_a_unit_is_sent_back_and_gets_its_changes_again(world, to):
    assert world.rewind("--to", to) == {"0": (10, 0, True), "1": (5, 0, True)}
    seen = []
    world.run(seen.extend)
    assert len(seen) == 15


@pytest.mark.parametrize("to", ["now", "latest", "Now"])
def test_a_unit_is_sent_ahead_and_what_it_skips_is_counted(world, to):
    put(world.container, "0", range(3))
    assert world.rewind("--to", to) == {"0": (0, 3, True)}
    assert world.lag() == {"0": 0, "1": 0}


def test_a_sequence_is_the_containers_and_quiet_ranges_go_to_their_end(world):
    put(world.container, "0", range(4))
    last = world.container.properties().next_lsn - 1
    assert world.rewind("--to", f"sequence:{last}") == {"0": (0, 3, True)}
    assert world.lag() == {"0": 1, "1": 0}
    done = leasehold("rewind", *world.words, "--to", f"sequence:{last + 2}", "--yes", ok=False)
    assert "is beyond the end" in " ".join(done.stderr.split())


def test_what_will_happen_is_said_in_changes(world):
    done = leasehold("rewind", *world.words, "--to", "beginning", stdin="n\n", ok=False)
    assert "15 changes will be delivered again" in " ".join(done.stderr.split())


def test_leases_of_a_unit_are_listed(world):
    rows = json.loads(leasehold("leases", "--store", world.url, "--json").stdout)
    assert [(r["hub"], r["group"], r["partition"]) for r in rows] == [
        ("alerts", "notify", "0"),
        ("alerts", "notify", "1"),
    ]


def test_names_with_odd_characters_are_shown_as_they_are(tmp_path):
    async def main():
        store = lh.open_store(f"sqlite:///{tmp_path}/leases.db")
        group = lh.Group(namespace="homes.local", feed="alerts", name="[b]x[/b]")
        await store.create(group, {"0": lh.Checkpoint(next_sequence=1)})
        await store.acquire((await store.snapshot(group)).leases, "[/red]", 600)
        await store.join(group, lh.Member(instance="[/red]", incarnation="1", ttl_s=600))
        await store.close()

    asyncio.run(main())
    text = leasehold("leases", "--store", f"sqlite:///{tmp_path}/leases.db").stdout
    assert "homes.local/alerts/[b]x[/b]" in text
    assert text.count("[/red]") == 2


@pytest.mark.parametrize("same_name", [True, False])
@pytest.mark.parametrize("all_", [True, False])
def test_dead_letters_of_changes_do_not_go_to_a_hub_and_it_is_said_what_does(
    tmp_path, same_name, all_
):
    world = World(tmp_path)

    def fail(changes):
        raise ValueError("no")

    retry = lh.Retry(attempts=1, backoff_s=0.01, then="dead-letter")
    world.run(fail, retry=retry, dead_letters=lh.open_dead_letters(world.letters))
    listed = leasehold("dead-letters", "list", "--store", world.letters, "--json").stdout
    ids = [letter["id"] for letter in json.loads(listed)]
    assert len(ids) == 15
    hub = world.path
    if same_name:
        hub = tmp_path / "hub.db"
        lh.Hub.create(hub, name="alerts", namespace="homes.local", partitions=2).close()
    which = ["--all"] if all_ else ids[:2]
    words = ("redrive", *which, "--store", world.letters, "--hub", hub)
    done = leasehold("dead-letters", *words, ok=False)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert "homes.local/alerts/notify are changes of a container" in said
    assert "leasehold.redrive" in said
    assert "Nothing was sent" in said

    async def by_hand():
        letters = lh.open_dead_letters(world.letters)
        changes = []
        done = await lh.redrive(
            letters, lambda letter: changes.append(lh.Change.from_event(letter.event))
        )
        await letters.close()
        return done.count, {change.document["id"] for change in changes}

    assert asyncio.run(by_hand()) == (15, {f"a{n}" for n in range(10)})
    world.container.close()


@pytest.mark.parametrize("command", ["lag", "rewind"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--mode", "newest"), "'newest' is not one of"),
        (("--group", " "), ""),
    ],
)
def test_a_mistake_is_refused(world, command, words, says):
    to = ("--to", "now") if command == "rewind" else ()
    done = leasehold(command, *world.words, *to, *words, ok=False)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


def test_a_hub_has_no_modes(tmp_path):
    path = tmp_path / "hub.db"
    lh.Hub.create(path, name="sensors", namespace="homes.local", partitions=2).close()
    store = f"sqlite:///{tmp_path}/leases.db"
    done = leasehold("lag", path, "--group", "g", "--store", store, "--mode", "all", ok=False)
    assert "is a hub, which has no modes" in " ".join(done.stderr.split())
