"""One group shared with Microsoft's own processors: their real store and real load balancing."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub import LoadBalancingStrategy
from azure.eventhub._eventprocessor._eventprocessor_mixin import EventProcessorMixin
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from support.azure_wire import Exchange, Wire, at, leases, store_on, take
from support.servers import Azurite

from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.stores.azure_blob import AzureBlobStore
from leasehold.testing.check_lease_store import EARLIEST, any_group

CONTAINER = "interop"
STOCK_TTL_S = 180.0


def stock_store(azurite: Azurite, wire: Wire | None = None) -> Any:
    return BlobCheckpointStore(
        azurite.url,
        CONTAINER,
        credential=AzureNamedKeyCredential(azurite.account, azurite.key),
        transport=wire or Wire(),
        retry_total=0,
    )


def place(group: Group) -> tuple[str, str, str]:
    return group.namespace, group.feed, group.name


def run(
    azurite: Azurite, scenario: Callable[[AzureBlobStore, Any, Group], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        ours, theirs = store_on(azurite, CONTAINER), stock_store(azurite)
        try:
            await scenario(ours, theirs, any_group())
        finally:
            await ours.close()
            await theirs.close()

    asyncio.run(main())


async def stock_claim(theirs: Any, group: Group, partition: str, owner: str) -> list[Any]:
    """What a stock processor does with a partition it lists: claim it under the listed ETag."""
    listed = await theirs.list_ownership(*place(group))
    (seen,) = [record for record in listed if record["partition_id"] == partition]
    return list(await theirs.claim_ownership([seen | {"owner_id": owner}]))


async def stock_checkpoint(theirs: Any, group: Group, partition: str, last: int) -> None:
    await theirs.update_checkpoint(
        {
            "fully_qualified_namespace": group.namespace,
            "eventhub_name": group.feed,
            "consumer_group": group.name,
            "partition_id": partition,
            "offset": str((last + 1) * 100),
            "sequence_number": last,
        }
    )


def test_stock_processors_read_our_ownership(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, dict.fromkeys("0123", EARLIEST))
        await take(ours, group, "0", "worker-1")
        await take(ours, group, "1", "Wörker")
        released = await take(ours, group, "2", "worker-1")
        await ours.release([replace(released, offered_to="worker-2")])
        listed = {r["partition_id"]: r for r in await theirs.list_ownership(*place(group))}
        owners = {p: record["owner_id"] or "" for p, record in listed.items()}
        assert owners == {"0": "worker-1", "1": "W%C3%B6rker", "2": "", "3": ""}
        seen = await leases(ours, group)
        assert {p: r["etag"] for p, r in listed.items()} == {p: s.version for p, s in seen.items()}

    run(azurite, scenario)


def test_stock_processors_resume_where_we_stopped(azurite: Azurite) -> None:
    starts = {"0": EARLIEST, "1": at(41), "2": EARLIEST, "3": Checkpoint(next_sequence=5)}

    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, starts)
        lease = await take(ours, group, "2", "worker-1")
        await ours.checkpoint([replace(lease, checkpoint=at(8))])
        listed = {r["partition_id"]: r for r in await theirs.list_checkpoints(*place(group))}
        found = {p: (r["sequence_number"], r["offset"]) for p, r in listed.items()}
        assert found == {"0": (-1, "-1"), "1": (40, "4100"), "2": (7, "800"), "3": (4, "-1")}
        reader = EventProcessorMixin()
        reader._initial_event_position = "@latest"
        reader._initial_event_position_inclusive = False
        # Where it would begin: after this offset. Without a known offset, before everything.
        begins = {p: reader.get_init_event_position(p, r) for p, r in listed.items()}
        assert begins == {
            "0": ("-1", False),
            "1": ("4100", False),
            "2": ("800", False),
            "3": ("-1", False),
        }

    run(azurite, scenario)


def test_members_and_splits_do_not_disturb_stock_readers(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, {"0": at(3)})
        lease = await take(ours, group, "0", "worker-1")
        await ours.split(lease, {"0a": at(3), "0b": at(3)})
        await take(ours, group, "0a", "worker-1")
        owners = {
            r["partition_id"]: r["owner_id"] or ""
            for r in await theirs.list_ownership(*place(group))
        }
        assert owners == {"0a": "worker-1", "0b": ""}
        listed = await theirs.list_checkpoints(*place(group))
        assert {r["partition_id"]: r["sequence_number"] for r in listed} == {
            "0": 2,
            "0a": 2,
            "0b": 2,
        }

    run(azurite, scenario)


def test_we_read_a_group_that_stock_processors_made(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(any_group(), {"0": EARLIEST})  # stock processors expect the container
        record = {
            "fully_qualified_namespace": group.namespace,
            "eventhub_name": group.feed,
            "consumer_group": group.name,
            "owner_id": "6f3c-stock",
        }
        claimed = await theirs.claim_ownership([record | {"partition_id": p} for p in "01"])
        assert len(claimed) == 2
        await stock_checkpoint(theirs, group, "0", last=6)
        (lease,) = (await ours.snapshot(group)).leases  # a lease is where there is a checkpoint
        assert (lease.partition, lease.owner, lease.ttl_s) == ("0", "6f3c-stock", STOCK_TTL_S)
        assert (lease.checkpoint, lease.advanced) == (at(7), True)
        assert not lease.expired
        assert group in await ours.groups()
        await ours.create(group, {"0": EARLIEST, "1": at(2)})
        found = await leases(ours, group)
        assert {p: (s.owner, s.checkpoint) for p, s in found.items()} == {
            "0": ("6f3c-stock", at(7)),
            "1": ("6f3c-stock", at(2)),
        }
        (released,) = await theirs.claim_ownership([claimed[0] | {"owner_id": ""}])
        assert (await leases(ours, group))[released["partition_id"]].owner is None

    run(azurite, scenario)


def test_a_stock_claim_from_an_older_look_loses_to_our_renewal(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, {"0": EARLIEST})
        lease = await take(ours, group, "0", "worker-1")
        (seen,) = await theirs.list_ownership(*place(group))
        await ours.renew([lease])
        assert list(await theirs.claim_ownership([seen | {"owner_id": "stock"}])) == []
        assert (await ours.renew([lease])).kept

    run(azurite, scenario)


def test_our_claim_from_an_older_look_loses_to_a_stock_renewal(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, {"0": EARLIEST})
        assert len(await stock_claim(theirs, group, "0", "stock")) == 1
        seen = (await ours.snapshot(group)).leases
        assert len(await stock_claim(theirs, group, "0", "stock")) == 1
        assert list(await ours.acquire(seen, "worker-1", 10.0)) == []
        assert (await leases(ours, group))["0"].owner == "stock"

    run(azurite, scenario)


def test_a_first_claim_of_ours_and_a_stock_one_have_one_winner(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        partitions = [str(n) for n in range(8)]
        await ours.create(group, dict.fromkeys(partitions, EARLIEST))
        seen = (await ours.snapshot(group)).leases
        listed = await theirs.list_ownership(*place(group))
        won, stolen = await asyncio.gather(
            ours.acquire(seen, "worker-1", 10.0),
            theirs.claim_ownership([record | {"owner_id": "stock"} for record in listed]),
        )
        mine, its = {s.partition for s in won}, {record["partition_id"] for record in stolen}
        assert mine.isdisjoint(its)
        assert mine | its == set(partitions)

    run(azurite, scenario)


def test_a_stock_theft_ends_our_lease_and_its_epoch_still_only_rises(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, {"0": EARLIEST})
        lease = await take(ours, group, "0", "worker-1")
        assert await ours.checkpoint([replace(lease, checkpoint=at(3))])
        assert len(await stock_claim(theirs, group, "0", "stock")) == 1
        assert not (await ours.renew([lease])).kept
        await ours.release([lease])  # must not release what is the thief's now
        assert (await leases(ours, group))["0"].owner == "stock"
        await stock_checkpoint(theirs, group, "0", last=8)  # wipes the last of our keys
        assert list(await ours.checkpoint([replace(lease, checkpoint=at(4))])) == []
        assert (await leases(ours, group))["0"].checkpoint == at(9)
        back = await take(ours, group, "0", "worker-1")
        assert back.epoch > lease.epoch
        assert back.checkpoint == at(9)
        assert list(await ours.checkpoint([replace(lease, checkpoint=at(50))])) == []
        assert await ours.checkpoint([replace(back, checkpoint=at(10))])
        third = await take(ours, group, "0", "worker-2")
        assert third.epoch == back.epoch + 1

    run(azurite, scenario)


@pytest.mark.parametrize(
    ("theirs_last", "ours_next", "stored"), [(1, 12, 12), (1, 10, 10), (29, 12, 30), (29, 31, 31)]
)
def test_a_stock_checkpoint_while_we_hold_the_lease_neither_breaks_nor_rewinds_us(
    azurite: Azurite, theirs_last: int, ours_next: int, stored: int
) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, {"0": EARLIEST})
        lease = await take(ours, group, "0", "worker-1")
        assert await ours.checkpoint([replace(lease, checkpoint=at(10))])
        await stock_checkpoint(theirs, group, "0", last=theirs_last)
        (kept,) = await ours.checkpoint([replace(lease, checkpoint=at(ours_next))])
        assert kept.checkpoint == at(stored)
        found = (await leases(ours, group))["0"]
        assert (found.checkpoint, found.epoch, found.owner) == (
            at(stored),
            lease.epoch,
            "worker-1",
        )
        # And the lease is fenced again: the write put its holder back.
        await take(store := store_on(azurite, CONTAINER), group, "0", "worker-2")
        await store.close()
        assert list(await ours.checkpoint([replace(lease, checkpoint=at(99))])) == []

    run(azurite, scenario)


class Ours:
    """The least an instance of ours does in a group: keep, checkpoint, let go of what is too much,
    take what is free, and steal from those that expect it."""

    def __init__(self, store: AzureBlobStore, group: Group, name: str) -> None:
        self.store, self.group, self.name = store, group, name
        self.held: dict[str, Lease] = {}

    @property
    def owns(self) -> set[str]:
        return set(self.held)

    async def step(self) -> None:
        await self.store.join(self.group, Member(instance=self.name, incarnation="1"))
        kept = (await self.store.renew(list(self.held.values()))).kept
        on = [replace(one, checkpoint=at(one.checkpoint.next_sequence + 1)) for one in kept]
        self.held = {lease.partition: lease for lease in await self.store.checkpoint(on)}
        snapshot = await self.store.snapshot(self.group)
        owned = Counter({member.instance: 0 for member in snapshot.members})
        owned.update(lease.owner for lease in snapshot.leases if lease.live and lease.owner)
        low, extra = divmod(len(snapshot.leases), len(owned))
        too_many = list(self.held.values())[low + bool(extra) :]
        await self.store.release(too_many)
        for lease in too_many:
            del self.held[lease.partition]
        room = low + bool(extra) - len(self.held)
        wanted = [lease for lease in snapshot.leases if not lease.live][:room]
        stock, most = max(
            ((name, n) for name, n in owned.items() if name.startswith("stock")),
            key=lambda entry: entry[1],
            default=("", 0),
        )
        if not wanted and len(self.held) < low and most > low:
            wanted = [lease for lease in snapshot.leases if lease.owner == stock][:1]
        for lease in await self.store.acquire(wanted, self.name, 600.0):
            self.held[lease.partition] = lease


class Stock:
    """A stock instance: Microsoft's own ownership manager on Microsoft's own store."""

    def __init__(
        self,
        store: Any,
        group: Group,
        name: str,
        partitions: list[str],
        *,
        strategy: Any = LoadBalancingStrategy.GREEDY,
        ttl_s: float = STOCK_TTL_S,
    ) -> None:
        async def get_partition_ids() -> list[str]:
            return partitions

        client: Any = SimpleNamespace(
            _address=SimpleNamespace(hostname=group.namespace),
            eventhub_name=group.feed,
            get_partition_ids=get_partition_ids,
        )
        self.name = name
        self.owns: set[str] = set()
        self.manager = OwnershipManager(client, group.name, name, store, ttl_s, strategy, None)

    async def step(self) -> None:
        self.owns = set(await self.manager.claim_ownership())


def test_a_stock_processor_takes_over_from_a_dead_instance_of_ours(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: Any, group: Group) -> None:
        await ours.create(group, {"0": EARLIEST})
        lease = await take(ours, group, "0", "ours")
        assert await ours.checkpoint([replace(lease, checkpoint=at(4))])
        patient = Stock(theirs, group, "patient", ["0"])
        hasty = Stock(theirs, group, "hasty", ["0"], ttl_s=1.0)
        await asyncio.sleep(2.2)
        await patient.step()
        await hasty.step()
        assert (patient.owns, hasty.owns) == (set(), {"0"})
        assert not (await ours.renew([lease])).kept

    run(azurite, scenario)


def test_we_take_over_from_a_dead_stock_processor(azurite: Azurite) -> None:
    async def scenario(patient: AzureBlobStore, theirs: Any, group: Group) -> None:
        await patient.create(group, {"0": EARLIEST})
        await Stock(theirs, group, "stock", ["0"]).step()
        await asyncio.sleep(2.2)
        hasty = store_on(azurite, CONTAINER, foreign_ttl_s=1.0)
        assert not (await leases(patient, group))["0"].expired
        seen = (await leases(hasty, group))["0"]
        assert (seen.owner, seen.expired) == ("stock", True)
        assert len(await hasty.acquire([seen], "ours", 10.0)) == 1
        await hasty.close()

    run(azurite, scenario)


@pytest.mark.parametrize("at_once", [False, True], ids=["in-turn", "at-once"])
@pytest.mark.parametrize(
    "strategy", [LoadBalancingStrategy.GREEDY, LoadBalancingStrategy.BALANCED], ids=str
)
def test_a_mixed_group_shares_its_partitions_without_two_owners(
    azurite: Azurite, strategy: Any, at_once: bool
) -> None:
    partitions = [str(n) for n in range(8)]

    async def main() -> None:
        group, wires = any_group(), [Wire() for _ in range(4)]
        stores = [store_on(azurite, CONTAINER, wire) for wire in wires[:2]]
        stocks = [stock_store(azurite, wire) for wire in wires[2:]]
        await stores[0].create(group, dict.fromkeys(partitions, EARLIEST))
        instances: list[Ours | Stock] = [
            Ours(stores[0], group, "ours-1"),
            Stock(stocks[0], group, "stock-1", partitions, strategy=strategy),
            Ours(stores[1], group, "ours-2"),
            Stock(stocks[1], group, "stock-2", partitions, strategy=strategy),
        ]
        chance = random.Random(7)
        for round_ in range(24):
            joined = instances[: 1 + round_ // 2]  # one after the other, as in a scale-out
            chance.shuffle(joined)
            if at_once:
                await asyncio.gather(*(instance.step() for instance in joined))
            else:
                for instance in joined:
                    await instance.step()
        for instance in instances:  # everyone notices what it lost
            await instance.step()
        sizes = {instance.name: len(instance.owns) for instance in instances}
        assert sum(sizes.values()) == len(partitions), sizes
        assert set.union(*(instance.owns for instance in instances)) == set(partitions)
        assert set(sizes.values()) == {2}, sizes
        check_that_no_two_ever_claimed_from_one_state(wires, group)
        found = await leases(stores[0], group)
        for instance in instances:
            assert {p for p, lease in found.items() if lease.owner == instance.name} == (
                instance.owns
            )
        for store in (*stores, *stocks):
            await store.close()

    asyncio.run(main())


def check_that_no_two_ever_claimed_from_one_state(wires: list[Wire], group: Group) -> None:
    """Each successful write of an ownership blob names the one before it, and no two the same: the
    owners of a partition form one line, whoever they are."""
    lines: dict[str, list[Exchange]] = {}
    for wire in wires:
        for exchange in wire.exchanges:
            if exchange.wrote and f"/{group.name}/ownership/" in exchange.path:
                lines.setdefault(exchange.path, []).append(exchange)
    assert len(lines) == 8
    for path, writes in lines.items():
        before = [write.if_match for write in writes]
        assert before.count(None) == 1, f"{path} was made more than once"
        assert len(set(before)) == len(before), f"{path}: two writes came from one state"
        assert set(before) - {None} <= {write.etag for write in writes}
