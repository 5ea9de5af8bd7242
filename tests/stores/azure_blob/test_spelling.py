"""Groups shared with processors that keep the case of names in blob paths: Java, Go and Rust."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.core.exceptions import ResourceExistsError
from support.azure_wire import Wire, at, client_on, leases, store_on, take
from support.servers import Azurite

from leasehold import Hub, Processor
from leasehold.core.model import Group
from leasehold.errors import StoreUnavailable
from leasehold.stores.azure_blob import AzureBlobStore
from leasehold.stores.azure_blob.names import fold
from leasehold.testing.check_lease_store import EARLIEST

CONTAINER = "interop"


class CaseKeeper:
    """A processor's checkpoint store as Java, Go and Rust have it: names as they are given, a claim
    under the ETag that was seen, a checkpoint under no condition at all."""

    def __init__(self, azurite: Azurite, group: Group, *, keys: tuple[str, str, str]) -> None:
        self.blobs = client_on(azurite, CONTAINER, Wire())
        self.root = f"{group.namespace}/{group.feed}/{group.name}/"
        self.owner_id, self.sequence_number, self.offset = keys

    async def claim(self, partition: str, owner: str) -> None:
        name, metadata = f"{self.root}ownership/{partition}", {self.owner_id: owner}
        blob = self.blobs.get_blob_client(name)
        if await blob.exists():
            await blob.set_blob_metadata(metadata)
        else:
            await blob.upload_blob(b"", metadata=metadata, overwrite=False)

    async def checkpoint(self, partition: str, last: int) -> None:
        metadata = {self.sequence_number: str(last), self.offset: str((last + 1) * 100)}
        name = f"{self.root}checkpoint/{partition}"
        await self.blobs.upload_blob(name, b"", metadata=metadata, overwrite=True)

    async def metadata(self, kind: str, partition: str) -> dict[str, str]:
        blob = self.blobs.get_blob_client(f"{self.root}{kind}/{partition}")
        return dict((await blob.get_blob_properties()).metadata)

    async def names(self, root: str) -> set[str]:
        found = [name async for name in self.blobs.list_blob_names(name_starts_with=root)]
        return {name.removeprefix(root) for name in found if "/member/" not in name}


LOWER = ("ownerid", "sequencenumber", "offset")
SDKS = {"java": LOWER, "go": LOWER, "java-preview": ("OwnerId", "SequenceNumber", "Offset")}


def run(
    azurite: Azurite,
    scenario: Callable[[AzureBlobStore, CaseKeeper, Group], Coroutine[Any, Any, None]],
    sdk: str = "java",
) -> None:
    async def main() -> None:
        group = Group(namespace="NS.example.net", feed="MyHub", name=f"$Default-{uuid4().hex}")
        ours, theirs = store_on(azurite, CONTAINER), CaseKeeper(azurite, group, keys=SDKS[sdk])
        try:
            with suppress(ResourceExistsError):
                await theirs.blobs.create_container()
            await scenario(ours, theirs, group)
        finally:
            await ours.close()
            await theirs.blobs.close()

    asyncio.run(main())


@pytest.mark.parametrize("sdk", SDKS)
def test_what_a_processor_that_keeps_case_owns_is_seen_and_its_checkpoint_is_where_we_go_on(
    azurite: Azurite, sdk: str
) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        for partition in "01":
            await theirs.claim(partition, "java-1")
            await theirs.checkpoint(partition, last=6)
        await theirs.claim("2", "java-1")  # and no checkpoint yet
        await ours.create(group, dict.fromkeys("0123", EARLIEST))
        found = await leases(ours, group)
        assert {p: (lease.owner, lease.live) for p, lease in found.items()} == {
            "0": ("java-1", True),
            "1": ("java-1", True),
            "2": ("java-1", True),
            "3": (None, False),
        }
        assert [found[p].checkpoint for p in "0123"] == [at(7), at(7), EARLIEST, EARLIEST]
        await theirs.claim("0", "")  # given up
        mine = await take(ours, group, "0", "ours-1")
        assert mine.checkpoint == at(7)
        assert (await ours.renew([mine])).kept
        assert await ours.checkpoint([replace(mine, checkpoint=at(9))])
        metadata = await theirs.metadata("checkpoint", "0")
        assert (metadata[theirs.sequence_number], metadata[theirs.offset]) == ("8", "900")
        assert (await theirs.metadata("ownership", "0"))[theirs.owner_id] == "ours-1"
        await ours.release([mine])
        assert (await theirs.metadata("ownership", "0")).get(theirs.owner_id, "") == ""
        every = {f"{kind}/{p}" for kind in ("ownership", "checkpoint") for p in "0123"}
        assert await theirs.names(theirs.root) == every
        assert await theirs.names(theirs.root.lower()) == set()
        assert [g for g in await ours.groups() if g.name.lower() == group.name.lower()] == [group]

    run(azurite, scenario, sdk)


def test_a_group_that_begins_with_us_is_in_small_letters_and_stays_there(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        await ours.create(group, {"0": EARLIEST})
        lease = await take(ours, group, "0", "ours-1")
        assert await ours.checkpoint([replace(lease, checkpoint=at(3))])
        await ours.create(group, {"1": EARLIEST})
        assert await theirs.names(theirs.root) == set()
        every = {f"{kind}/{p}" for kind in ("ownership", "checkpoint") for p in "01"}
        assert await theirs.names(theirs.root.lower()) == every

    run(azurite, scenario)


def test_a_lease_from_another_look_is_found_in_its_spelling_by_a_store_that_never_looked(
    azurite: Azurite,
) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        await theirs.checkpoint("0", last=6)
        lease = await take(ours, group, "0", "ours-1")
        for verb in ("renew", "checkpoint", "release"):
            other = store_on(azurite, CONTAINER)
            answer = await getattr(other, verb)([replace(lease, checkpoint=at(9))])
            assert answer is None or len(getattr(answer, "kept", answer)) == 1
            await other.close()
        assert (await leases(ours, group))["0"].owner is None
        assert await theirs.names(theirs.root.lower()) == set()

    run(azurite, scenario)


def test_one_that_comes_beside_us_ends_our_lease_at_our_next_look_and_nothing_is_lost(
    azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        await ours.create(group, dict.fromkeys("01", EARLIEST))
        lease = await take(ours, group, "0", "ours-1")
        assert await ours.checkpoint([replace(lease, checkpoint=at(30))])
        await theirs.claim("0", "java-1")  # it cannot see ours
        with caplog.at_level(logging.WARNING, "leasehold"):
            await ours.snapshot(group)
            await ours.snapshot(group)
        (said,) = caplog.messages
        assert "partitions 0 of" in said
        assert theirs.root in said
        assert (await ours.renew([lease])).kept == ()
        assert list(await ours.checkpoint([replace(lease, checkpoint=at(31))])) == []
        await ours.create(group, {"0": EARLIEST})  # as upkeep does where there is no lease
        await theirs.checkpoint("0", last=4)  # it began at the beginning
        seen = (await leases(ours, group))["0"]
        assert (seen.owner, seen.live, seen.checkpoint) == ("java-1", True, at(30))
        await theirs.claim("0", "")
        mine = await take(ours, group, "0", "ours-2")
        assert mine.checkpoint == at(30)
        assert (await theirs.metadata("checkpoint", "0"))["offset"] == "3000"

    run(azurite, scenario)


def test_whoever_is_alive_in_the_other_spelling_is_not_robbed(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        dotnet = CaseKeeper(azurite, fold(group), keys=LOWER)
        await dotnet.claim("0", "dotnet-1")
        await dotnet.checkpoint("0", last=8)
        await theirs.claim("0", "")
        await theirs.checkpoint("0", last=4)
        seen = (await leases(ours, group))["0"]
        assert (seen.owner, seen.live, seen.checkpoint) == ("dotnet-1", True, at(9))
        await dotnet.claim("0", "")
        mine = await take(ours, group, "0", "ours-1")
        assert mine.checkpoint == at(9)
        await dotnet.blobs.close()

    run(azurite, scenario)


async def in_both(azurite: Azurite, theirs: CaseKeeper, group: Group) -> CaseKeeper:
    """Java is at 80 and .NET, which is alive, at 100."""
    dotnet = CaseKeeper(azurite, fold(group), keys=LOWER)
    await theirs.claim("0", "")
    await theirs.checkpoint("0", last=79)
    await dotnet.claim("0", "dotnet-1")
    await dotnet.checkpoint("0", last=99)
    return dotnet


def test_a_group_in_both_spellings_goes_on_where_a_rewind_sent_it(azurite: Azurite) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        dotnet = await in_both(azurite, theirs, group)
        looked_before = store_on(azurite, CONTAINER)
        seen = (await leases(looked_before, group))["0"]
        assert seen.checkpoint == at(100)
        assert await ours.rewind([replace((await leases(ours, group))["0"], checkpoint=at(5))])
        for kind in (theirs, dotnet):
            found = await kind.metadata("checkpoint", "0")
            assert (found["sequencenumber"], found["offset"]) == ("4", "500")
            assert (await kind.metadata("ownership", "0")).get("ownerid", "") == "", "not robbed"
        now = (await leases(ours, group))["0"]
        assert (now.checkpoint, now.owner) == (at(5), None)
        (mine,) = await looked_before.acquire([now], "ours-1", 10.0)
        assert mine.checkpoint == at(5), "whatever was seen there before"
        await looked_before.release([mine])
        await dotnet.checkpoint("0", last=8)  # it went on from there
        assert (await take(ours, group, "0", "ours-2")).checkpoint == at(9)
        await dotnet.blobs.close()
        await looked_before.close()

    run(azurite, scenario)


def test_a_feed_that_was_recreated_is_read_although_both_spellings_are_beyond_its_end(
    azurite: Azurite, tmp_path: Path
) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        dotnet = await in_both(azurite, theirs, group)
        await dotnet.claim("0", "")
        with Hub.create(
            tmp_path / "hub.db", name=group.feed, namespace=group.namespace, partitions=1
        ) as hub:
            hub.send([str(n) for n in range(10)])
            seen: list[int] = []
            processor = Processor(
                hub, group=group.name, store=ours, on_event=lambda e: seen.append(e.sequence)
            )
            async with asyncio.timeout(60):
                await processor.run_async(until_drained=True)
        assert seen == list(range(10))
        await dotnet.blobs.close()

    run(azurite, scenario)


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize("nth", range(7))
def test_a_rewind_of_both_spellings_that_is_cut_short_can_be_repeated(
    azurite: Azurite, nth: int, fate: str
) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        dotnet = await in_both(azurite, theirs, group)
        wire = Wire()
        dying = store_on(azurite, CONTAINER, wire)
        lease = replace((await leases(dying, group))["0"], checkpoint=at(5))
        dies_at = wire.sent + nth
        wire.fail = lambda n: None if n < dies_at else fate if n == dies_at else "before"
        done: list[Any] = []
        with suppress(StoreUnavailable):
            done += await dying.rewind([lease])
        seen = (await leases(ours, group))["0"]
        assert seen.checkpoint in ([at(5)] if done else [at(5), at(80), at(100)])
        if seen.checkpoint != at(5):
            assert await ours.rewind([replace(seen, checkpoint=at(5))])
        assert (await take(ours, group, "0", "ours-1")).checkpoint == at(5)
        await dying.close()
        await dotnet.blobs.close()

    run(azurite, scenario)


@pytest.mark.parametrize(
    "blank",
    [
        {"offset": "", "sequencenumber": "41"},
        {"offset": "no offset", "sequencenumber": "41"},
        {"offset": "4200", "sequencenumber": ""},
        {"offset": "", "sequencenumber": ""},
    ],
    ids=str,
)
def test_what_another_left_blank_stays_blank_until_we_move_on(
    azurite: Azurite, blank: dict[str, str]
) -> None:
    async def scenario(ours: AzureBlobStore, theirs: CaseKeeper, group: Group) -> None:
        theirs.root = theirs.root.lower()  # as .NET writes it
        there = blank | {"clientidentifier": "net-1", "CostCentre": "x"}
        await theirs.blobs.upload_blob(f"{theirs.root}checkpoint/0", b"", metadata=there)
        await theirs.blobs.upload_blob(
            f"{theirs.root}ownership/0", b"", metadata={"ownerid": "", "CostCentre": "x"}
        )
        lease = await take(ours, group, "0", "ours-1")
        taken = await theirs.metadata("checkpoint", "0")
        await ours.renew([lease])
        await ours.checkpoint([replace(lease, attempts=2)])
        await ours.release([lease])
        for found in (taken, await theirs.metadata("checkpoint", "0")):
            assert {key: found.get(key) or "" for key in there} == there
        assert (await theirs.metadata("ownership", "0"))["CostCentre"] == "x"
        lease = await take(ours, group, "0", "ours-1")
        await ours.checkpoint([replace(lease, checkpoint=at(50))])
        found = await theirs.metadata("checkpoint", "0")
        assert (found["offset"], found["sequencenumber"]) == ("5000", "49")
        assert found["CostCentre"] == "x"

    run(azurite, scenario)
