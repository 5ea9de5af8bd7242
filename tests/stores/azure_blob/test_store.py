import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import azure.storage.blob._shared.policies as azure_policies
import pytest
from azure.core.exceptions import ResourceExistsError
from support.azure_wire import Wire, at, client_on, leases, store_on, take
from support.servers import Azurite

from leasehold.core.model import Group, Lease, Member
from leasehold.errors import BadInput, NewerVersion
from leasehold.local import blob_container as azure_container
from leasehold.ports import LeaseStore, Renewed
from leasehold.stores.azure_blob import AzureBlobStore
from leasehold.stores.azure_blob import layout as azure_layout
from leasehold.stores.azure_blob import names as azure_names
from leasehold.testing.check_lease_faults import LOCK_CHECKS, LockCheck
from leasehold.testing.check_lease_store import CHECKS, EARLIEST, Check, any_group

CONTAINER = "leases"
FATES = ("before", "after")


@pytest.fixture
def url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_SAS_TOKEN", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.key)
    return f"azure-blob://{azurite.account}/{CONTAINER}?endpoint={azurite.url}"


@pytest.mark.parametrize("api_version", ["", "2017-11-09"])
@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_azure_blob(rule: Check, api_version: str, url: str) -> None:
    async def open_store() -> LeaseStore:
        return AzureBlobStore.from_url(f"{url}&api_version={api_version}")

    async def main() -> None:
        await rule(open_store, any_group())

    asyncio.run(main())


@pytest.mark.parametrize("rule", LOCK_CHECKS, ids=lambda rule: rule.__name__)
def test_azure_blob_with_locked_blobs(rule: LockCheck, url: str, azurite: Azurite) -> None:
    async def open_store() -> LeaseStore:
        return AzureBlobStore.from_url(url)

    @asynccontextmanager
    async def lock(group: Group, partition: str) -> AsyncIterator[None]:
        blobs = client_on(azurite, CONTAINER, Wire())
        names = (azure_names.ownership_name, azure_names.checkpoint_name)
        locks = [
            await blobs.get_blob_client(name("", group, partition)).acquire_lease(lease_duration=60)
            for name in names
        ]
        yield
        for each in locks:
            await each.break_lease(lease_break_period=0)
        await blobs.close()

    asyncio.run(rule(open_store, any_group(), lock))


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_azure_blob_where_a_java_processor_was_first(
    rule: Check, url: str, azurite: Azurite
) -> None:
    """It keeps the case of names, so all of the group's blobs have to."""
    group = Group(namespace="Homes.local", feed="Sensors", name=f"$G-{uuid4().hex[:12]}")
    root = f"{group.namespace}/{group.feed}/{group.name}/"

    async def open_store() -> LeaseStore:
        return AzureBlobStore.from_url(url)

    async def main() -> None:
        theirs = client_on(azurite, CONTAINER, Wire())
        with suppress(ResourceExistsError):
            await theirs.create_container()
        await theirs.upload_blob(f"{root}ownership/java", b"", metadata={"ownerid": "java-1"})
        await rule(open_store, group)
        under = [name async for name in theirs.list_blob_names(name_starts_with=root.lower())]
        await theirs.close()
        assert all("/leasehold/member/" in name for name in under)

    asyncio.run(main())


class BothSpellings(AzureBlobStore):
    """Whose checkpoints stock processors write in small letters, too, and never take back."""

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        kept = await super().checkpoint(leases)
        for lease in kept:
            name = azure_names.checkpoint_name("", lease.group, lease.partition)
            said = {"offset": "7", "sequencenumber": str(lease.checkpoint.next_sequence - 1)}
            await self._blobs.make("stock", name, said, over=True)
        return kept


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_azure_blob_where_checkpoints_are_in_both_spellings(
    rule: Check, url: str, azurite: Azurite
) -> None:
    group = Group(namespace="Homes.local", feed="Sensors", name=f"$G-{uuid4().hex[:12]}")

    async def open_store() -> LeaseStore:
        return BothSpellings.from_url(url)

    async def main() -> None:
        theirs = client_on(azurite, CONTAINER, Wire())
        with suppress(ResourceExistsError):
            await theirs.create_container()
        name = f"{group.namespace}/{group.feed}/{group.name}/ownership/java"
        await theirs.upload_blob(name, b"", metadata={"ownerid": "java-1"})
        await theirs.close()
        await rule(open_store, group)

    asyncio.run(main())


def run(
    azurite: Azurite,
    scenario: Callable[[AzureBlobStore, Wire, Group], Coroutine[Any, Any, None]],
    container: str = CONTAINER,
    **settings: Any,
) -> None:
    """Run a scenario on a store of its own, with the wire it speaks over."""

    async def main() -> None:
        wire = Wire()
        store = store_on(azurite, container, wire, **settings)
        try:
            await scenario(store, wire, any_group())
        finally:
            await store.close()

    asyncio.run(main())


def test_the_container_is_made_by_the_first_write_and_not_by_a_look(azurite: Azurite) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        snapshot = await store.snapshot(group)
        assert (snapshot.leases, snapshot.members) == ((), ())
        assert snapshot.taken_at > 1_600_000_000
        assert await store.groups() == ()
        assert await store.renew([ghost(group)]) == Renewed()
        assert {exchange.status for exchange in wire.exchanges} <= {404, 412}
        await asyncio.gather(*(store.create(group, {p: EARLIEST}) for p in "012"))
        assert sorted(await leases(store, group)) == ["0", "1", "2"]

    run(azurite, scenario, container=f"new-{uuid4().hex[:8]}")


def ghost(group: Group) -> Lease:
    return Lease(group=group, partition="77", checkpoint=EARLIEST, owner="a", epoch=1, version="1")


def test_a_lease_written_by_a_newer_version_is_refused(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        with monkeypatch.context() as newer:
            newer.setattr(azure_layout, "FORMAT", 2)
            await store.create(group, {"0": EARLIEST})
        with pytest.raises(NewerVersion, match="upgrade"):
            await store.snapshot(group)
        assert group in await store.groups()

    run(azurite, scenario)


@pytest.mark.parametrize("hours", [-24, 24])
def test_an_instance_with_a_wrong_clock_sees_the_same_ages(
    azurite: Azurite, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = time.time

    def wrong() -> float:
        return right() + hours * 3600

    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        await store.create(group, {"0": EARLIEST})
        await store.join(group, Member(instance="a", incarnation="1"))
        await take(store, group, "0", "a")
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", wrong)
            patch.setattr(azure_policies, "time", wrong)
            skewed = store_on(azurite, CONTAINER)
            seen = await skewed.snapshot(group)
            await skewed.close()
        assert not seen.leases[0].expired
        assert not seen.members[0].expired
        assert abs(seen.taken_at - right()) < 600

    run(azurite, scenario)


@pytest.mark.parametrize("owned", [0, 1, 8])
def test_an_interval_costs_one_request_per_held_lease_and_two_more(
    azurite: Azurite, owned: int
) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        member = Member(instance="a", incarnation="1")
        await store.create(group, {str(n): EARLIEST for n in range(8)})
        await store.join(group, member)
        seen = (await store.snapshot(group)).leases
        held = await store.acquire(seen[:owned], "a", 10.0)
        for _ in range(3):
            before, sent = store.requests.copy(), wire.sent
            assert await store.heartbeat(group, member)
            assert len((await store.renew(held)).kept) == owned
            await store.snapshot(group)
            spent = store.requests - before
            assert spent == {k: v for k, v in cost.items() if v}
            assert wire.sent - sent == spent.total()

    cost = {"heartbeat": 1, "renew": owned, "snapshot": 1}
    run(azurite, scenario)


def test_taking_and_checkpointing_cost_as_little_as_they_can(azurite: Azurite) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        maker = store_on(azurite, CONTAINER)
        await maker.create(group, {"0": EARLIEST})
        await maker.close()
        lease = await take(store, group, "0", "a")
        assert store.requests == {"snapshot": 1, "acquire": 2}
        for n in range(1, 4):
            await store.checkpoint([replace(lease, checkpoint=at(n))])
        assert store.requests["checkpoint"] == 3
        await store.release([lease])
        assert store.requests["release"] == 2
        assert wire.sent == store.requests.total()

    run(azurite, scenario)


def test_a_long_listing_is_read_page_by_page(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_container, "PAGE_BLOBS", 3)

    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        await store.create(group, {str(n): at(n) for n in range(5)})
        found = await leases(store, group)
        assert {p: lease.checkpoint for p, lease in found.items()} == {
            str(n): at(n) for n in range(5)
        }
        assert store.requests["snapshot"] == 4  # ten blobs
        assert group in await store.groups()

    run(azurite, scenario)


def test_many_leases_are_written_at_once_but_not_all_at_once(azurite: Azurite) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        await store.create(group, {str(n): EARLIEST for n in range(20)})
        held = await store.acquire((await store.snapshot(group)).leases, "a", 10.0)
        wire.in_flight_max = 0
        assert len((await store.renew(held)).kept) == 20
        assert wire.in_flight_max == 4

    run(azurite, scenario, concurrency=4)


def test_members_that_never_left_are_forgotten_when_another_joins(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.stores.azure_blob.store.FORGET_MEMBERS_AFTER_S", 4.0)

    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        for name in ("crashed", "alive"):
            await store.join(group, Member(instance=name, incarnation="1"))
        await asyncio.sleep(5.2)  # stamps are whole seconds
        await store.heartbeat(group, Member(instance="alive", incarnation="1"))
        await store.join(group, Member(instance="new", incarnation="1"))
        assert [m.instance for m in (await store.snapshot(group)).members] == ["alive", "new"]

    run(azurite, scenario)


def test_names_keep_their_case(azurite: Azurite) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        loud = replace(group, namespace="Homes.Local", feed="Sensors", name=group.name.upper())
        await store.create(loud, {"Range-A": EARLIEST})
        assert loud in await store.groups()
        (lease,) = (await store.snapshot(loud)).leases
        assert (lease.group, lease.partition) == (loud, "Range-A")
        quiet = replace(loud, namespace="homes.local", feed="sensors", name=loud.name.lower())
        assert list(await leases(store, quiet)) == ["Range-A"]

    run(azurite, scenario)


def test_odd_partition_names_come_back_as_they_were(azurite: Azurite) -> None:
    odd = ["a/b", "..", "x?y#z", "ü ö", "50%", "back\\slash", "dot.", "%2f", "a b"]

    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        group = replace(group, feed="a/b", namespace="..")
        await store.create(group, dict.fromkeys(odd, EARLIEST))
        assert sorted(await leases(store, group)) == sorted(odd)
        for name in odd:
            lease = await take(store, group, name, name)
            assert await store.checkpoint([replace(lease, checkpoint=at(3))])
            await store.join(group, Member(instance=name, incarnation=name))
        found = await store.snapshot(group)
        assert {(s.partition, s.owner, s.checkpoint) for s in found.leases} == {
            (name, name, at(3)) for name in odd
        }
        assert sorted(member.instance for member in found.members) == sorted(odd)
        assert group in await store.groups()

    run(azurite, scenario)


def test_partitions_that_differ_only_in_case_are_refused(azurite: Azurite) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        await store.create(group, {"a": EARLIEST})
        with pytest.raises(BadInput, match="only in case"):
            await store.create(group, {"A": EARLIEST})

    run(azurite, scenario)


def test_a_prefix_sets_stores_in_one_container_apart(azurite: Azurite) -> None:
    async def main() -> None:
        group = any_group()
        stores = [store_on(azurite, CONTAINER, prefix=p) for p in ("one", "/two/deep/", "")]
        for n, store in enumerate(stores):
            await store.create(group, {"0": at(n)})
        for n, store in enumerate(stores):
            assert (await leases(store, group))["0"].checkpoint == at(n)
            assert group in await store.groups()
            await store.close()

    asyncio.run(main())


def test_an_entry_without_metadata_does_not_bar_a_lease(azurite: Azurite) -> None:
    async def scenario(store: AzureBlobStore, wire: Wire, group: Group) -> None:
        await store.create(group, {"0": EARLIEST})
        blobs = client_on(azurite, CONTAINER, wire)
        await blobs.upload_blob(azure_names.checkpoint_name("", group, "1"), b"")
        assert list(await leases(store, group)) == ["0"]
        await store.create(group, {"1": at(6)})
        assert (await leases(store, group))["1"].checkpoint == at(6)
        folder = azure_names.checkpoint_name("", group, "2")
        await blobs.upload_blob(folder, b"", metadata={"hdi_isfolder": "true"})
        with pytest.raises(BadInput, match="folder"):
            await store.create(group, {"2": EARLIEST})

    run(azurite, scenario)


def test_a_release_by_one_store_object_is_final_for_another_of_the_same_owner(
    azurite: Azurite,
) -> None:
    async def main() -> None:
        group = any_group()
        one, other = store_on(azurite, CONTAINER), store_on(azurite, CONTAINER)
        await one.create(group, {"0": EARLIEST})
        lease = await take(one, group, "0", "a")
        assert await other.checkpoint([replace(lease, checkpoint=at(1))])
        await one.release([lease])
        assert list(await other.checkpoint([replace(lease, checkpoint=at(2))])) == []
        assert (await leases(one, group))["0"].checkpoint == at(1)
        await one.close()
        await other.close()

    asyncio.run(main())


def test_a_checkpoint_on_its_way_while_the_lease_is_taken_is_kept_or_refused(
    azurite: Azurite,
) -> None:
    async def main() -> None:
        former, taker = store_on(azurite, CONTAINER), store_on(azurite, CONTAINER)
        for n in range(10):
            group = any_group()
            await former.create(group, {"0": EARLIEST})
            lease = await take(former, group, "0", "a")
            seen = (await taker.snapshot(group)).leases
            kept, (taken,) = await asyncio.gather(
                former.checkpoint([replace(lease, checkpoint=at(n + 1))]),
                taker.acquire(seen, "b", 10.0),
            )
            assert taken.checkpoint == (at(n + 1) if kept else EARLIEST)
            assert list(await former.checkpoint([replace(lease, checkpoint=at(99))])) == []
        await former.close()
        await taker.close()

    asyncio.run(main())
