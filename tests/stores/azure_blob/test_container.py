import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
from support.azure_wire import Wire, at, client_on, leases, store_on, take
from support.servers import Azurite

from leasehold.core.model import Group, Lease, Member
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.stores.azure_blob import AzureBlobStore
from leasehold.stores.azure_blob import names as azure_names
from leasehold.testing.check_lease_store import EARLIEST, any_group

CONTAINER = "leases"


@pytest.fixture
def url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_SAS_TOKEN", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.key)
    return f"azure-blob://{azurite.account}/{CONTAINER}?endpoint={azurite.url}"


def test_opening_a_store_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    store = AzureBlobStore.from_url("azure-blob://nobody/leases?endpoint=http://127.0.0.1:9")
    assert store.requests.total() == 0


def ghost(group: Group) -> Lease:
    return Lease(group=group, partition="77", checkpoint=EARLIEST, owner="a", epoch=1, version="1")


@pytest.mark.parametrize(
    "url",
    [
        "azure-blob://user:s3cret@account/leases",
        "azure-blob://account/leases?sv=2022&sig=s3cret",
        "azure-blob://account/leases?account_key=s3cret",
        "azure-blob://account/leases?s3cret",
        "azure-blob://account/leases#s3cret",
        "azure-blob://account/leases?endpoint=https://x.y/?sig=s3cret",
        "azure-blob://account/leases?endpoint=https://s3cret@x.y",
        "azure-blob://account/leases?prefix=a&s3cret==&x",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    with pytest.raises(BadInput) as caught:
        AzureBlobStore.from_url(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("azure-blob://account/Bad_Name", "container"),
        ("azure-blob://account/a--b", "container"),
        ("azure-blob://account", "container"),
        ("azure-blob:///leases", "account"),
        ("azure-blob://account/leases?api_version=new", "api_version"),
        ("azure-blob://account/leases?timeout_s=0", "timeout_s"),
        ("azure-blob://account/leases?foreign_ttl_s=soon", "foreign_ttl_s"),
        ("azure-blob://account/leases?colour=red", "prefix"),
        ("azure-blob://account/leases?endpoint=ftp://x", "endpoint"),
    ],
)
def test_a_setting_that_cannot_work_is_named(
    url: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    with pytest.raises(BadInput, match=hint):
        AzureBlobStore.from_url(url)


def test_without_a_secret_the_message_says_where_to_put_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    with pytest.raises(BadInput, match="AZURE_STORAGE_KEY"):
        AzureBlobStore.from_url(url)


def test_the_secret_may_be_a_connection_string_or_a_sas_token(
    url: str, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def works(address: str) -> None:
        store, group = AzureBlobStore.from_url(address), any_group()
        await store.create(group, {"0": EARLIEST})
        assert list(await leases(store, group)) == ["0"]
        await store.close()

    monkeypatch.delenv("AZURE_STORAGE_KEY")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    asyncio.run(works(url.partition("?")[0]))
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=other;AccountKey=a2V5")
    token = generate_account_sas(
        azurite.account,
        azurite.key,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
        datetime.now(UTC) + timedelta(hours=1),
    )
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
    asyncio.run(works(url))


def fails(url: str, error: type[Exception], hint: str) -> str:
    async def main() -> None:
        store = AzureBlobStore.from_url(url)
        try:
            with pytest.raises(error, match=hint) as caught:
                await store.create(any_group(), {"0": EARLIEST})
            said.append(str(caught.value))
            with pytest.raises(error, match=hint):
                await store.snapshot(any_group())
        finally:
            await store.close()

    said: list[str] = []
    asyncio.run(main())
    return said[0]


@pytest.mark.parametrize("key", ["d3Jvbmc=", "not base64"])
def test_a_wrong_key_is_bad_input(url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", key)
    assert key not in fails(url, BadInput, "AZURE_STORAGE_KEY")


def test_an_unknown_account_is_bad_input(url: str, azurite: Azurite) -> None:
    fails(url.replace(azurite.account, "nobody"), BadInput, "account")


def test_an_unreachable_server_is_worth_another_try(url: str) -> None:
    address = url.partition("?")[0] + "?endpoint=http://127.0.0.1:9/devstoreaccount1"
    fails(address, StoreUnavailable, "network")


@pytest.mark.parametrize(("status", "hint"), [(503, "again"), (429, "again"), (None, "timeout_s")])
def test_a_server_in_trouble_is_worth_another_try(
    url: str, status: int | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if status is None:
            await reader.read()  # for ever, or until the client gives up
        else:
            writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = url.partition("?")[0]
        store = AzureBlobStore.from_url(
            f"{address}?endpoint=http://127.0.0.1:{port}/x&timeout_s={30 if status else 0.3}"
        )
        for ask in (store.snapshot(any_group()), store.renew([ghost(any_group())])):
            with pytest.raises(StoreUnavailable, match=hint):
                await ask
        await store.close()
        server.close()

    asyncio.run(main())


def test_without_the_extra_the_message_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['azure.core'] = None\n"
        "import leasehold.core.model, leasehold.stores.memory\n"
        "from leasehold.errors import MissingExtra\n"
        "try:\n    import leasehold.stores.azure_blob\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'leasehold[azure]'" in done.stdout


def test_the_api_version_of_the_setting_is_the_one_sent(url: str) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
            writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        address = url.partition("?")[0]
        store = AzureBlobStore.from_url(f"{address}?endpoint={endpoint}&api_version=2017-11-09")
        for ask in (
            store.snapshot(any_group()),
            store.create(any_group(), {"0": EARLIEST}),
            store.renew([ghost(any_group())]),
        ):
            with pytest.raises(StoreUnavailable):
                await ask
        await store.close()
        server.close()

    heard: list[str] = []
    asyncio.run(main())
    assert len(heard) == 3
    assert all("x-ms-version: 2017-11-09" in request for request in heard)


def test_a_store_is_used_again_after_a_close_and_in_one_event_loop_after_another(url: str) -> None:
    patient = f"{url}{'&' if '?' in url else '?'}timeout_s=60"  # 40 looks at once on a busy machine
    store, group = AzureBlobStore.from_url(patient), any_group()

    async def first() -> None:
        await store.create(group, {"0": EARLIEST})
        await store.close()
        assert list(await leases(store, group)) == ["0"]
        await store.close()
        await store.close()

    async def many_at_once() -> None:  # more than there are slots, so that some wait for one
        looks = await asyncio.gather(*(store.snapshot(group) for _ in range(40)))
        assert {len(look.leases) for look in looks} == {1}
        await asyncio.to_thread(asyncio.run, first())  # another loop, while this one goes on
        assert list(await leases(store, group)) == ["0"]
        await store.close()

    for use in (first, many_at_once, many_at_once, first):
        asyncio.run(use())


LOCKED = "some program holds one of Azure's own blob leases on .*lease break"


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        (azure_names.ownership_name, "renew"),
        (azure_names.ownership_name, "release"),
        (azure_names.ownership_name, "acquire"),
        (azure_names.checkpoint_name, "checkpoint"),
        (azure_names.checkpoint_name, "release"),
        (azure_names.checkpoint_name, "acquire"),
        (azure_names.member_name, "leave"),
        (azure_names.member_name, "heartbeat"),
        (azure_names.member_name, "join"),
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_a_blob_that_another_program_has_locked_is_unavailable_and_not_lost(
    name: Callable[..., str], verb: str, azurite: Azurite
) -> None:
    """Azure answers 412 to that, too, as it does to a lost race."""

    async def main() -> None:
        store, group = store_on(azurite, CONTAINER), any_group()
        member = Member(instance="0", incarnation="1")
        await store.create(group, dict.fromkeys("01", EARLIEST))
        await store.join(group, member)
        held = {p: await take(store, group, p, "a") for p in "01"}
        blobs = client_on(azurite, CONTAINER, Wire())
        locked = blobs.get_blob_client(name("", group, "0"))
        lock = await locked.acquire_lease(lease_duration=60)

        async def act(partition: str) -> Any:
            if verb == "acquire":
                return await take(store, group, partition, "b")
            if name is azure_names.member_name:
                return await getattr(store, verb)(group, member)
            wanted = [replace(held[partition], checkpoint=at(3))]
            return await getattr(store, verb)(wanted)

        with pytest.raises(StoreUnavailable, match=LOCKED):
            await asyncio.wait_for(act("0"), 60)
        if name is not azure_names.member_name:
            await act("1")  # no trouble of the others
        await lock.break_lease(lease_break_period=0)
        answer = await act("0")
        assert answer is None or answer
        await blobs.close()
        await store.close()

    asyncio.run(main())


def test_a_parent_that_another_program_has_locked_holds_up_neither_its_split_nor_the_group(
    azurite: Azurite,
) -> None:
    async def main() -> None:
        store, other = (store_on(azurite, CONTAINER) for _ in range(2))
        group = any_group()
        await store.create(group, dict.fromkeys("01", EARLIEST))
        held = await take(store, group, "0", "a")
        blobs = client_on(azurite, CONTAINER, Wire())
        parent = blobs.get_blob_client(azure_names.ownership_name("", group, "0"))
        lock = await parent.acquire_lease(lease_duration=60)
        assert await store.split(held, {"2": at(3), "3": at(3)})
        for look in (store, other):
            found = await look.snapshot(group)
            assert [lease.partition for lease in found.leases] == ["1", "2", "3"]
            assert found.replaced == {"0"}
        await lock.break_lease(lease_break_period=0)
        await other.snapshot(group)
        assert not await parent.exists()
        for each in (blobs, store, other):
            await each.close()

    asyncio.run(main())
