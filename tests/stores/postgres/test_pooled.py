"""PostgreSQL behind a pooler that keeps no session together: PgBouncer in transaction mode."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from support.pooler import BACKENDS, pooler
from support.processing import until

from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.stores.postgres import PostgresStore
from leasehold.testing.check_lease_store import CHECKS, Check, any_group


@pytest.fixture(scope="module")
def pooled_url(postgres_url: str) -> Iterator[str]:
    with pooler(postgres_url) as url:
        yield url


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_behind_a_pooler(rule: Check, pooled_url: str) -> None:
    async def open_store() -> PostgresStore:
        return PostgresStore.from_url(f"{pooled_url}?schema=pooled")

    asyncio.run(rule(open_store, any_group()))


def test_what_the_store_wants_of_its_sessions_does_not_stay_with_other_users_of_the_pool(
    pooled_url: str, postgres_url: str
) -> None:
    def shown(url: str) -> set[tuple[str, str]]:
        found = set()
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as database:
            for name in ("statement_timeout", "enable_seqscan", "default_transaction_isolation"):
                for _ in range(2 * BACKENDS):  # every connection of the pool
                    found.add((name, *database.execute(f"SHOW {name}").fetchone()))
        return found

    async def main() -> None:
        store = PostgresStore.from_url(f"{pooled_url}?schema=pooled")
        for _ in range(20):
            await store.snapshot(any_group())
        await store.close()

    asyncio.run(main())
    assert shown(pooled_url) == shown(postgres_url)


def test_a_value_that_cannot_be_sent_leaves_nothing_open_behind_it(
    pooled_url: str, postgres_url: str
) -> None:
    async def main() -> None:
        stores = [PostgresStore.from_url(f"{pooled_url}?schema=pooled") for _ in range(BACKENDS)]
        for store in stores:
            with pytest.raises(BadInput, match="cannot hold this value"):
                await store.create(any_group(), {"a\0b": Checkpoint(next_sequence=0)})
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            stuck = "SELECT query FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
            assert not admin.execute(stuck).fetchall()
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_a_statement_that_fails_leaves_nothing_open_behind_it(pooled_url: str) -> None:
    async def main() -> None:
        store = PostgresStore.from_url(f"{pooled_url}?schema=pooled")
        store._database.queries["wrong"] = b"SELECT 1 / 0"
        for _ in range(2 * BACKENDS):
            with pytest.raises(BadInput, match="division by zero"):
                await store._run("wrong", {})
            await store.snapshot(any_group())
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("pooled", [False, True])
def test_a_statement_is_bounded_where_the_server_runs_it(
    pooled: bool, pooled_url: str, postgres_url: str
) -> None:
    """One that is given up here must not wait for its lock and write there, much later."""

    async def main() -> None:
        url = pooled_url if pooled else postgres_url
        store = PostgresStore.from_url(f"{url}?schema=pooled&timeout_s=3")
        store._database.queries["shown"] = b"SHOW statement_timeout"
        for _ in range(2 * BACKENDS):
            assert list(await store._run("shown", {})) == [("3s",)]
        store._database.queries["slow"] = b"SELECT pg_sleep(600)"
        with pytest.raises(StoreUnavailable):
            await store._run("slow", {})
        await store.close()
        with psycopg.connect(postgres_url, autocommit=True) as database:
            slow = "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%(600)'"
            await until(lambda: not database.execute(slow).fetchall())

    asyncio.run(main())
