from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.azure_wire import Wire, client_on
from support.servers import Azurite

from leasehold.core.model import Checkpoint, Group
from leasehold.errors import BadInput, NewerVersion, StoreUnavailable
from leasehold.local import blob_container
from leasehold.ports import DeadLetter, DeadLetters, LetterFilter
from leasehold.stores import open_dead_letters, open_store
from leasehold.stores.dead_letters import azure_blob, bundle
from leasehold.stores.dead_letters.azure_blob import AzureBlobDeadLetters
from leasehold.testing.check_dead_letters import CHECKS, Check, any_group, any_letter

CONTAINER = "letters"
OLD_API = "2017-11-09"


@pytest.fixture
def url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    return f"azure-blob://{azurite.account}/{CONTAINER}"


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_azure_blob(rule: Check, url: str) -> None:
    async def opened() -> DeadLetters:
        return open_dead_letters(f"{url}?prefix=conformance/{rule.__name__}")

    asyncio.run(rule(opened, any_group()))


@pytest.mark.parametrize("rule", CHECKS[:3], ids=lambda rule: rule.__name__)
def test_an_old_storage_api_will_do(rule: Check, url: str) -> None:
    async def opened() -> DeadLetters:
        return open_dead_letters(f"{url}?prefix=old/{rule.__name__}&api_version={OLD_API}")

    asyncio.run(rule(opened, any_group()))


def letters_on(azurite: Azurite, group: Group, wire: Wire | None = None) -> AzureBlobDeadLetters:
    """A store of the group's own."""
    return AzureBlobDeadLetters(
        lambda: client_on(azurite, CONTAINER, wire or Wire()), prefix=group.name
    )


def of(group: Group, **more: Any) -> LetterFilter:
    return LetterFilter(group=group.name, **more)


async def sequences(store: DeadLetters, group: Group) -> list[int]:
    return [letter.sequence for letter in await store.list(of(group))]


async def prepared(store: DeadLetters, group: Group) -> list[DeadLetter]:
    await store.put([any_letter(group, n) for n in range(3)])
    letters = list(await store.list(of(group)))
    await store.mark_redriven([letters[0].id])
    return letters


VERBS: dict[str, Callable[[DeadLetters, Group, list[DeadLetter]], Awaitable[Any]]] = {
    "put": lambda store, group, letters: store.put(
        [any_letter(group, n, error="again") for n in (1, 3, 4)]
    ),
    "mark": lambda store, group, letters: store.mark_redriven([letters[1].id]),
    "purge some": lambda store, group, letters: store.purge(of(group, redriven=True)),
    "purge all": lambda store, group, letters: store.purge(of(group)),
}
AFTER = {"put": [0, 1, 2, 3, 4], "mark": [0, 1, 2], "purge some": [1, 2], "purge all": []}


@pytest.mark.parametrize("verb", VERBS)
def test_whatever_request_or_answer_is_lost_the_verb_repeated_does_it(
    azurite: Azurite, verb: str
) -> None:
    async def fails_at(nth: int, fate: str) -> bool:
        group = any_group()
        good = letters_on(azurite, group)
        letters = await prepared(good, group)
        wire = Wire(lambda n: fate if n == nth else None)
        store = letters_on(azurite, group, wire)
        try:
            await VERBS[verb](store, group, letters)
        except StoreUnavailable:
            assert wire.sent > nth
            await VERBS[verb](store, group, letters)
        found = await good.list(of(group))
        assert [letter.sequence for letter in found] == AFTER[verb]
        assert len({letter.number for letter in found}) == len(found)
        again = [letter.sequence for letter in found if letter.error == "again"]
        assert again == ([1, 3, 4] if verb == "put" else [])
        for each in (store, good):
            await each.close()
        return wire.sent > nth

    async def main() -> None:
        for fate in ("before", "after"):
            nth = 0
            while await fails_at(nth, fate):
                nth += 1
            assert nth >= 2

    asyncio.run(main())


def test_of_two_who_put_at_once_both_are_kept_and_one_letter_stays_one(azurite: Azurite) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        slow, quick = letters_on(azurite, group, wire), letters_on(azurite, group)
        await quick.put([any_letter(group, 0)])

        async def others(nth: int) -> None:
            if nth == 1:  # the slow one has looked, and is about to take the next number
                await quick.put([any_letter(group, 1), any_letter(group, 2)])

        wire.meanwhile = others
        await slow.put([any_letter(group, 2, attempts=9), any_letter(group, 3)])
        found = await quick.list(of(group))
        assert [letter.sequence for letter in found] == [0, 1, 2, 3]
        assert [letter.number for letter in found] == [1, 2, 3, 4]
        assert found[2].attempts == 9
        await slow.close()
        await quick.close()

    asyncio.run(main())


def test_a_letter_that_fails_again_during_a_purge_stays(azurite: Azurite) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        purger, putter = letters_on(azurite, group, wire), letters_on(azurite, group)
        letters = await prepared(putter, group)

        async def others(nth: int) -> None:
            if nth == 1:
                await putter.put([letters[0]])

        wire.meanwhile = others
        assert await purger.purge(of(group, redriven=True)) == 0
        assert await sequences(putter, group) == [0, 1, 2]
        await purger.close()
        await putter.close()

    asyncio.run(main())


def test_a_number_is_not_used_again_by_one_who_looked_before_a_purge(azurite: Azurite) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        slow, quick = letters_on(azurite, group, wire), letters_on(azurite, group)

        async def others(nth: int) -> None:
            if nth == 1:
                for n in range(2):
                    await quick.put([any_letter(group, n)])
                await quick.purge(of(group))

        wire.meanwhile = others
        await slow.put([any_letter(group, 2)])
        (letter,) = await quick.list(of(group))
        assert letter.number == 3
        await slow.close()
        await quick.close()

    asyncio.run(main())


def test_empty_bundles_go_after_a_while_and_the_newest_stays(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        store = letters_on(azurite, group, wire)
        for n in range(3):
            await store.put([any_letter(group, n, body=b"secret" * 100)])
        await store.purge(of(group))
        names, _ = await store._blobs.list_under("test", group.name)
        assert len(names) == 3
        for blob in names:
            found = await store._blobs.read("test", blob.name)
            assert found is not None
            assert found[1] == b""
        monkeypatch.setattr(azure_blob, "FORGET_AFTER_S", -1.0)
        await store.purge(of(group))
        (newest,), _ = await store._blobs.list_under("test", group.name)
        assert newest.name.endswith("3")
        await store.put([any_letter(group, 9)])
        assert (await store.list(of(group)))[0].number == 4
        await store.close()

    asyncio.run(main())


def test_a_purged_letters_body_is_gone_though_its_neighbours_stay(azurite: Azurite) -> None:
    async def main() -> None:
        group = any_group()
        store = letters_on(azurite, group)
        letters = [any_letter(group, n, token=f"token-{n}") for n in range(3)]
        await store.put(letters)
        await store.purge(of(group, ids=[letters[1].id]))
        (blob,), _ = await store._blobs.list_under("test", group.name)
        read = await store._blobs.read("test", blob.name)
        assert read is not None
        assert b"token-0" in read[1]
        assert b"token-1" not in read[1]
        await store.close()

    asyncio.run(main())


def test_many_bundles_are_listed_page_by_page_and_only_a_page_of_them_is_read(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_container, "PAGE_BLOBS", 5)

    async def main() -> None:
        group, wire = any_group(), Wire()
        store = letters_on(azurite, group, wire)
        for n in range(12):
            await store.put([any_letter(group, n)])
        before = len(wire.exchanges)
        found = await store.list(of(group), limit=2, after=4)
        assert [letter.sequence for letter in found] == [4, 5]
        sent = wire.exchanges[before:]
        assert len([each for each in sent if "comp=list" in each.query]) == 3
        assert len(sent) == 5
        await store.close()

    asyncio.run(main())


def test_a_put_larger_than_a_bundle_keeps_its_order(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "BYTES_MAX", 1000)

    async def main() -> None:
        group = any_group()
        store = letters_on(azurite, group)
        sizes = [10, 400, 700, 1500, 10, 990]
        await store.put([any_letter(group, n, body=b"x" * size) for n, size in enumerate(sizes)])
        blobs, _ = await store._blobs.list_under("test", group.name)
        assert len(blobs) == 5
        found = await store.list(of(group))
        assert [letter.sequence for letter in found] == list(range(6))
        assert [letter.number for letter in found] == list(range(1, 7))
        await store.close()

    asyncio.run(main())


def test_letters_and_leases_can_share_a_container(url: str) -> None:
    async def main() -> None:
        group = any_group()
        shared = f"{url}?prefix={group.name}"
        letters, leases = open_dead_letters(shared), open_store(shared)
        await letters.put([any_letter(group)])
        await leases.create(group, {"0": Checkpoint(next_sequence=0)})
        assert await letters.count(LetterFilter()) == {group: 1}
        assert list(await leases.groups()) == [group]
        await letters.close()
        await leases.close()

    asyncio.run(main())


def test_a_clock_that_is_wrong_does_not_date_letters(azurite: Azurite) -> None:
    class Wrong:
        def monotonic(self) -> float:
            return 0.0

        def wall(self) -> float:
            return 1e9

        async def sleep(self, seconds: float) -> None: ...

    async def main() -> None:
        group = any_group()
        store = AzureBlobDeadLetters(
            lambda: client_on(azurite, CONTAINER, Wire()), prefix=group.name, clock=Wrong()
        )
        await store.put([any_letter(group)])
        (letter,) = await store.list(of(group))
        assert letter.dead_at is not None
        assert letter.dead_at.year > 2020
        await store.close()

    asyncio.run(main())


def test_what_is_no_bundle_is_named(azurite: Azurite) -> None:
    async def main() -> None:
        group = any_group()
        store = letters_on(azurite, group)
        name = bundle.bundle_name(f"{group.name}/", 1)
        for metadata, error in (({}, BadInput), ({"leasehold": "2"}, NewerVersion)):
            await store._blobs.make("test", name, metadata, over=True)
            with pytest.raises(error, match="leasehold-dead-letters/0000000000000001"):
                await store.count(of(group))
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "broken",
    [
        {"sequence": 2**64},
        {"partition_key": "\udc80"},
        {"body": "text"},
        {"attempts": None},
        {"partition": "p" * 9000},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_a_value_that_cannot_be_kept_is_refused(azurite: Azurite, broken: dict[str, Any]) -> None:
    async def main() -> None:
        group = any_group()
        store = letters_on(azurite, group)
        with pytest.raises(BadInput):
            await store.put([replace(any_letter(group, 1), **broken), any_letter(group, 0)])
        assert await store.count(of(group)) == {}
        await store.close()

    asyncio.run(main())


def test_a_missing_secret_is_noticed_when_the_store_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CONNECTION_STRING", "KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    with pytest.raises(BadInput, match="AZURE_STORAGE_KEY"):
        open_dead_letters("azure-blob://account/letters")
