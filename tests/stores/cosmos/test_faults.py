"""The lease container while its server is slow, behind, or configured for something else."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
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
from leasehold.stores.cosmos.records import LEASE, id_of
from leasehold.stores.cosmos.store import REQUESTS_MAX
from leasehold.testing.check_dead_letters import any_letter
from leasehold.testing.check_lease_store import EARLIEST

GROUP = Group(namespace="n", feed="f", name="g")


class FaultyEndpoint(CosmosEndpoint):
    behind = False
    """Whether it does not have yet what others have told this client."""
    slow = ()
    """Partitions whose records are answered for only once it is open."""
    together = threading.Barrier(1)
    """How many writes it waits for before it answers the first of them."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self._threads = ThreadPoolExecutor(64)
        self.open = threading.Event()
        self.open.set()

    def _safely(self, request):
        if request.method == "PUT":
            self.together.wait(20)
        record = request.target.rstrip("/").rsplit("/", 1)[-1]
        if not self.slow or record in {id_of(LEASE, partition) for partition in self.slow}:
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


async def many_held_by_a(store, count):
    await store.create(GROUP, {f"{n:03d}": EARLIEST for n in range(count)})
    return await store.acquire((await store.snapshot(GROUP)).leases, "a", 10.0)


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
                with pytest.raises(StoreUnavailable, match="answer"):
                    await ask
        endpoint.open.set()
        assert len((await store.renew([lease])).kept) == 1
        await store.close()

    asyncio.run(work())


def test_slow_records_cost_no_other_its_renewal(endpoint):
    """Even if there are more of them than requests at once."""
    slow = [f"{n:03d}" for n in range(20, 20 + REQUESTS_MAX + 8)]

    async def work():
        store = open_store(url_of(endpoint, "?timeout_s=3"))
        held = await many_held_by_a(store, 20 + len(slow))
        endpoint.slow = slow
        endpoint.open.clear()
        async with asyncio.timeout(5):  # as long as upkeep waits
            answer = await store.renew(sorted(held, key=lambda lease: lease.partition))
        endpoint.open.set()
        await store.close()
        return answer

    answer = asyncio.run(work())
    assert set(answer.unknown) == set(slow)
    assert len(answer.kept) == 20


def test_many_leases_are_renewed_at_once_over_connections_that_are_kept(endpoint, caplog):
    async def work():
        store = open_store(url_of(endpoint))
        held = await many_held_by_a(store, REQUESTS_MAX)
        endpoint.together = threading.Barrier(REQUESTS_MAX)
        for _ in range(2):
            assert len((await store.renew(held)).kept) == REQUESTS_MAX
        await store.close()

    with caplog.at_level(logging.WARNING, "urllib3"):
        asyncio.run(work())
    assert caplog.messages == [], "a full pool throws connections away"


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
