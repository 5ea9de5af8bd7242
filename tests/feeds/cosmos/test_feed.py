"""What is particular to the feed of a Cosmos DB container."""

import asyncio
import pickle
from collections import Counter
from datetime import UTC, datetime

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.cosmos import CosmosClient, PartitionKey
from support.command_line import leasehold
from support.cosmos import serving

from leasehold import ChangeFeedProcessor, open_feed, open_store
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds.cosmos.items import ChangeReader
from leasehold.feeds.cosmos.tokens import Bounds, Position, checkpoint
from leasehold.feeds.effective_keys import effective_key
from leasehold.local.cosmos import CosmosSettings
from leasehold.operations.estimator import Estimator

WHOLE = Bounds("", "FF")
IDENTITY = "0123456789abcdef"


def url_of(served, name):
    return f"cosmos://{served.url.removeprefix('http://').rstrip('/')}/homes/{name}"


@pytest.fixture
def alerts(served):
    with CosmosClient(served.url, served.key) as client:
        database = client.get_database_client("homes")
        database.create_container("alerts", PartitionKey("/home_id"), offer_throughput=12_000)
        yield database.get_container_client("alerts")
        database.delete_container("alerts")


@pytest.mark.parametrize(("leases", "ttl_s"), [("sqlite", 1.5), ("cosmos", 4.0)])
def test_instances_share_the_ranges_and_splits_cost_nothing(
    served, alerts, tmp_path, leases, ttl_s
):
    """Two instances, splits in the middle, one of them killed: every change, each key in order."""
    store_url = f"sqlite:///{tmp_path}/leases.db"
    if leases == "cosmos":
        store_url = served.url_of("leases-of-instances")
    inner = served.container("homes", "alerts")
    got: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}

    async def work():
        instances = {
            name: ChangeFeedProcessor(
                open_feed(url_of(served, "alerts")),
                name="notify",
                instance=name,
                start="beginning",
                store=open_store(store_url),
                on_changes=lambda changes, name=name: got[name].extend(
                    (change.document["home_id"], change.document["n"]) for change in changes
                ),
                poll_interval_s=0.05,
                balance_interval_s=0.3,
                lease_ttl_s=ttl_s,
            )
            for name in got
        }
        running = {
            name: asyncio.ensure_future(each.run_async()) for name, each in instances.items()
        }
        for n in range(12):
            for home in range(10):
                document = {"id": f"{home}-{n}", "home_id": f"H{home}", "n": n}
                await asyncio.to_thread(alerts.create_item, document)
            if n in (3, 6):
                leaves = [each.id for each in inner.ranges() if not each.split]
                inner.split(leaves[n % 2])
            if n == 8:
                running.pop("a").cancel()
        async with asyncio.timeout(60):
            while len({*got["a"], *got["b"]}) < 120:  # noqa: ASYNC110  # other threads fill them
                await asyncio.sleep(0.05)
        for name, each in running.items():
            instances[name].stop()
            await each

    asyncio.run(work())
    everything = Counter(got["a"] + got["b"])
    assert set(everything) == {(f"H{home}", n) for home in range(10) for n in range(12)}
    assert got["b"], "the second instance had no share"
    for found in got.values():
        for home in {home for home, _ in found}:
            mine = [n for each, n in found if each == home]
            firsts = list(dict.fromkeys(mine))
            assert firsts == sorted(firsts)
    assert len([each for each in inner.ranges() if each.split]) == 2


def test_lag_is_told_and_is_nothing_at_the_end(served, alerts, tmp_path):
    for n in range(20):
        alerts.create_item({"id": str(n), "home_id": f"H{n}"})

    async def work():
        feed = open_feed(url_of(served, "alerts"))
        store = open_store(f"sqlite:///{tmp_path}/leases.db")
        seen = []
        processor = ChangeFeedProcessor(
            feed, name="n", start="beginning", store=store, on_changes=seen.extend,
            poll_interval_s=0.05,
        )  # fmt: skip
        running = asyncio.ensure_future(processor.run_async())
        async with asyncio.timeout(30):
            while len(seen) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        processor.stop()
        await running
        other = open_feed(url_of(served, "alerts"))
        watching = open_store(f"sqlite:///{tmp_path}/leases.db")
        estimator = Estimator(other, group="n", store=watching)
        done = await estimator.observe()
        alerts.create_item({"id": "new", "home_id": "H1"})
        behind = await estimator.observe()
        await watching.close()
        return done, behind, other

    done, behind, feed = asyncio.run(work())
    assert sum(each.lag_events for each in done.partitions) == 0
    assert sum(each.lag_events for each in behind.partitions) >= 1
    assert feed.request_units["ends"] >= feed.requests["ends"] > 0


def test_the_command_line_tells_what_watching_costs(served, alerts, tmp_path):
    alerts.create_item({"id": "a", "home_id": "H1"})
    (tmp_path / "leases.db").touch()
    where = ("--store", f"sqlite:///{tmp_path}/leases.db", "--group", "none")
    short = leasehold("lag", url_of(served, "alerts"), *where).stdout
    assert "request units" not in short
    said = leasehold("lag", url_of(served, "alerts"), *where, "--requests").stdout
    assert "request units" in said
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines()]
    ends = next(row for row in rows if row[:2] == ["feed", "ends"])
    assert ends[2] == "2"
    assert float(ends[3]) >= 2


def test_being_told_to_wait_is_waited_for_and_counted(tmp_path, monkeypatch):
    with (
        serving(tmp_path, request_units_s=15) as served,
        CosmosClient(served.url, served.key) as client,
    ):
        monkeypatch.setenv("AZURE_COSMOS_KEY", served.key)
        client.create_database("homes").create_container("busy", PartitionKey("/k"))
        served.container("homes", "busy").upsert_many(
            {"id": str(n), "k": f"k{n}"} for n in range(300)
        )
        feed = open_feed(url_of(served, "busy"))

        async def everything():
            found, at = [], await feed.locate("0", "earliest")
            while (batch := await feed.read("0", at, 10)).events:
                found += batch.events
                at = batch.next
            return found

        assert len(asyncio.run(everything())) == 300
        assert feed.requests["throttled"] > 0
        feed.close()


def test_the_changes_of_one_transaction_share_an_lsn_and_none_is_skipped():
    lsns = [4, 5, 5, 5, 6]
    items = [{"id": str(n), "k": "x", "_lsn": lsn, "_ts": 1} for n, lsn in enumerate(lsns)]
    reader = ChangeReader(IDENTITY, ["/k"], "latest")
    changes = reader.changes("0", WHOLE, items, Position(3), clip=False)
    assert [change.lsn for change in changes] == lsns
    for place, change in enumerate(changes):
        behind = Checkpoint(next_sequence=change.lsn + 1, token=change.offset)
        begin = Position.of(behind)
        # As it is asked for: what was begun comes again as a whole.
        again = [each for each in items if each["_lsn"] > begin.lsn - (1 if begin.done else 0)]
        rest = reader.changes("0", WHOLE, again, begin, clip=False)
        assert [each.document["id"] for each in rest] == [
            each.document["id"] for each in changes[place + 1 :]
        ]


def test_of_a_merged_range_only_the_own_keys_are_taken():
    keys = [f"k{n}" for n in range(50)]
    items = [{"id": key, "k": key, "_lsn": n, "_ts": 1} for n, key in enumerate(keys, 1)]
    reader = ChangeReader(IDENTITY, ["/k"], "latest")
    low, high = Bounds("", "20" + "0" * 30), Bounds("20" + "0" * 30, "FF")
    halves = [
        [
            change.document["id"]
            for change in reader.changes("1", each, items, Position(0), clip=True)
        ]
        for each in (low, high)
    ]
    assert sorted(halves[0] + halves[1]) == sorted(keys)
    assert halves[0] == [key for key in keys if effective_key(key) < low.end]
    assert all(halves)


def test_a_name_in_a_key_s_path_may_have_slashes():
    reader = ChangeReader(IDENTITY, ['/"le/vel"/k', "/plain"], "latest")
    item = {"id": "a", "le/vel": {"k": "x"}, "plain": "y", "_lsn": 1, "_ts": 1}
    (change,) = reader.changes("0", WHOLE, [item], Position(0), clip=False)
    assert change.partition_key == "x, y"


def test_a_position_keeps_the_bounds_of_its_range():
    at = checkpoint(IDENTITY, Bounds("10", "20"), 41)
    assert Position.of(at) == Position(41, 0, Bounds("10", "20"), IDENTITY)
    among = checkpoint(IDENTITY, Bounds("10", "20"), 41, 2, 3)
    assert Position.of(among) == Position(41, 2, Bounds("10", "20"), IDENTITY, 3)
    former = Checkpoint(next_sequence=42, token=among.token.replace(".2.3", ".2"))
    assert Position.of(former) == Position(41, 2, Bounds("10", "20"), IDENTITY, None)
    assert Position.of(Checkpoint(next_sequence=7)) == Position(6)
    assert Position.of(Checkpoint(next_sequence=7, token="of a hub")) is None
    assert Position.of(Checkpoint(next_sequence=7, token=at.token)) is None


def test_a_position_of_a_container_that_was_recreated_is_gone(served, alerts):
    alerts.create_item({"id": "a", "home_id": "H1"})

    async def end():
        feed = open_feed(url_of(served, "alerts"))
        partition = (await feed.partitions())[0].id
        at = await feed.locate(partition, "latest")
        feed.close()
        return partition, at

    partition, at = asyncio.run(end())
    with CosmosClient(served.url, served.key) as client:
        database = client.get_database_client("homes")
        database.delete_container("alerts")
        database.create_container("alerts", PartitionKey("/home_id"), offer_throughput=12_000)
    feed = open_feed(url_of(served, "alerts"))
    with pytest.raises(PositionGone) as gone:
        asyncio.run(feed.read(partition, at, 10))
    assert gone.value.reason == "other feed"
    feed.close()


def test_deletes_and_former_states_come_with_all_versions(served, alerts):
    feed = open_feed(url_of(served, "alerts"), mode="all")

    async def work():
        starts = {each.id: await feed.locate(each.id, "now") for each in await feed.partitions()}
        alerts.create_item({"id": "a", "home_id": "H1", "n": 1})
        alerts.upsert_item({"id": "a", "home_id": "H1", "n": 2})
        alerts.delete_item("a", "H1")
        return [
            change
            for partition, at in starts.items()
            for change in (await feed.read(partition, at, 10)).events
        ]

    changes = asyncio.run(work())
    assert [change.operation for change in changes] == ["insert", "replace", "delete"]
    assert [change.document and change.document["n"] for change in changes] == [1, 2, None]
    assert changes[2].previous["n"] == 2
    assert {change.partition_key for change in changes} == {"H1"}
    assert changes[0].time <= datetime.now(UTC)
    feed.close()


def test_a_feed_goes_to_other_processes_without_its_secret(served, alerts):
    feed = open_feed(url_of(served, "alerts"), mode="all")
    data = pickle.dumps(feed)
    assert served.key.encode() not in data
    other = pickle.loads(data)
    assert (other.address, other.name, other.identity) == (feed.address, feed.name, feed.identity)
    assert feed.address.endswith("?mode=all")
    other.close()
    feed.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("cosmos://account.documents.azure.com/homes", "names a database and a container"),
        ("cosmos:///homes/alerts", "names the account's host"),
        ("cosmos://key@account.documents.azure.com/homes/alerts", "holds no credentials"),
        ("cosmos://account.documents.azure.com/homes/alerts?key=x", "come from the environment"),
        ("cosmos://account.documents.azure.com/homes/alerts?tls=off", "this machine only"),
        ("cosmos://localhost:8081/homes/alerts?tls=maybe", "on or off"),
        ("cosmos://localhost:8081/homes/alerts?mode=some", "latest, all"),
        ("cosmos://localhost:x/homes/alerts", "cannot read this URL"),
    ],
)
def test_a_url_that_is_wrong_says_so(url, said):
    with pytest.raises(BadInput, match=said):
        open_feed(url)


def test_urls_come_back_as_they_were_given():
    for url in (
        "cosmos://account.documents.azure.com/homes/alerts",
        "cosmos://localhost:8081/a%20b/c%2Fd",
        "cosmos://localhost:8081/homes/alerts?tls=on",
        "cosmos://[::1]:8081/homes/alerts",
    ):
        assert CosmosSettings.from_url(url).address == url


def test_a_wrong_key_and_a_missing_container_and_server_say_what_to_do(served, alerts, monkeypatch):
    def first(url):
        feed = open_feed(url)
        try:
            asyncio.run(feed.partitions())
        finally:
            feed.close()

    with pytest.raises(BadInput, match="no container at cosmos://"):
        first(url_of(served, "nothing"))
    with pytest.raises(FeedUnavailable, match="does not answer"):
        first("cosmos://localhost:1/homes/alerts")
    monkeypatch.setenv("AZURE_COSMOS_KEY", "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0")
    with pytest.raises(BadInput, match="refuses the key") as refused:
        first(url_of(served, "alerts"))
    assert "c2VjcmV0" not in str(refused.value)
    monkeypatch.delenv("AZURE_COSMOS_KEY")
    monkeypatch.delenv("AZURE_COSMOS_KEY_FILE")
    with pytest.raises(BadInput, match="AZURE_COSMOS_KEY"):
        first(url_of(served, "alerts"))


def test_without_a_key_the_identity_of_the_machine_is_used(monkeypatch):
    for name in ("KEY", "KEY_FILE", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_COSMOS_{name}", raising=False)
    asked = []

    class Identity:
        def get_token(self, *scopes, **_):
            asked.extend(scopes)
            raise ClientAuthenticationError("no such identity")

    monkeypatch.setattr("azure.identity.DefaultAzureCredential", Identity)
    feed = open_feed("cosmos://localhost:1/homes/alerts?tls=on")
    with pytest.raises((BadInput, FeedUnavailable)):
        asyncio.run(feed.partitions())
    feed.close()
    assert asked == ["https://localhost/.default"]
