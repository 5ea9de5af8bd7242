from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from support import servers

from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.errors import BadInput, LeaseholdError, NewerVersion, StoreUnavailable
from leasehold.ports import Renewed
from leasehold.stores.postgres import PostgresStore
from leasehold.testing.check_lease_faults import (
    CLOCK_CHECKS,
    LOCK_CHECKS,
    ClockCheck,
    LockCheck,
)
from leasehold.testing.check_lease_store import CHECKS, Check, any_group

START = Checkpoint(next_sequence=0)
GROUP = any_group()


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """The database, with a schema of this test's own."""
    schema = f"t_{uuid4().hex[:12]}"
    yield f"{postgres_url}?schema={schema}"
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")  # type: ignore[arg-type]


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as database:
        yield database


def _table(url: str, name: str) -> str:
    return f"{url.rpartition('=')[2]}.leasehold_{name}"


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_postgres(rule: Check, postgres_url: str) -> None:
    async def open_store() -> PostgresStore:
        return PostgresStore.from_url(postgres_url)

    asyncio.run(rule(open_store, any_group()))


@pytest.mark.parametrize("rule", LOCK_CHECKS, ids=lambda rule: rule.__name__)
def test_postgres_with_locked_rows(rule: LockCheck, url: str, admin: psycopg.Connection) -> None:
    async def open_store() -> PostgresStore:
        return PostgresStore.from_url(url)

    @asynccontextmanager
    async def lock(_: Group, partition: str) -> AsyncIterator[None]:
        with admin.transaction():
            row = f"SELECT 1 FROM {_table(url, 'leases')} WHERE partition = %s FOR UPDATE"
            admin.execute(row, [partition])  # type: ignore[arg-type]
            yield

    asyncio.run(rule(open_store, any_group(), lock))


@pytest.mark.parametrize("rule", CLOCK_CHECKS, ids=lambda rule: rule.__name__)
def test_postgres_whose_clock_is_set(rule: ClockCheck, url: str, admin: psycopg.Connection) -> None:
    """All stamps are set back instead, as one server serves all tests."""

    async def open_store() -> PostgresStore:
        return PostgresStore.from_url(url)

    async def step(_: Group, seconds: float) -> None:
        for table, stamp in (("leases", "changed_at"), ("members", "seen_at")):
            back = f"UPDATE {_table(url, table)} SET {stamp} = {stamp} - %s * interval '1 second'"
            admin.execute(back, [seconds])  # type: ignore[arg-type]

    asyncio.run(rule(open_store, any_group(), step))


async def _held(store: PostgresStore, *partitions: str, ttl_s: float = 10.0) -> list[Lease]:
    await store.create(GROUP, dict.fromkeys(partitions, START))
    return list(await store.acquire((await store.snapshot(GROUP)).leases, "a", ttl_s))


async def _renewed(store: PostgresStore, held: list[Lease]) -> list[Lease]:
    """The renewed leases, once the store answers within a timeout too short for a busy machine."""
    while True:
        try:
            return list((await store.renew(held)).kept)
        except StoreUnavailable:
            await asyncio.sleep(0.1)


async def _backend(store: PostgresStore) -> int:
    """The server process behind the store's connection."""
    connection = store._database._session().connection
    assert connection is not None
    return connection.info.backend_pid


def test_many_instances_that_start_at_once_make_one_schema(
    url: str, admin: psycopg.Connection
) -> None:
    async def scene() -> None:
        stores = [PostgresStore.from_url(url, timeout_s=60.0) for _ in range(12)]
        await asyncio.gather(*(store.create(GROUP, {"0": START}) for store in stores))
        looks = await asyncio.gather(*(store.snapshot(GROUP) for store in stores))
        assert [len(look.leases) for look in looks] == [1] * 12
        for store in stores:
            await store.close()

    asyncio.run(scene())
    versions = admin.execute(f"SELECT version FROM {_table(url, 'schema')}").fetchall()  # type: ignore[arg-type]
    assert versions == [(1,)]


def test_a_schema_of_a_newer_version_is_refused_by_both_numbers(
    url: str, admin: psycopg.Connection
) -> None:
    async def use() -> None:
        store = PostgresStore.from_url(url)
        try:
            await store.snapshot(GROUP)
        finally:
            await store.close()

    asyncio.run(use())
    admin.execute(f"UPDATE {_table(url, 'schema')} SET version = 7")  # type: ignore[arg-type]
    with pytest.raises(
        NewerVersion, match=r"PostgreSQL at .*version 7.* version 1\. .*pip install"
    ):
        asyncio.run(use())


def test_of_many_statements_on_the_same_leases_each_counts_once(url: str) -> None:
    async def scene() -> None:
        stores = [PostgresStore.from_url(url, timeout_s=60.0) for _ in range(4)]
        held = await _held(stores[0], *(f"{n:03}" for n in range(60)))

        renewals: Counter[str] = Counter()

        async def shake(store: PostgresStore, chance: random.Random) -> int:
            kept = 0
            for n in range(15):
                mixed = chance.sample(held, len(held))
                answer = await store.renew(mixed)  # goes past what another statement has locked
                renewals.update(lease.partition for lease in answer.kept)
                kept += len(answer.kept) + len(answer.unknown)
                written = [
                    replace(lease, checkpoint=Checkpoint(next_sequence=n)) for lease in mixed
                ]
                kept += len(await store.checkpoint(written))
            return kept

        kept = await asyncio.gather(*(shake(s, random.Random(n)) for n, s in enumerate(stores)))
        assert kept == [2 * 15 * 60] * 4
        versions = {x.partition: x.version for x in (await stores[0].snapshot(GROUP)).leases}
        assert versions == {p: str(2 + times) for p, times in renewals.items()}, (
            "created, taken, and every renewal counted once"
        )
        for store in stores:
            await store.close()

    asyncio.run(scene())


def test_leases_given_in_opposite_orders_never_lock_each_other_out(
    url: str, admin: psycopg.Connection
) -> None:
    # Without these joins the server would visit the leases in the order given, if it were not told.
    plain = "&options=-c%20enable_hashjoin%3Doff%20-c%20enable_mergejoin%3Doff"

    async def waiting(count: int) -> None:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while True:
            if admin.execute(query).fetchall()[0][0] >= count:
                return
            await asyncio.sleep(0.02)

    async def scene() -> None:
        stores = [PostgresStore.from_url(url + plain, timeout_s=600.0) for _ in range(2)]
        first, middle, last = await _held(stores[0], "0", "1", "2")
        await stores[1].snapshot(GROUP)
        with admin.transaction():
            admin.execute(
                f"SELECT 1 FROM {_table(url, 'leases')} WHERE partition = '1' FOR UPDATE"  # type: ignore[arg-type]
            )
            there = asyncio.ensure_future(stores[0].checkpoint([first, middle, last]))
            await waiting(1)
            back = asyncio.ensure_future(stores[1].checkpoint([last, middle, first]))
            await waiting(2)
        assert [len(leases) for leases in await asyncio.gather(there, back)] == [3, 3]
        for store in stores:
            await store.close()

    asyncio.run(scene())


def test_every_takeover_among_many_raises_the_epoch_by_one(url: str) -> None:
    async def scene() -> None:
        stores = [PostgresStore.from_url(url, timeout_s=60.0) for _ in range(6)]
        await stores[0].create(GROUP, {str(n): START for n in range(8)})

        async def rob(store: PostgresStore, name: str, chance: random.Random) -> list[Lease]:
            taken: list[Lease] = []
            for _ in range(20):
                seen = list((await store.snapshot(GROUP)).leases)
                taken += await store.acquire(chance.sample(seen, 5), name, 10.0)
            return taken

        loot = await asyncio.gather(
            *(rob(store, f"i{n}", random.Random(n)) for n, store in enumerate(stores))
        )
        taken = [(lease.partition, lease.epoch) for leases in loot for lease in leases]
        last = {lease.partition: lease.epoch for lease in (await stores[0].snapshot(GROUP)).leases}
        each = [(partition, n + 1) for partition, epoch in last.items() for n in range(epoch)]
        assert sorted(taken) == sorted(each)
        for store in stores:
            await store.close()

    asyncio.run(scene())


def test_a_split_raced_by_a_takeover_is_done_by_the_holder_or_not_at_all(url: str) -> None:
    async def scene() -> None:
        owner, rival = PostgresStore.from_url(url), PostgresStore.from_url(url)
        for n in range(40):
            group = any_group()
            await owner.create(group, {"0": START})
            seen = (await owner.snapshot(group)).leases
            (held,) = await owner.acquire(seen, "a", 10.0)
            children = {"00": START, "01": START}
            pair = [owner.split(held, children), rival.acquire([held], "b", 10.0)]
            answers = await asyncio.gather(*(pair if n % 2 else pair[::-1]))
            done, won = answers if n % 2 else answers[::-1]
            now = [lease.partition for lease in (await rival.snapshot(group)).leases]
            assert now == (["00", "01"] if done else ["0"])
            assert bool(done) != bool(won)
        await owner.close()
        await rival.close()

    asyncio.run(scene())


def test_splitting_twice_at_once_is_answered_yes_twice(url: str) -> None:
    async def scene() -> None:
        stores = [PostgresStore.from_url(url) for _ in range(4)]
        for _ in range(10):
            group = any_group()
            await stores[0].create(group, {"0": START})
            (held,) = await stores[0].acquire((await stores[0].snapshot(group)).leases, "a", 10.0)
            answers = await asyncio.gather(
                *(store.split(held, {"00": START, "01": START}) for store in stores)
            )
            assert answers == [True] * 4
            now = [lease.partition for lease in (await stores[0].snapshot(group)).leases]
            assert now == ["00", "01"]
        for store in stores:
            await store.close()

    asyncio.run(scene())


def test_a_killed_connection_costs_one_call_at_most(url: str, admin: psycopg.Connection) -> None:
    async def scene() -> None:
        store = PostgresStore.from_url(url)
        held = await _held(store, "0")
        failures = []
        for _ in range(3):
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [await _backend(store)])
            for _ in range(2):
                try:
                    assert len((await store.renew(held)).kept) == 1
                except StoreUnavailable as error:
                    failures.append(str(error))
            assert len((await store.renew(held)).kept) == 1
        assert len(failures) == 3
        assert all("PostgreSQL at 127.0.0.1:" in failure for failure in failures)
        await store.close()

    asyncio.run(scene())


@pytest.mark.servers
def test_a_stopped_server_is_unavailable_by_host_and_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        with servers.postgres() as server:
            monkeypatch.setenv("PGPASSWORD", server.password)
            store = PostgresStore.from_url(server.url)
            await store.create(GROUP, {"0": START})
        port = server.url.rpartition(":")[2].partition("/")[0]
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}"):
                await store.snapshot(GROUP)
        await store.close()

    asyncio.run(scene())


def test_a_server_that_never_answers_is_unavailable_in_time() -> None:
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            store = PostgresStore(f"postgresql://a@127.0.0.1:{port}/b", timeout_s=0.2)
            with pytest.raises(StoreUnavailable, match=rf"127.0.0.1:{port}.* within 0.2 s"):
                await store.snapshot(GROUP)
            await store.close()

    asyncio.run(scene())


class Gate:
    """A way to the server on which the traffic can be stopped, as by a dead network."""

    def __init__(self, url: str) -> None:
        self.before, _, rest = url.partition("@")
        self.address, _, self.after = rest.partition("/")
        self.open = asyncio.Event()
        self.open.set()
        self.passing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self.server = await asyncio.start_server(self._enter, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return f"{self.before}@127.0.0.1:{port}/{self.after}"

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await asyncio.gather(*self.passing)

    def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passing.add(asyncio.ensure_future(self._pass_on(reader, writer)))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.address.partition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    await self.open.wait()
                    sink.write(data)
            except ConnectionError:
                pass
            sink.close()

        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))


def test_a_network_that_goes_silent_is_unavailable_in_time_and_passes(url: str) -> None:
    async def scene() -> None:
        gate = Gate(url)
        async with gate as through:
            store, near = (
                PostgresStore.from_url(through, timeout_s=0.5),
                PostgresStore.from_url(url),
            )
            held = await _held(near, "0")
            await _renewed(store, held)
            gate.open.clear()
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"within 0.5 s"):
                    await store.renew(held)
            before = store.requests["renew"]
            crowd = (store.renew(held) for _ in range(20))
            answers = await asyncio.gather(*crowd, return_exceptions=True)
            assert {type(answer) for answer in answers} == {StoreUnavailable}
            assert store.requests["renew"] == before, "nobody waits for the others' turns"
            gate.open.set()
            assert await _renewed(store, held)
            await store.close()
            await near.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_cancelled_call_drops_its_connection_and_the_next_one_works(
    url: str, admin: psycopg.Connection
) -> None:
    async def scene() -> None:
        store = PostgresStore.from_url(url, timeout_s=60.0)
        held = await _held(store, "0")
        before = await _backend(store)
        with admin.transaction():
            admin.execute(f"SELECT 1 FROM {_table(url, 'leases')} FOR UPDATE")  # type: ignore[arg-type]
            writing = asyncio.ensure_future(store.checkpoint(held))
            await asyncio.sleep(0.2)
            assert not writing.done(), "it waits for the row"
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert len((await store.snapshot(GROUP)).leases) == 1
            assert await _backend(store) != before
        assert (await store.renew(held)).kept
        await store.close()

    asyncio.run(scene())


def test_a_forked_child_does_not_end_its_parents_statement(url: str) -> None:
    async def scene() -> None:
        store = PostgresStore.from_url(url)
        store._database.queries["slow"] = b"SELECT pg_sleep(0.3)"
        asked = asyncio.ensure_future(store._run("slow", {}))
        await asyncio.sleep(0.1)
        child = os.fork()
        if not child:
            try:
                for session in store._database._sessions.values():
                    session.leave()
                    session.close()
            finally:
                os._exit(0)
        assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
        assert len(await asked) == 1
        await store.close()

    asyncio.run(scene())


def test_a_locked_row_costs_itself_only(url: str, admin: psycopg.Connection) -> None:
    async def scene() -> None:
        store, rival = PostgresStore.from_url(url), PostgresStore.from_url(url)
        held = await _held(store, *"0123456789abcdef", ttl_s=0.5)
        others = list("012345689abcdef")
        before = await _backend(store)
        with admin.transaction():
            admin.execute(
                f"SELECT 1 FROM {_table(url, 'leases')} WHERE partition = '7' FOR UPDATE"  # type: ignore[arg-type]
            )
            answer = await store.renew(held)
            assert [x.partition for x in answer.kept] == others
            assert list(answer.unknown) == ["7"]
            for lease in held:
                if lease.partition == "7":
                    with pytest.raises(StoreUnavailable, match=r"locked .* left open"):
                        await store.checkpoint([lease])
                else:
                    assert await store.checkpoint([lease])
            seen = (await rival.snapshot(GROUP)).leases
            assert len(seen) == 16
            won = await rival.acquire(seen, "b", 10.0)
            assert [x.partition for x in won] == others
        assert [x.partition for x in await rival.acquire(seen, "b", 10.0)] == ["7"], "once free"
        assert await store.renew(held) == Renewed(), "what a rival took is lost, not unknown"
        assert await _backend(store) == before, "nothing was wrong with the connection"
        await store.close()
        await rival.close()

    asyncio.run(scene())


def test_requests_that_wait_for_locked_rows_keep_no_renewal_waiting(
    url: str, admin: psycopg.Connection
) -> None:
    async def scene() -> None:
        store = PostgresStore.from_url(url)
        held = await _held(store, *"0123456789abcdef")
        with admin.transaction():
            admin.execute(f"SELECT 1 FROM {_table(url, 'leases')} FOR UPDATE")  # type: ignore[arg-type]
            waiting = [asyncio.ensure_future(store.checkpoint([lease])) for lease in held]
            await asyncio.sleep(0)
            assert set((await store.renew(held)).unknown) == set("0123456789abcdef")
            over = sum(each.done() for each in waiting)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert over <= 4, "two before each of its statements"
        assert [isinstance(each, StoreUnavailable) for each in answers].count(True) <= over + 1
        await store.close()

    asyncio.run(scene())


def _refusal(url: str, **settings: object) -> str:
    async def use() -> None:
        store = PostgresStore.from_url(url, **settings)
        try:
            await store.snapshot(GROUP)
        finally:
            await store.close()

    with pytest.raises(LeaseholdError) as refused:
        asyncio.run(use())
    assert type(refused.value) is BadInput, refused.value
    return str(refused.value)


def test_a_wrong_password_is_refused_and_never_shown(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "open-sesame")
    refusal = _refusal(url)
    assert 'password authentication failed for user "leasehold"' in refusal
    assert "PGPASSWORD" in refusal
    assert "open-sesame" not in refusal


def test_a_missing_password_is_asked_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPASSWORD")
    assert "PGPASSWORD" in _refusal(url)


def test_an_unknown_database_is_refused_by_its_name(url: str) -> None:
    assert 'database "nowhere" does not exist' in _refusal(url.replace("/postgres", "/nowhere"))


def test_an_unknown_user_is_refused_by_name(url: str) -> None:
    refusal = _refusal(url.replace("leasehold@", "nobody-here@"))
    assert "nobody-here" in refusal


@pytest.mark.parametrize("setting", ["sslmode=maybe", "port=abc", "shoe_size=44", "port=99999999"])
def test_a_wrong_setting_in_the_url_is_refused_by_name(url: str, setting: str) -> None:
    assert setting.partition("=")[0] in _refusal(f"{url}&{setting}")


def test_a_user_who_may_not_make_the_schema_is_told_what_to_grant(
    url: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"guest_{uuid4().hex[:8]}"
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'guest'")  # type: ignore[arg-type]
    monkeypatch.setenv("PGPASSWORD", "guest")
    guest = url.replace("leasehold@", f"{name}@")
    schema = url.rpartition("=")[2]
    try:
        assert "Grant this user CREATE" in _refusal(guest)
        admin.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {name}")  # type: ignore[arg-type]
        store = PostgresStore.from_url(guest)
        asyncio.run(store.create(GROUP, {"0": START}))
        asyncio.run(store.close())
    finally:
        admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "secret",
    [
        "postgresql://me:open-sesame@host/db",
        "postgresql://me:open/sesame@host/db",
        "postgresql://me:open@sesame@host/db",
        "postgresql://:open-sesame@host/db",
        "postgres://me@host/db?sslmode=require&password=open-sesame",
        "postgres://me@host/db?PassWord=open-sesame",
        "postgres://me@host/db?sslpassword=open-sesame",
    ],
)
def test_a_password_in_the_url_is_refused_and_never_shown(secret: str) -> None:
    with pytest.raises(BadInput, match="PGPASSWORD") as refused:
        PostgresStore.from_url(secret)
    for part in ("open", "sesame"):
        assert part not in str(refused.value)


@pytest.mark.parametrize(
    "schema", ["", "a b", 'a"b', "Leases", "1st", "pg_leases", "x" * 64, "a;b"]
)
def test_a_schema_name_that_needs_quoting_is_refused(schema: str) -> None:
    with pytest.raises(BadInput, match="schema"):
        PostgresStore("postgresql://host/db", schema=schema)


def test_a_url_names_schema_timeout_and_what_libpq_knows() -> None:
    store = PostgresStore.from_url(
        "postgresql://me@h1:1,h2:2/db?schema=user&timeout_s=9&options=-c%20lock_timeout%3D1s"
    )
    assert store._database.schema == "user"
    assert store._database.timeout_s == 9.0
    assert store._database.conninfo == "postgresql://me@h1:1,h2:2/db?options=-c%20lock_timeout%3D1s"


def test_schemas_do_not_see_each_other(url: str, admin: psycopg.Connection) -> None:
    other = f"{url}b"

    async def scene() -> None:
        here, there = PostgresStore.from_url(url), PostgresStore.from_url(other)
        await here.create(GROUP, {"0": START})
        assert (await there.snapshot(GROUP)).leases == ()
        await here.close()
        await there.close()

    try:
        asyncio.run(scene())
    finally:
        admin.execute(f"DROP SCHEMA {other.rpartition('=')[2]} CASCADE")  # type: ignore[arg-type]


def test_a_stamp_ahead_of_the_server_clock_does_not_count_as_dead(
    url: str, admin: psycopg.Connection
) -> None:
    async def scene() -> None:
        store = PostgresStore.from_url(url)
        await _held(store, "0")
        await store.join(GROUP, Member(instance="a", incarnation="1"))
        admin.execute(
            f"UPDATE {_table(url, 'leases')} SET changed_at = now() + interval '30 seconds'"  # type: ignore[arg-type]
        )
        admin.execute(f"UPDATE {_table(url, 'members')} SET seen_at = now() + interval '1 day'")  # type: ignore[arg-type]
        snapshot = await store.snapshot(GROUP)
        assert snapshot.leases[0].live
        assert -30 <= snapshot.leases[0].age_s < -20
        assert not snapshot.members[0].expired
        await store.close()

    asyncio.run(scene())


def test_only_members_dead_for_an_hour_are_forgotten_and_only_when_one_joins(
    url: str, admin: psycopg.Connection
) -> None:
    async def scene() -> None:
        store = PostgresStore.from_url(url)
        await store.join(GROUP, Member(instance="short", incarnation="1", ttl_s=10.0))
        await store.join(GROUP, Member(instance="long", incarnation="1", ttl_s=600.0))
        admin.execute(
            f"UPDATE {_table(url, 'members')} SET seen_at = now() - interval '3630 seconds'"  # type: ignore[arg-type]
        )
        await store.heartbeat(GROUP, Member(instance="new", incarnation="1"))
        names = [member.instance for member in (await store.snapshot(GROUP)).members]
        assert names == ["long", "new", "short"]
        await store.join(GROUP, Member(instance="new", incarnation="2"))
        names = [member.instance for member in (await store.snapshot(GROUP)).members]
        assert names == ["long", "new"]
        await store.close()

    asyncio.run(scene())


def test_a_dropped_schema_is_made_anew(url: str, admin: psycopg.Connection) -> None:
    async def scene() -> None:
        store = PostgresStore.from_url(url)
        held = await _held(store, "0")
        admin.execute(f"DROP SCHEMA {url.rpartition('=')[2]} CASCADE")  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            await store.renew(held)
        assert not (await store.renew(held)).kept
        await store.close()

    asyncio.run(scene())


def test_only_the_running_loop_has_a_connection_and_a_closed_store_has_none(
    url: str, admin: psycopg.Connection
) -> None:
    name = f"leasehold-{uuid4().hex[:8]}"

    def settles_at(wanted: int) -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        deadline = time.monotonic() + 30
        while admin.execute(query, [name]).fetchall() != [(wanted,)]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    store = PostgresStore.from_url(f"{url}&application_name={name}")
    for _ in range(3):
        asyncio.run(store.create(GROUP, {"0": START}))
    assert settles_at(1)
    asyncio.run(store.close())
    assert settles_at(0)
