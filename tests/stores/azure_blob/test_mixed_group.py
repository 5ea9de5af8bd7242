"""Our real hosts and Microsoft's real load balancing in one group, on a real Azurite."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from support.servers import Azurite

from leasehold.clock import SystemClock
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Group
from leasehold.ports import LeaseStore
from leasehold.processor.host import Host
from leasehold.processor.pump import Pump
from leasehold.processor.work import Hold
from leasehold.settings import Pace, Timing
from leasehold.stores import open_store
from leasehold.testing.sim_world import SimFeed

PARTITIONS = 12
SETTINGS = Timing(lease_ttl_s=6, balance_interval_s=0.5)


class Nothing:
    """There are no events; the test is about who holds what."""

    one_by_one, interruptible = False, True

    async def open(self) -> None:
        pass

    async def close(self, reason: Reason) -> None:
        pass


def test_hosts_and_stock_processors_share_a_group_evenly(azurite: Azurite, monkeypatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    asyncio.run(share(azurite))


async def share(azurite: Azurite) -> None:
    feed = SimFeed(PARTITIONS)
    name = f"mixed-{uuid4().hex[:8]}"
    group = Group(namespace=feed.namespace, feed=feed.name, name=name)
    url = f"azure-blob://{azurite.account}/mixed?endpoint={azurite.url}&foreign_ttl_s=6"
    stores = [open_store(url) for _ in range(3)]
    hosts = [host(feed, name, store, f"ours-{n}") for n, store in enumerate(stores[1:])]
    running = [asyncio.ensure_future(each.run()) for each in hosts]
    watching, theirs = stores[0], [stock_store(azurite) for _ in range(2)]
    try:
        await until(lambda: sum(len(each.workers) for each in hosts) == PARTITIONS)
        stock = [stock_manager(store, group, f"stock-{n}") for n, store in enumerate(theirs)]
        deadline = asyncio.get_running_loop().time() + 60
        while asyncio.get_running_loop().time() < deadline:
            for manager in stock:
                await manager.claim_ownership()
            counts = await owners(watching, group)
            if sorted(counts.values()) == [3, 3, 3, 3]:
                break
            await asyncio.sleep(0.3)
        assert counts == {"ours-0": 3, "ours-1": 3, "stock-0": 3, "stock-1": 3}
        for manager in stock:  # an orderly end of theirs; ours take over what they leave
            for partition in await manager.claim_ownership():
                await manager.release_ownership(partition)
        await until(lambda: sum(len(each.workers) for each in hosts) == PARTITIONS)
        assert await owners(watching, group) == {"ours-0": 6, "ours-1": 6}
    finally:
        for each in hosts:
            each.stop()
        await asyncio.wait(running, timeout=30)
        for store in (*stores, *theirs):
            await store.close()


def host(feed: SimFeed, group: str, store: LeaseStore, instance: str) -> Host:
    clock = SystemClock()
    problems: list[BaseException] = []

    def start(hold: Hold) -> Pump:
        return Pump(
            hold,
            feed=feed,
            store=store,
            work=Nothing(),
            clock=clock,
            report=lambda what, error: problems.append(error),
            pace=Pace(),
        )

    return Host(
        feed=feed,
        group=group,
        store=store,
        instance=instance,
        incarnation=uuid4().hex,
        start_worker=start,
        clock=clock,
        report=lambda what, error: problems.append(error),
        settings=SETTINGS,
    )


async def owners(store: Any, group: Group) -> Counter[str]:
    return Counter(lease.owner or "" for lease in (await store.snapshot(group)).leases)


async def until(holds: Any, bound_s: float = 60) -> None:
    async with asyncio.timeout(bound_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def stock_store(azurite: Azurite) -> Any:
    credential = AzureNamedKeyCredential(azurite.account, azurite.key)
    return BlobCheckpointStore(azurite.url, "mixed", credential=credential)


def stock_manager(store: Any, group: Group, name: str) -> Any:
    async def get_partition_ids() -> list[str]:
        return [f"{n:02d}" for n in range(PARTITIONS)]

    client: Any = SimpleNamespace(
        _address=SimpleNamespace(hostname=group.namespace),
        eventhub_name=group.feed,
        get_partition_ids=get_partition_ids,
    )
    return OwnershipManager(
        client, group.name, name, store, 180.0, LoadBalancingStrategy.GREEDY, None
    )
