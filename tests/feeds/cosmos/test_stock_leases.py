"""Leases of Azure's own processors. Those of Java are read live in tests/endpoints/cosmos; these
are as the .NET processor writes them, with the fields that its source names."""

import asyncio
from base64 import b64encode

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from support.command_line import leasehold

from leasehold import ChangeFeedProcessor, open_feed, open_store
from leasehold.errors import BadInput
from leasehold.feeds.cosmos.stock_leases import Monitored, StockLease, leases_in
from leasehold.feeds.cosmos.tokens import Bounds

RID = "mVBzAKP-1Kk="
SEEN = Monitored("homes", "seen", RID)
HEAD = f"notifyaccount.documents.azure.com_mVBzAA==_{RID}"


def lease(token, continuation, head=HEAD, **more):
    return {
        "id": f"{head}..{token}",
        "_etag": '"0a00-0000"',
        "LeaseToken": token,
        "Owner": None,
        "ContinuationToken": continuation,
        "properties": {},
        "timestamp": "2026-01-31T12:00:00.0Z",
        **more,
    }


def of(range=None, bounds=None, lsn=None):
    return StockLease("notifyaccount.documents.azure.com", range, bounds, lsn)


def test_a_lease_of_a_range_has_an_lsn_in_quotes():
    assert leases_in(lease("0", '"41"'), SEEN) == [of("0", lsn=41)]
    assert leases_in(lease("0", None), SEEN) == [of("0")]


def test_java_writes_names_or_rids_of_the_container():
    by_name = lease("3", '"7"', head="notifyaccount.documents.azure.com_homes_seen")
    assert leases_in(by_name, SEEN) == [of("3", lsn=7)]
    assert leases_in(lease("3", '"7"', head="notifyhost_homes_other"), SEEN) == []


def test_a_lease_of_bounds_may_be_of_dotnet_or_of_java():
    bounds = Bounds("", "1FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF")
    token = "-1FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"
    range = {"Range": {"min": "", "max": "1FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"}}
    dotnet = lease(token, '"7"', version=1, FeedRange=range, Mode="Incremental Feed")
    assert leases_in(dotnet, SEEN) == [of(bounds=bounds, lsn=7)]
    state = (
        '{"V":1,"Rid":"mVBzAKP-1Kk=","Mode":"INCREMENTAL","StartFrom":{"Type":"BEGINNING"},'
        '"Continuation":{"V":1,"Rid":"mVBzAKP-1Kk=","Continuation":['
        '{"token":"\\"9\\"","range":{"min":"","max":"0F"}},{"token":null,"range":'
        '{"min":"0F","max":"1F"}}],"Range":{"min":"","max":"1F"}}}'
    )
    java = lease(token, b64encode(state.encode()).decode(), version=1)
    assert leases_in(java, SEEN) == [
        of(bounds=Bounds("", "0F"), lsn=9),
        of(bounds=Bounds("0F", "1F")),
    ]


def test_what_is_no_lease_of_this_container_is_passed_over_and_nonsense_is_said():
    assert leases_in({"id": f"{HEAD}.info", "ContinuationToken": None}, SEEN) == []
    assert leases_in(lease("0", '"1"', head="notifyhost_mVBzAA==_another="), SEEN) == []
    for continuation in ("nonsense", b64encode(b"{}").decode(), b64encode(b"[1]").decode()):
        with pytest.raises(BadInput, match="not understood"):
            leases_in(lease("0", continuation), SEEN)


@pytest.fixture
def places(served):
    """A monitored container of two ranges with 20 changes, and an empty one for leases."""
    with CosmosClient(served.url, served.key) as client:
        database = client.get_database_client("homes")
        made = database.create_container("seen", PartitionKey("/k"), offer_throughput=12_000)
        for n in range(20):
            made.create_item({"id": str(n), "k": f"k{n}"})
        leases = database.create_container("net-leases", PartitionKey("/id"))
        yield made.read()["_rid"], leases
        database.delete_container("seen")
        database.delete_container("net-leases")


def starts(served, query=""):
    async def ask():
        feed = open_feed(served.url_of("seen"))
        start = f"leases:{served.url_of('net-leases')}{query}"
        try:
            return {
                each.id: (await feed.locate(each.id, start)).next_sequence
                for each in await feed.partitions()
            }
        finally:
            feed.close()

    return asyncio.run(ask())


def test_ranges_begin_where_their_leases_stand_also_after_splits(served, places):
    rid, leases = places
    with pytest.raises(BadInput, match="no leases of this container"):
        starts(served)
    leases.create_item(lease("0", '"12"', head=f"notifyhost_x_{rid}"))
    leases.create_item(lease("1", None, head=f"notifyhost_x_{rid}"))
    first = starts(served)
    assert first["0"] == 13
    assert first["1"] <= 2, "no batch was finished: from the beginning"
    left, right = served.container("homes", "seen").split("0")
    assert {starts(served)[each] for each in (left, right)} == {13}
    # Their children may have leases of their own already; the one that is behind counts.
    leases.create_item(lease(left, '"10"', head=f"notifyhost_x_{rid}"))
    assert (starts(served)[left], starts(served)[right]) == (11, 13)


def test_of_several_processors_one_has_to_be_named(served, places):
    rid, leases = places
    for name, lsn in (("notify", 5), ("archive", 9)):
        for token in ("0", "1"):
            leases.create_item(lease(token, f'"{lsn}"', head=f"{name}host_x_{rid}"))
    with pytest.raises(BadInput, match=r"2 processors \(archivehost, notifyhost\)"):
        starts(served)
    assert set(starts(served, "?processor=archive").values()) == {10}
    with pytest.raises(BadInput, match="no leases"):
        starts(served, "?processor=other")


def test_a_group_that_has_run_is_sent_back_by_command(served, places, tmp_path):
    """To where Azure's processor stood, and to the beginning."""
    rid, leases = places
    for token in ("0", "1"):
        leases.create_item(lease(token, '"12"', head=f"notifyhost_x_{rid}"))
    url, store_url = served.url_of("seen"), f"sqlite:///{tmp_path}/leases.db"

    def run():
        got = []
        feed = open_feed(url)
        ChangeFeedProcessor(
            feed,
            name="notify",
            start="beginning",
            store=open_store(store_url),
            on_changes=lambda changes: got.extend(int(each.document["id"]) for each in changes),
        ).run(until_drained=True)
        feed.close()
        return sorted(got)

    def rewind(to):
        leasehold("rewind", url, "--group", "notify", "--store", store_url, "--to", to, "--yes")

    assert run() == list(range(20))
    assert run() == []
    rewind(f"leases:{served.url_of('net-leases')}")
    assert run() == list(range(12, 20)), "LSN 12 is of the document 11"
    rewind("beginning")
    assert run() == list(range(20))
