"""The lease container while its server is slow, behind, or configured for something else."""

import asyncio
import threading
from dataclasses import replace

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from leasehold import open_dead_letters, open_store
from leasehold.core.model import Checkpoint, Group
from leasehold.endpoints.cosmos import CosmosEndpoint, EndpointThread, keep_key
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.replies import refused
from leasehold.errors import StoreUnavailable
from leasehold.local.cosmos import NOT_HERE_YET
from leasehold.ports import LetterFilter
from leasehold.stores.cosmos import CosmosStore
from leasehold.testing.check_dead_letters import any_letter
from leasehold.testing.check_lease_store import EARLIEST

GROUP = Group(namespace="n", feed="f", name="g")


class FaultyEndpoint(CosmosEndpoint):
    behind = False
    """Whether it does not have yet what others have told this client."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.open = threading.Event()
        self.open.set()

    def _safely(self, request):
        self.open.wait(20)
        is_point_read = request.method == "GET" and "/docs/" in request.target
        if self.behind and is_point_read:
            return refused(Refusal(404, "not here yet", substatus=NOT_HERE_YET))
        return super()._safely(request)


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    key = keep_key(tmp_path / "master.key")
    monkeypatch.setenv("AZURE_COSMOS_KEY", key)
    made = FaultyEndpoint(folder=tmp_path / "account", key=key, port=0)
    with EndpointThread(made) as endpoint, CosmosClient(endpoint.url, key) as client:
        endpoint.database = client.create_database("homes")
        yield endpoint
        endpoint.open.set()


def url_of(endpoint, more=""):
    return f"cosmos://127.0.0.1:{endpoint.port}/homes/leases{more}"


async def held_by_a(store):
    await store.create(GROUP, {"0": EARLIEST})
    (lease,) = await store.acquire((await store.snapshot(GROUP)).leases, "a", 10.0)
    return lease


def test_a_server_that_does_not_answer_is_not_waited_for(endpoint):
    """Else all threads of the store would wait, and renew nothing when it answers again."""

    async def work():
        store = open_store(url_of(endpoint, "?timeout_s=2"))
        lease = await held_by_a(store)
        endpoint.open.clear()
        async with asyncio.timeout(15):
            for ask in (store.snapshot(GROUP), store.renew([lease])):
                with pytest.raises(StoreUnavailable, match="does not answer"):
                    await ask
        endpoint.open.set()
        assert len((await store.renew([lease])).kept) == 1
        await store.close()

    asyncio.run(work())


def test_a_server_that_is_behind_takes_no_lease_from_its_owner(endpoint):
    async def work():
        store, other = open_store(url_of(endpoint)), open_store(url_of(endpoint))
        lease = await held_by_a(store)
        await other.checkpoint([replace(lease, attempts=1)])  # so that it has to look again
        endpoint.behind = True
        with pytest.raises(StoreUnavailable, match="404"):
            await store.renew([lease])
        endpoint.behind = False
        assert len((await store.renew([lease])).kept) == 1
        await store.close()
        await other.close()

    asyncio.run(work())


def test_a_renewal_is_written_also_where_nothing_else_changes(endpoint):
    async def work():
        lease = await held_by_a(store := open_store(url_of(endpoint)))
        other = open_store(url_of(endpoint))  # has not seen the record: it reads it first
        (renewed,) = (await other.renew([lease])).kept
        (seen,) = (await store.snapshot(GROUP)).leases
        await store.close()
        await other.close()
        return lease, renewed, seen

    lease, renewed, seen = asyncio.run(work())
    assert lease.version != renewed.version == seen.version


def test_a_time_to_live_of_the_container_removes_no_lease_and_no_letter(endpoint):
    endpoint.database.create_container("leases", PartitionKey("/group"), default_ttl=1)

    async def work():
        store, letters = CosmosStore.from_url(url_of(endpoint)), open_dead_letters(url_of(endpoint))
        lease = await held_by_a(store)
        await store.checkpoint([replace(lease, checkpoint=Checkpoint(next_sequence=7))])
        await letters.put([any_letter(GROUP, 1)])
        await asyncio.sleep(2.5)
        left = (await store.snapshot(GROUP)).leases
        await letters.put([any_letter(GROUP, 2)])
        numbers = [each.number for each in await letters.list(LetterFilter())]
        await store.close()
        await letters.close()
        return [each.checkpoint.next_sequence for each in left], numbers

    assert asyncio.run(work()) == ([7], [1, 2])
