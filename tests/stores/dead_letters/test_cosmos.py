"""Dead letters in a Cosmos DB container, on the endpoint."""

import asyncio
import os
import pickle
from dataclasses import replace

import pytest
from support.cosmos import Served

from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput
from leasehold.ports import DeadLetters, LetterFilter
from leasehold.stores import open_dead_letters, open_store
from leasehold.testing.check_dead_letters import CHECKS, Check, any_group, any_letter


@pytest.fixture(scope="session")
def url(cosmos: Served) -> str:
    return cosmos.url_of("letters")


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_cosmos(rule: Check, url: str) -> None:
    async def opened() -> DeadLetters:
        return open_dead_letters(url)

    asyncio.run(rule(opened, any_group()))


def test_letters_and_leases_can_share_a_container(url: str) -> None:
    group = any_group()

    async def scene() -> None:
        letters, leases = open_dead_letters(url), open_store(url)
        await asyncio.gather(
            letters.put([any_letter(group)]),
            leases.create(group, {"0": Checkpoint(next_sequence=0)}),
        )
        assert await letters.count(LetterFilter(group=group.name)) == {group: 1}
        assert len((await leases.snapshot(group)).leases) == 1
        assert group in await leases.groups()
        assert not [each for each in await leases.groups() if "letter" in each.namespace]
        await letters.close()
        await leases.close()

    asyncio.run(scene())


def test_large_bodies_are_kept_in_as_many_transactions_as_they_need(url: str) -> None:
    group = any_group()
    text = b'{"motion": true}' * 250_000
    noise = os.urandom(1_000_000)

    async def scene() -> None:
        store = open_dead_letters(url)
        bodies = [text, noise, noise, noise]
        await store.put([any_letter(group, n, body=body) for n, body in enumerate(bodies)])
        found = await store.list(LetterFilter(group=group.name))
        assert [letter.body for letter in found] == bodies
        with pytest.raises(BadInput, match="too large for a document"):
            await store.put([any_letter(group, 9, body=noise * 2)])
        await store.close()

    asyncio.run(scene())


def test_a_letter_that_was_put_again_is_not_purged_with_those_that_were_redriven(url: str) -> None:
    """Between the look at what is to be purged and the purge, one of them fails once more."""
    group = any_group()
    letters = [any_letter(group, n) for n in range(2)]

    async def scene() -> None:
        store, other = open_dead_letters(url), open_dead_letters(url)
        await store.put(letters)
        await store.mark_redriven([each.id for each in letters])
        together, calls = store._documents.together, []

        def late(*arguments):
            if not calls:
                asyncio.run(other.put(letters[:1]))
            calls.append(arguments)
            return together(*arguments)

        store._documents.together = late
        assert await store.purge(LetterFilter(group=group.name, redriven=True)) == 1
        (left,) = await store.list(LetterFilter(group=group.name))
        assert left.id == letters[0].id
        await store.close()
        await other.close()

    asyncio.run(scene())


def test_another_process_connects_for_itself(url: str, cosmos: Served) -> None:
    store = open_dead_letters(url)
    data = pickle.dumps(store)
    assert cosmos.key.encode() not in data
    group = any_group()

    async def scene() -> None:
        copy = pickle.loads(data)
        await copy.put([replace(any_letter(group), attempts=3)])
        assert await store.count(LetterFilter(group=group.name)) == {group: 1}
        await copy.close()
        await store.close()

    asyncio.run(scene())
