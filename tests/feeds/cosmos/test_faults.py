"""Splits, recreated containers, clocks and replicas at the worst moment."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from support.cosmos_ranges import NOW, ScriptedRanges, ids, scripted_feed

from leasehold import ChangeFeedProcessor, open_feed, open_store
from leasehold.core.model import Checkpoint, Group
from leasehold.core.ranges import Range
from leasehold.errors import FeedUnavailable, PositionGone
from leasehold.feeds.cosmos.reader import BEHIND_MAX
from leasehold.feeds.effective_keys import effective_key
from leasehold.operations.rewind import carry_out, plan

LOW = next(f"k{n}" for n in range(99) if effective_key(f"k{n}") < "20")
HIGH = next(f"k{n}" for n in range(99) if effective_key(f"k{n}") > "20")


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setenv("AZURE_COSMOS_KEY", "a2V5")
    ranges = ScriptedRanges()
    feed = scripted_feed(ranges)
    yield ranges, feed
    feed.close()


async def rest_of(feed, partition, at):
    """Ids of all changes from there on, through splits."""
    found = []
    while True:
        batch = await feed.read(partition, at, 100)
        found += ids(batch.events)
        if batch.children:
            for child, begin in batch.children.items():
                found += await rest_of(feed, child, begin)
            return found
        if not batch.events:
            return found
        at = batch.next


@pytest.mark.parametrize("start", ["latest", "earliest", datetime.fromtimestamp(NOW + 3, UTC)])
def test_a_start_of_a_range_that_was_split_is_one_for_all_of_its_keys(scripted, start):
    """Each child counts its LSNs by itself from then on."""
    ranges, feed = scripted
    for id in ("a", "b"):
        ranges.write(f"{id}-low", key=LOW)
        ranges.write(f"{id}-high", key=HIGH)
    asyncio.run(feed.partitions())
    ranges.split("0", "1", "2")
    for n in range(5):
        ranges.write(f"low-{n}", key=LOW)
    at = asyncio.run(feed.locate("0", start))
    for n in range(5):
        ranges.write(f"high-{n}", key=HIGH)
    found = asyncio.run(rest_of(feed, "0", at))
    assert {f"high-{n}" for n in range(5)} <= {*found}
    if start == "latest":
        assert "a-high" not in found
        assert "a-low" not in found
    else:
        assert {"b-low", "b-high"} <= {*found}


def test_a_group_is_rewound_after_a_split_with_both_halves(cosmos, tmp_path):
    url, store_url = cosmos.url_of("rewound"), f"sqlite:///{tmp_path}/l.db"
    with CosmosClient(cosmos.url, cosmos.key) as client:
        client.get_database_client("homes").create_container("rewound", PartitionKey("/k"))
    container, got = cosmos.container("homes", "rewound"), []

    def run():
        ChangeFeedProcessor(
            open_feed(url),
            name="g",
            start="beginning",
            store=open_store(store_url),
            on_changes=lambda changes: got.extend(ids(changes)),
            poll_interval_s=0.05,
        ).run(until_drained=True)

    async def to_the_end():
        feed, store = open_feed(url), open_store(store_url)
        group = Group(namespace=feed.namespace, feed=feed.name, name="g")
        await carry_out(store, await plan(feed, store, group, "latest"))
        feed.close()
        await store.close()

    container.upsert_many({"id": str(n), "k": f"k{n}"} for n in range(20))
    run()
    container.split("0")
    container.upsert_many({"id": f"skipped-{n}", "k": f"k{n}"} for n in range(20))
    asyncio.run(to_the_end())
    container.upsert_many({"id": f"new-{n}", "k": f"k{n}"} for n in range(20))
    run()
    # One position for both halves: where the one ends that was written to earlier.
    again = [id for id in got if id.startswith("skipped")]
    assert len(again) < 5
    expected = [*map(str, range(20)), *(f"new-{n}" for n in range(20)), *again]
    assert sorted(got) == sorted(expected)


def test_ranges_that_do_not_settle_are_a_matter_of_the_feed(scripted):
    ranges, feed = scripted
    at = asyncio.run(feed.locate("0", "earliest"))
    ranges.settling = True
    for ask in (
        lambda: feed.locate("0", "latest"),
        lambda: feed.locate("0", "earliest"),
        lambda: feed.locate("0", datetime.now(UTC)),
        lambda: feed.read("0", at, 1),
        feed.extents,
    ):
        ranges.asked.clear()
        with pytest.raises(FeedUnavailable, match="split or merged"):
            asyncio.run(ask())
        assert len(ranges.asked) < 10


def test_a_container_that_is_recreated_under_an_open_feed_is_noticed(cosmos):
    """Also if it has more changes by then than the feed had read of the former one."""
    with CosmosClient(cosmos.url, cosmos.key) as client:
        database = client.get_database_client("homes")

        def fill(count):
            database.create_container("again", PartitionKey("/k"))
            cosmos.container("homes", "again").upsert_many(
                {"id": f"{count}-{n}", "k": "x"} for n in range(count)
            )

        async def work():
            feed = open_feed(cosmos.url_of("again"))
            first = await feed.read("0", await feed.locate("0", "earliest"), 100)
            database.delete_container("again")
            fill(30)
            with pytest.raises(PositionGone) as gone:
                await feed.read("0", first.next, 100)
            again = await feed.read("0", gone.value.resume, 100)
            feed.close()
            return gone.value.reason, again

        fill(20)
        reason, again = asyncio.run(work())
        database.delete_container("again")
    assert reason == "other feed"
    assert ids(again.events) == [f"30-{n}" for n in range(30)]


def test_a_time_within_a_second_skips_nothing_of_that_second(scripted):
    """Cosmos DB tells whole seconds: its changes may be before or after that time."""
    ranges, feed = scripted
    for id in ("before", "then", "after"):
        ranges.write(id)
    time = datetime.fromtimestamp(NOW + 2, UTC) + timedelta(milliseconds=400)
    at = asyncio.run(feed.locate("0", time))
    assert asyncio.run(rest_of(feed, "0", at)) == ["then", "after"]


def test_who_answers_from_behind_sends_nobody_back(scripted):
    ranges, feed = scripted
    for n in range(5):
        ranges.write(str(n))
    at = asyncio.run(feed.locate("0", "latest"))
    for _ in range(2):
        ranges.behind = 2
        for _ in range(BEHIND_MAX - 1):
            with pytest.raises(FeedUnavailable, match="not known yet"):
                asyncio.run(feed.read("0", at, 10))
        ranges.behind = 0
        assert not asyncio.run(feed.read("0", at, 10)).events
    ranges.behind = 2
    with pytest.raises(PositionGone, match="beyond the end"):  # a position of nobody's
        asyncio.run(feed.read("0", Checkpoint(next_sequence=at.next_sequence), 10))


def test_what_stays_unknown_is_lost(scripted):
    ranges, feed = scripted
    for n in range(5):
        ranges.write(str(n))
    at = asyncio.run(feed.locate("0", "latest"))
    ranges.behind = 2
    for _ in range(BEHIND_MAX - 1):
        with pytest.raises(FeedUnavailable):
            asyncio.run(feed.read("0", at, 10))
    with pytest.raises(PositionGone, match="beyond the end"):
        asyncio.run(feed.read("0", at, 10))


def test_an_executor_that_is_answered_from_behind_does_not_take_it_for_all(scripted):
    """The range was planned by somebody who knew more."""
    ranges, feed = scripted
    for n in range(5):
        ranges.write(str(n))
    wanted = [Range(partition="0", first=1, end=6)]

    def found():
        return [id for chunk in feed.read_columns(wanted) for id in ids(chunk.changes)]

    ranges.behind = 2
    with pytest.raises(FeedUnavailable, match="only those below 4"):
        found()
    ranges.behind = 0
    assert found() == ["0", "1", "2", "3", "4"]
    ranges.remove("4")
    assert found() == ["0", "1", "2", "3"]
