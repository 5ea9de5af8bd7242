"""Leases in a Cosmos DB container, on the endpoint."""

import asyncio
from uuid import uuid4

import pytest
from azure.cosmos import CosmosClient, DatabaseProxy, PartitionKey
from support.cosmos import Served

from leasehold import open_store
from leasehold.core.model import Group, Member
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.ports import LeaseStore
from leasehold.testing.check_lease_store import CHECKS, EARLIEST, Check, any_group


@pytest.fixture
def served(cosmos: Served) -> Served:
    return cosmos


def url_of(served: Served, name: str = "leases") -> str:
    return served.url_of(name)


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_cosmos_store(rule: Check, served: Served) -> None:
    async def open_one() -> LeaseStore:
        return open_store(url_of(served))

    asyncio.run(rule(open_one, any_group()))


@pytest.mark.parametrize(("leases", "requests", "units"), [(1, 3, 15), (8, 10, 57), (32, 34, 202)])
def test_an_interval_costs_a_look_and_a_write_for_each_lease(
    served: Served, leases: int, requests: int, units: int
) -> None:
    """The figures of the documentation: one instance's upkeep."""
    group = Group(namespace="n", feed="f", name=f"cost-{leases}")
    me = Member(instance="a", incarnation="1")

    async def work() -> tuple[int, float]:
        store = open_store(url_of(served))
        await store.create(group, {str(n): EARLIEST for n in range(leases)})
        await store.join(group, me)
        held = await store.acquire((await store.snapshot(group)).leases, "a", 30.0)
        store.requests.clear()
        store.request_units.clear()
        assert await store.heartbeat(group, me)
        await store.renew(held)
        await store.snapshot(group)
        await store.close()
        return store.requests.total(), sum(store.request_units.values())

    sent, charged = asyncio.run(work())
    assert sent == requests
    assert round(charged) == units


def test_a_container_for_something_else_and_a_server_that_is_away_are_said(served: Served) -> None:
    with CosmosClient(served.url, served.key) as client:
        database = client.get_database_client("homes")
        database.create_container_if_not_exists("others", PartitionKey("/id"))
    group = any_group()
    with pytest.raises(BadInput, match="partition key /id"):
        asyncio.run(open_store(url_of(served, "others")).snapshot(group))
    with pytest.raises(StoreUnavailable, match="does not answer"):
        asyncio.run(open_store("cosmos://localhost:1/homes/leases").snapshot(group))
    missing = url_of(served).replace("/homes/", "/nowhere/")
    with pytest.raises(BadInput, match="no such database"):
        asyncio.run(open_store(missing).snapshot(group))


@pytest.mark.parametrize("key_path", ["/group", "/id"])
def test_another_may_make_the_container_at_the_same_moment(
    served: Served, key_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look that finds none and the request that makes it."""
    name, group = f"made-{uuid4().hex[:8]}", any_group()
    store = open_store(url_of(served, name))
    make = DatabaseProxy.create_container

    def late(*arguments: object, **named: object) -> object:
        with CosmosClient(served.url, served.key) as client:
            make(client.get_database_client("homes"), name, PartitionKey(key_path))
        return make(*arguments, **named)

    async def scene() -> None:
        await store.create(group, {"0": EARLIEST})
        assert len((await store.snapshot(group)).leases) == 1

    monkeypatch.setattr(DatabaseProxy, "create_container", late)
    if key_path == "/group":
        asyncio.run(scene())
    else:
        with pytest.raises(BadInput, match="partition key /id"):
            asyncio.run(scene())
    asyncio.run(store.close())
