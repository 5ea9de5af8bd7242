from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from support.pooler import pooler

from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, NewerVersion, StoreUnavailable
from leasehold.ports import DeadLetters, LetterFilter
from leasehold.stores import open_dead_letters, open_store
from leasehold.stores.dead_letters.postgres import PostgresDeadLetters
from leasehold.testing.check_dead_letters import CHECKS, Check, any_group, any_letter

SCHEMA = "letters"


@pytest.fixture(scope="module")
def pooled_url(postgres_url: str) -> Iterator[str]:
    with pooler(postgres_url) as url:
        yield url


@pytest.fixture
def url(postgres_url: str) -> str:
    return f"{postgres_url}?schema={SCHEMA}"


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_postgres(rule: Check, url: str) -> None:
    async def opened() -> DeadLetters:
        return open_dead_letters(url)

    asyncio.run(rule(opened, any_group()))


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_behind_a_pooler(rule: Check, pooled_url: str) -> None:
    async def opened() -> DeadLetters:
        return open_dead_letters(f"{pooled_url}?schema={SCHEMA}")

    asyncio.run(rule(opened, any_group()))


def test_letters_and_leases_can_share_a_schema(postgres_url: str) -> None:
    group, url = any_group(), f"{postgres_url}?schema=shared_by_both"

    async def scene() -> None:
        letters, leases = open_dead_letters(url), open_store(url)
        await asyncio.gather(  # both make the schema
            letters.put([any_letter(group)]),
            leases.create(group, {"0": Checkpoint(next_sequence=0)}),
        )
        assert await letters.count(LetterFilter()) == {group: 1}
        assert len((await leases.snapshot(group)).leases) == 1
        await letters.close()
        await leases.close()

    asyncio.run(scene())


def test_tables_of_a_newer_version_are_refused_by_both_numbers(postgres_url: str) -> None:
    async def use() -> None:
        store = open_dead_letters(f"{postgres_url}?schema=newer")
        try:
            await store.count(LetterFilter())
        finally:
            await store.close()

    asyncio.run(use())
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("UPDATE newer.leasehold_dead_letters_schema SET version = 7")
    with pytest.raises(
        NewerVersion, match=r"schema newer, .*version 7.* version 1\. .*pip install"
    ):
        asyncio.run(use())


def test_no_letter_appears_behind_one_that_was_listed(url: str, postgres_url: str) -> None:
    """Or a reader would page past it, and a purge up to a number would remove what nobody saw."""
    group = any_group()

    async def scene() -> None:
        store = open_dead_letters(f"{url}&timeout_s=1")
        await store.put([any_letter(group, 0)])
        with psycopg.connect(postgres_url) as slow:  # somebody else's put, not committed yet
            slow.execute(
                f"UPDATE {SCHEMA}.leasehold_dead_letters_schema SET last_number = last_number + 1"
            )
            with pytest.raises(StoreUnavailable, match="locked that put needs"):
                await store.put([any_letter(group, 1)])
            assert len(await store.list(LetterFilter(group=group.name))) == 1
            slow.commit()
        await store.put([any_letter(group, 1)])
        assert len(await store.list(LetterFilter(group=group.name))) == 2
        await store.close()

    asyncio.run(scene())


def test_a_letter_that_fails_again_while_a_purge_waits_for_it_stays(
    url: str, postgres_url: str
) -> None:
    group = any_group()

    async def scene() -> None:
        store = open_dead_letters(url)
        await store.put([any_letter(group, 0), any_letter(group, 1)])
        letters = await store.list(LetterFilter(group=group.name))
        await store.mark_redriven([letter.id for letter in letters])
        with psycopg.connect(postgres_url) as other:  # a put that is about to commit
            other.execute(f"SELECT FROM {SCHEMA}.leasehold_dead_letters_schema FOR UPDATE")
            other.execute(
                f"UPDATE {SCHEMA}.leasehold_dead_letters SET redriven_us = NULL WHERE id = %s",
                [letters[0].id],
            )
            purge = asyncio.ensure_future(
                store.purge(LetterFilter(group=group.name, redriven=True))
            )
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            with psycopg.connect(postgres_url, autocommit=True) as watcher:
                while not watcher.execute(waiting).fetchall():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            other.commit()
        assert await purge == 1
        (left,) = await store.list(LetterFilter(group=group.name))
        assert left.id == letters[0].id
        await store.close()

    asyncio.run(scene())


def test_a_lost_connection_costs_one_call_and_no_letter(url: str, postgres_url: str) -> None:
    group = any_group()

    async def scene() -> None:
        store = open_dead_letters(url)
        await store.put([any_letter(group, 0)])
        with psycopg.connect(postgres_url, autocommit=True) as database:
            database.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE application_name = 'leasehold'"
            )
        with pytest.raises(StoreUnavailable):
            await store.put([any_letter(group, 0), any_letter(group, 1)])
        await store.put([any_letter(group, 0), any_letter(group, 1)])
        found = await store.list(LetterFilter(group=group.name))
        assert [letter.sequence for letter in found] == [0, 1]
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "broken",
    [
        {"sequence": 2**64},
        {"partition_key": "\udc80"},
        {"body": "text"},
        {"attempts": None},
        {"attempts": 2**40},
        {"properties": {"a": b"bytes"}},
        {"properties": {"a": float("nan")}},
        {"properties": {"a": "\udc80"}},
        {"token": "a\0b"},
    ],
    ids=str,
)
def test_a_value_that_cannot_be_kept_is_refused_with_all_of_its_put(
    url: str, broken: dict[str, object]
) -> None:
    group = any_group()

    async def scene() -> None:
        store = open_dead_letters(url)
        with pytest.raises(BadInput):
            await store.put([any_letter(group, 0), replace(any_letter(group, 1), **broken)])
        assert await store.count(LetterFilter(group=group.name)) == {}
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:open-sesame@host/db", "postgresql://host/db?password=open-sesame"],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    for make in (open_dead_letters, PostgresDeadLetters):
        with pytest.raises(BadInput, match="PGPASSWORD") as refused:
            make(url)
        assert "sesame" not in str(refused.value)
