from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.errors import BadInput, NewerVersion, StoreUnavailable
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing.check_lease_faults import CLOCK_CHECKS, ClockCheck
from leasehold.testing.check_lease_store import CHECKS, Check, any_group

START = Checkpoint(next_sequence=0)
GROUP = Group(namespace="homes.local", feed="sensors", name="activity")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_sqlite(rule: Check, path: Path) -> None:
    async def open_store() -> SqliteStore:
        return SqliteStore(path)

    asyncio.run(rule(open_store, any_group()))


class HandClock:
    """A clock moved by hand."""

    def __init__(self, monotonic: float, wall: float = 1_700_000_000.0) -> None:
        self.now, self.wall_now = monotonic, wall

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.wall_now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("rule", CLOCK_CHECKS, ids=lambda rule: rule.__name__)
def test_sqlite_whose_clock_is_set(rule: ClockCheck, path: Path) -> None:
    clock = HandClock(monotonic=90_000.0)

    async def open_store() -> SqliteStore:
        return SqliteStore(path, clock=clock)

    async def step(_: Group, seconds: float) -> None:
        clock.now += seconds

    asyncio.run(rule(open_store, any_group(), step))


async def _held(store: SqliteStore, owner: str = "a", ttl_s: float = 10.0) -> list[Lease]:
    await store.create(GROUP, {"0": START})
    return list(await store.acquire((await store.snapshot(GROUP)).leases, owner, ttl_s))


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_setting_the_time_by_a_day_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    async def scene() -> None:
        store = SqliteStore(path)
        await _held(store)
        await store.join(GROUP, Member(instance="a", incarnation="1"))
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        snapshot = await store.snapshot(GROUP)
        assert abs(snapshot.taken_at - real() - jump_s) < 60
        assert snapshot.leases[0].live
        assert not snapshot.members[0].expired
        assert snapshot.leases[0].age_s < 10
        await store.close()

    asyncio.run(scene())


def test_what_was_alive_before_the_machine_was_started_has_expired(path: Path) -> None:
    async def scene() -> None:
        before = SqliteStore(path, clock=HandClock(monotonic=90_000.0))
        await _held(before, ttl_s=1e6)
        await before.join(GROUP, Member(instance="a", incarnation="1", ttl_s=1e6))
        await before.close()
        after = SqliteStore(path, clock=HandClock(monotonic=60.0))
        snapshot = await after.snapshot(GROUP)
        assert snapshot.leases[0].expired
        assert snapshot.members[0].expired
        assert snapshot.leases[0].age_s < float("inf")
        (taken,) = await after.acquire(snapshot.leases, "b", 10.0)
        assert (await after.snapshot(GROUP)).leases[0].live
        assert taken.age_s == 0.0
        await after.close()

    asyncio.run(scene())


def test_age_is_counted_from_the_last_renewal(path: Path) -> None:
    async def scene() -> None:
        clock = HandClock(monotonic=1000.0)
        store = SqliteStore(path, clock=clock)
        held = await _held(store, ttl_s=10.0)
        clock.now += 9.0
        await store.renew(held)
        clock.now += 4.0
        (kept,) = await store.checkpoint([replace(held[0], checkpoint=Checkpoint(next_sequence=1))])
        assert kept.age_s == 4.0, "a checkpoint does not renew"
        clock.now += 7.0
        (lease,) = (await store.snapshot(GROUP)).leases
        assert lease.age_s == 11.0
        assert lease.expired
        await store.close()

    asyncio.run(scene())


def test_only_members_dead_for_an_hour_are_forgotten_and_only_when_one_joins(path: Path) -> None:
    async def names(store: SqliteStore) -> list[str]:
        return [member.instance for member in (await store.snapshot(GROUP)).members]

    async def scene() -> None:
        clock = HandClock(monotonic=1000.0)
        store = SqliteStore(path, clock=clock)
        await store.join(GROUP, Member(instance="short", incarnation="1", ttl_s=10.0))
        await store.join(GROUP, Member(instance="long", incarnation="1", ttl_s=60.0))
        clock.now += 3600.0 + 30.0
        await store.heartbeat(GROUP, Member(instance="new", incarnation="1"))
        assert await names(store) == ["long", "new", "short"]
        await store.join(GROUP, Member(instance="new", incarnation="2"))
        assert await names(store) == ["long", "new"]
        clock.now = 5.0  # the machine was started again
        await store.join(GROUP, Member(instance="new", incarnation="3"))
        assert await names(store) == ["new"]
        await store.close()

    asyncio.run(scene())


CLAIM = """
import asyncio, json, sys
from leasehold.core.model import Checkpoint, Group
from leasehold.stores.sqlite import SqliteStore

async def claim():
    store = SqliteStore(sys.argv[1], timeout_s=60.0)
    group = Group(namespace="homes.local", feed="sensors", name="activity")
    await store.create(group, {str(n): Checkpoint(next_sequence=0) for n in range(32)})
    seen = (await store.snapshot(group)).leases
    won = await store.acquire([lease for lease in seen if lease.owner is None], sys.argv[2], 10.0)
    held = (await store.renew(won)).kept
    await store.close()
    print(json.dumps([len(seen), [lease.partition for lease in held]]))

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(claim())
"""


def test_of_eight_processes_that_start_at_once_on_a_new_file_one_wins_each_lease(
    path: Path,
) -> None:
    starting = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(path), f"i{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(8)
    ]
    try:
        for process in starting:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        for process in starting:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ended = [process.communicate(timeout=120) for process in starting]
    finally:
        for process in starting:
            process.kill()
            process.wait()
    assert [
        (process.returncode, err) for process, (_, err) in zip(starting, ended, strict=True)
    ] == [(0, "")] * 8
    answers = [json.loads(out) for out, _ in ended]
    assert [seen for seen, _ in answers] == [32] * 8
    winners = Counter(partition for _, won in answers for partition in won)
    assert winners == {str(n): 1 for n in range(32)}
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT version FROM leasehold_schema").fetchall() == [(1,)]


def test_a_file_of_a_newer_version_is_refused_by_both_numbers(path: Path) -> None:
    async def use() -> None:
        store = SqliteStore(path)
        try:
            await store.snapshot(GROUP)
        finally:
            await store.close()

    asyncio.run(use())
    with sqlite3.connect(path) as file:
        file.execute("UPDATE leasehold_schema SET version = 7")
    with pytest.raises(NewerVersion, match=r"leases\.db .*version 7.* version 1\. .*pip install"):
        asyncio.run(use())


def _use(path: Path, timeout_s: float = 5.0) -> None:
    async def use() -> None:
        store = SqliteStore(path, timeout_s=timeout_s)
        try:
            await store.create(GROUP, {"0": START})
        finally:
            await store.close()

    asyncio.run(use())


def _foreign(path: Path) -> None:
    path.write_bytes(b"These are not the leases you are looking for. " * 100)


def _folder(path: Path) -> None:
    path.mkdir()


def _damaged(path: Path) -> None:
    _use(path)
    content = bytearray(path.read_bytes())
    content[200:] = b"\xff" * (len(content) - 200)
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [_foreign, _folder, _damaged])
def test_what_is_no_lease_file_is_refused_by_its_path(
    path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(path)
    with pytest.raises(BadInput, match=r"leases\.db"):
        _use(path)


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    _use(tmp_path / "data" / "of" / "mine" / "leases.db")
    assert (tmp_path / "data" / "of" / "mine" / "leases.db").exists()


def test_a_folder_that_cannot_be_made_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(BadInput, match=r"data/leases\.db"):
        _use(tmp_path / "data" / "leases.db")


def test_a_relative_path_stays_where_it_was_when_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("leases.db")
    monkeypatch.chdir("/")
    asyncio.run(store.create(GROUP, {"0": START}))
    asyncio.run(store.close())
    assert (tmp_path / "leases.db").exists()


def test_a_lock_that_outlasts_the_timeout_is_unavailable_and_passes(path: Path) -> None:
    async def scene() -> None:
        store = SqliteStore(path, timeout_s=1.0)
        held = await _held(store)
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match=r"leases\.db was locked .*timeout_s"):
                await store.renew(held)
            assert (await store.snapshot(GROUP)).leases[0].live, "reading goes on"
            other.execute("ROLLBACK")
        other.close()
        assert (await store.renew(held)).kept
        await store.close()

    asyncio.run(scene())


def test_many_requests_to_a_locked_file_do_not_wait_one_after_another(path: Path) -> None:
    async def scene() -> None:
        store = SqliteStore(path, timeout_s=1.0)
        held = await _held(store)
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            before = store.requests["renew"]
            answers = await asyncio.gather(
                *(store.renew(held) for _ in range(20)), return_exceptions=True
            )
            assert {type(answer) for answer in answers} == {StoreUnavailable}
            assert store.requests["renew"] - before < 20, "the last were given up unsent"
        other.close()
        await store.close()

    asyncio.run(scene())


def test_a_lock_while_the_file_is_set_up_is_unavailable(path: Path) -> None:
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked"):
            _use(path, timeout_s=0.1)
    other.close()
    _use(path)


def test_a_writer_of_a_new_file_does_not_keep_the_store_from_setting_it_up(path: Path) -> None:
    # SQLite refuses to change to WAL at once then, without the wait that other statements have.
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    writer = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
    writer.start()
    _use(path, timeout_s=60.0)
    writer.join()
    other.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections stores have made, for setting SQLite's own limits on them."""
    connect, made = sqlite3.connect, []

    def watched(path: Path, timeout: float, isolation_level: None) -> sqlite3.Connection:
        made.append(connect(path, timeout, 0, isolation_level, check_same_thread=False))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", watched)
    return made


def test_a_full_disk_is_unavailable_and_passes(
    path: Path, opened: list[sqlite3.Connection]
) -> None:
    async def scene() -> None:
        store = SqliteStore(path)
        await _held(store)
        ((pages,),) = opened[0].execute("PRAGMA page_count").fetchall()
        opened[0].execute(f"PRAGMA max_page_count = {pages}")
        many = {f"{n:0200}": START for n in range(200)}
        with pytest.raises(StoreUnavailable, match=r"leases\.db is full: make room"):
            await store.create(GROUP, many)
        assert len((await store.snapshot(GROUP)).leases) == 1
        await store.create(GROUP, many)
        assert len((await store.snapshot(GROUP)).leases) == 201
        await store.close()

    asyncio.run(scene())


def test_a_file_that_may_only_be_read_is_refused_by_its_path(
    path: Path, opened: list[sqlite3.Connection]
) -> None:
    async def scene() -> None:
        store = SqliteStore(path)
        held = await _held(store)
        opened[0].execute("PRAGMA query_only = true")
        with pytest.raises(BadInput, match=r"leases\.db cannot be written"):
            await store.renew(held)
        await store.close()

    asyncio.run(scene())


def test_a_failing_disk_is_unavailable_and_passes(path: Path) -> None:
    async def scene() -> None:
        store = SqliteStore(path)
        held = await _held(store)
        many = {f"{n:0200}": START for n in range(2000)}
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StoreUnavailable, match="disk"):
                await store.create(GROUP, many)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await store.renew(held)).kept
        assert len((await store.snapshot(GROUP)).leases) == 1
        await store.close()

    asyncio.run(scene())


def test_a_file_deleted_while_open_has_no_owner_any_more(path: Path) -> None:
    async def scene() -> None:
        store = SqliteStore(path)
        held = await _held(store)
        for name in ("", "-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        rival = SqliteStore(path)
        taken = await _held(rival, owner="b")
        assert not (await store.renew(held)).kept
        assert (await store.snapshot(GROUP)).leases[0].owner == "b"
        await store.close()
        assert (await rival.renew(taken)).kept
        assert len((await rival.snapshot(GROUP)).leases) == 1
        await rival.close()

    asyncio.run(scene())


def test_a_closed_store_leaves_no_thread_and_no_open_file(path: Path) -> None:
    def open_files() -> list[str]:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.lexists(link)]

    async def scene() -> None:
        stores = [SqliteStore(path) for _ in range(3)]
        for store in stores:
            await _held(store)
        assert any(str(path) in name for name in open_files())
        for store in stores:
            await store.close()

    before = {*threading.enumerate()}
    asyncio.run(scene())
    assert {*threading.enumerate()} <= before
    assert not [name for name in open_files() if str(path) in name]
    assert [entry.name for entry in path.parent.iterdir()] == ["leases.db"]


def test_a_cancelled_call_leaves_the_store_usable(path: Path) -> None:
    async def scene() -> None:
        store = SqliteStore(path)
        held = await _held(store)
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            renewing = asyncio.ensure_future(store.renew(held))
            await asyncio.sleep(0.05)
            renewing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await renewing
            other.execute("ROLLBACK")
        other.close()
        assert (await store.renew(held)).kept
        await store.close()

    asyncio.run(scene())


def test_a_forked_child_uses_a_connection_of_its_own(path: Path) -> None:
    script = f"""
import asyncio, os
from leasehold.core.model import Checkpoint, Group
from leasehold.stores.sqlite import SqliteStore
group = Group(namespace="n", feed="f", name="g")
store = SqliteStore({str(path)!r})
asyncio.run(store.create(group, {{"0": Checkpoint(next_sequence=0)}}))
child = os.fork()
if child == 0:
    asyncio.run(store.create(group, {{"1": Checkpoint(next_sequence=0)}}))
    asyncio.run(store.close())
    os._exit(0)
_, status = os.waitpid(child, 0)
print(status, len(asyncio.run(store.snapshot(group)).leases))
asyncio.run(store.close())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("0 2\n", "")
