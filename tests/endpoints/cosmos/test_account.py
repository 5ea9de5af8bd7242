"""What requests that come at once do to the account."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasehold.endpoints.cosmos.account import Account
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.feeds.container import Container

ABOUT = {"id": "alerts", "partitionKey": {"paths": ["/k"], "kind": "Hash"}}


@pytest.fixture
def account(tmp_path):
    made = Account([], tmp_path)
    yield made
    made.close()


def test_what_is_listed_may_change_meanwhile(account):
    database = account.create_database({"id": "homes"})
    account.create_collection(database, ABOUT, None)
    listed = account.collections()
    assert next(listed)[1].id == "alerts"
    account.create_collection(database, ABOUT | {"id": "devices"}, None)
    account.create_database({"id": "others"})
    assert len(list(listed)) <= 1


def test_what_was_created_again_is_not_deleted_for_what_was_before(account):
    database = account.create_database({"id": "homes"})
    old = account.create_collection(database, ABOUT, None)
    account.delete_collection(database, old)
    account.create_collection(database, ABOUT, None)
    with pytest.raises(Refusal, match="deleted meanwhile"):
        account.delete_collection(database, old)
    account.delete_database(database)
    account.create_collection(account.create_database({"id": "homes"}), ABOUT, None)
    with pytest.raises(Refusal, match="deleted meanwhile"):
        account.delete_database(database)
    assert [collection.id for _, collection in account.collections()] == ["alerts"]
    assert all(collection.container.path.exists() for _, collection in account.collections())


def test_throughput_that_is_raised_by_several_at_once_is_raised(served, database, monkeypatch):
    made = database.create_container("raised", ABOUT["partitionKey"])
    about = made.read()
    (offer,) = (
        each
        for each in served.ask("GET", "offers")[2]["Offers"]
        if each["offerResourceId"] == about["_rid"]
    )
    split = Container.split

    def slow(*given, **named):
        time.sleep(0.02)
        return split(*given, **named)

    monkeypatch.setattr(Container, "split", slow)

    def ask(units):
        return served.ask("PUT", offer["_self"].strip("/"), {"content": {"offerThroughput": units}})

    with ThreadPoolExecutor(4) as threads:
        assert [answer[0] for answer in threads.map(ask, [40_000] * 4)] == [200] * 4
    ranges = served.ask("GET", "dbs/homes/colls/raised/pkranges")[2]["PartitionKeyRanges"]
    assert len(ranges) == 4
