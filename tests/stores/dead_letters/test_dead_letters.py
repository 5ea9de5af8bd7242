from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold.core.model import Checkpoint, Group
from leasehold.errors import BadInput, NewerVersion, StoreUnavailable
from leasehold.ports import DeadLetters, LetterFilter
from leasehold.stores import open_dead_letters, open_store
from leasehold.stores.dead_letters import SqliteDeadLetters
from leasehold.stores.dead_letters.memory import MemoryDeadLetters
from leasehold.testing.check_dead_letters import CHECKS, Check, any_group, any_letter

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")
ALL = LetterFilter()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dead.db"


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_sqlite(rule: Check, path: Path) -> None:
    async def opened() -> DeadLetters:
        return SqliteDeadLetters(path)

    asyncio.run(rule(opened, any_group()))


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_memory(rule: Check) -> None:
    store = MemoryDeadLetters()

    async def opened() -> DeadLetters:
        return store

    asyncio.run(rule(opened, any_group()))


class HandClock:
    """A clock moved by hand. Steps are quarters, so that seconds as floats stay exact."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


SEQUENCES = st.integers(0, 5)
LETTERS = st.builds(
    any_letter,
    st.sampled_from([GROUP, replace(GROUP, feed="cameras")]),
    SEQUENCES,
    partition=st.sampled_from(["0", "1"]),
    body=st.binary(max_size=20),
    partition_key=st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
    properties=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=3),
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        max_size=2,
    ),
    error=st.text(st.characters(codec="utf-8"), max_size=10),
    attempts=st.integers(0, 3),
    enqueued_at=st.datetimes(timezones=st.just(UTC)),
)
IDS = st.lists(LETTERS.map(lambda letter: letter.id), max_size=3)
WHICH = st.fixed_dictionaries(
    {},
    optional={
        "namespace": st.sampled_from(["homes.local", "elsewhere"]),
        "feed": st.sampled_from(["sensors", "cameras"]),
        "group": st.sampled_from(["alerts", "other"]),
        "partition": st.sampled_from(["0", "1"]),
        "ids": IDS,
        "redriven": st.booleans(),
        "older_than_s": st.integers(0, 20).map(lambda n: n / 4),
        "up_to": st.integers(0, 8),
    },
).map(lambda given: LetterFilter(**given))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(LETTERS, max_size=4)),
        st.tuples(st.just("list"), WHICH, st.integers(0, 4), st.none() | SEQUENCES, st.booleans()),
        st.tuples(st.just("count"), WHICH),
        st.tuples(st.just("mark_redriven"), IDS),
        st.tuples(st.just("purge"), WHICH),
        st.tuples(st.just("sleep"), st.integers(0, 12).map(lambda n: n / 4)),
    ),
    min_size=3,
    max_size=15,
)


async def _do(store: DeadLetters, step: tuple[Any, ...]) -> object:
    """The answer, with letters by their rank instead of their number: stores may leave gaps."""
    numbers = [letter.number for letter in await store.list(ALL)]

    def number(rank: int | None) -> int | None:
        return numbers[rank] if rank is not None and rank < len(numbers) else None

    verb, first, *rest = step
    if isinstance(first, LetterFilter):
        first = replace(first, up_to=number(first.up_to))
    if verb != "list":
        return await getattr(store, verb)(first)
    limit, after, newest_first = rest
    found = await store.list(first, limit=limit, after=number(after), newest_first=newest_first)
    return [replace(letter, number=numbers.index(letter.number)) for letter in found]


def test_whatever_is_asked_the_answer_is_that_of_the_memory_store(path: Path) -> None:
    clock = HandClock()
    store = SqliteDeadLetters(path, clock=clock)

    async def compare(steps: list[tuple[Any, ...]]) -> None:
        model = MemoryDeadLetters(clock)
        await store.purge(ALL)
        for step in steps:
            if step[0] == "sleep":
                await clock.sleep(step[1])
                continue
            expected = await _do(model, step)
            assert await _do(store, step) == expected
            everything = ("list", ALL, 100, None, False)
            assert await _do(store, everything) == await _do(model, everything)

    with asyncio.Runner() as runner:

        @settings(max_examples=100, suppress_health_check=list(HealthCheck))
        @given(STEPS)
        def steps_agree(steps: list[tuple[Any, ...]]) -> None:
            runner.run(compare(steps))

        steps_agree()
        runner.run(store.close())


@pytest.mark.parametrize("kind", [MemoryDeadLetters, SqliteDeadLetters])
def test_older_means_longer_ago_by_the_stores_clock(
    path: Path, kind: Callable[..., DeadLetters]
) -> None:
    clock = HandClock()
    store = kind(path, clock=clock) if kind is SqliteDeadLetters else kind(clock=clock)

    async def scene() -> None:
        await store.put([any_letter(GROUP)])
        clock.now += 60.0
        assert await store.purge(LetterFilter(older_than_s=60.0)) == 0
        assert await store.purge(LetterFilter(older_than_s=59.75)) == 1
        await store.close()

    asyncio.run(scene())


def test_an_id_is_the_same_for_the_same_event_and_no_other() -> None:
    letter = any_letter(GROUP, 5)
    assert letter.id == replace(letter, body=b"x", error="other", attempts=1, number=9).id
    others = [
        replace(letter, sequence=6),
        replace(letter, partition="75", sequence=0),
        replace(letter, token="x"),
        replace(letter, group=replace(GROUP, name="alerts/7", feed="sensors")),
        replace(letter, group=replace(GROUP, name="x", feed="sensors/alerts")),
    ]
    assert len({letter.id, *(other.id for other in others)}) == 6
    # Letters of older files must be found again: never change how an id is made.
    assert letter.id == "oe6eeksb2fxcfz2j"


def test_letters_and_leases_can_share_a_file(path: Path) -> None:
    async def scene() -> None:
        letters, leases = open_dead_letters(f"sqlite:///{path}"), open_store(f"sqlite:///{path}")
        await letters.put([any_letter(GROUP)])
        await leases.create(GROUP, {"0": Checkpoint(next_sequence=0)})
        assert await letters.count(ALL) == {GROUP: 1}
        assert len((await leases.snapshot(GROUP)).leases) == 1
        await letters.close()
        await leases.close()

    asyncio.run(scene())


def _use(path: Path, timeout_s: float = 5.0) -> None:
    async def use() -> None:
        store = SqliteDeadLetters(path, timeout_s=timeout_s)
        try:
            await store.put([any_letter(GROUP)])
        finally:
            await store.close()

    asyncio.run(use())


def test_a_file_of_a_newer_version_is_refused_by_both_numbers(path: Path) -> None:
    _use(path)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE leasehold_dead_letters_schema SET version = 7")
    file.close()
    with pytest.raises(NewerVersion, match=r"dead\.db .*version 7.* version 1\. .*pip install"):
        _use(path)


def _foreign(path: Path) -> None:
    path.write_bytes(b"These are not the letters you are looking for. " * 100)


def _folder(path: Path) -> None:
    path.mkdir()


def _damaged(path: Path) -> None:
    _use(path)
    content = bytearray(path.read_bytes())
    content[200:] = b"\xff" * (len(content) - 200)
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [_foreign, _folder, _damaged])
def test_what_is_no_dead_letter_file_is_refused_by_its_path(
    path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(path)
    with pytest.raises(BadInput, match=r"dead\.db"):
        _use(path)


def test_a_lock_that_outlasts_the_timeout_is_unavailable_and_passes(path: Path) -> None:
    _use(path)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"dead\.db was locked"):
            _use(path, timeout_s=0.1)
        other.execute("ROLLBACK")
    other.close()
    _use(path)


def test_on_a_full_disk_all_of_a_put_is_kept_or_none(path: Path) -> None:
    async def scene() -> None:
        store = SqliteDeadLetters(path)
        await store.put([any_letter(GROUP, 0)])
        many = [any_letter(GROUP, n, body=os.urandom(1000)) for n in range(1, 500)]
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StoreUnavailable, match="disk"):
                await store.put(many)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await store.count(ALL) == {GROUP: 1}
        await store.put(many)
        assert await store.count(ALL) == {GROUP: 500}
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "broken",
    [
        {"sequence": 2**64},
        {"partition_key": "\udc80"},
        {"body": "text"},
        {"properties": {"a": b"bytes"}},
        {"properties": {"a": float("nan")}},
        {"properties": {"a": "\udc80"}},
        {"enqueued_at": datetime(2024, 1, 1)},
        {"attempts": None},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_a_value_that_cannot_be_kept_is_refused_with_all_of_its_put(
    path: Path, broken: dict[str, object]
) -> None:
    async def scene() -> None:
        store = SqliteDeadLetters(path)
        with pytest.raises(BadInput):
            await store.put([any_letter(GROUP, 0), replace(any_letter(GROUP, 1), **broken)])
        assert await store.count(ALL) == {}
        await store.put([any_letter(GROUP, 0)])
        assert await store.count(ALL) == {GROUP: 1}
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize("older_than_s", [-1.0, float("nan"), float("inf"), 1e300])
def test_an_age_that_is_none_is_refused(path: Path, older_than_s: float) -> None:
    async def scene() -> None:
        store = SqliteDeadLetters(path)
        with pytest.raises(BadInput, match="older_than_s"):
            await store.purge(LetterFilter(older_than_s=older_than_s))
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}"])
def test_a_negative_limit_is_refused(path: Path, store: str) -> None:
    async def scene() -> None:
        letters = open_dead_letters(store.format(path))
        with pytest.raises(BadInput, match="limit is -1"):
            await letters.list(ALL, limit=-1)
        await letters.close()

    asyncio.run(scene())


def test_a_put_waits_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, made = sqlite3.connect, []

    def watched(path: Path, timeout: float, isolation_level: None) -> sqlite3.Connection:
        made.append(connect(path, timeout, 0, isolation_level, check_same_thread=False))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", watched)

    async def scene() -> None:
        store = SqliteDeadLetters(path)
        await store.put([any_letter(GROUP)])
        assert made[0].execute("PRAGMA synchronous").fetchall() == [(2,)]
        assert made[0].execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        await store.close()

    asyncio.run(scene())


def test_a_purge_gives_the_room_back(path: Path) -> None:
    store = SqliteDeadLetters(path)

    async def fill() -> None:
        await store.put([any_letter(GROUP, n, body=os.urandom(50_000)) for n in range(200)])
        await store.close()

    async def purge() -> None:
        assert await store.purge(ALL) == 200
        await store.close()

    asyncio.run(fill())
    assert path.stat().st_size > 10_000_000
    asyncio.run(purge())
    assert path.stat().st_size < 100_000


PUT_AND_DIE = """
import asyncio, os, signal, sys
from leasehold.stores import open_dead_letters
from leasehold.testing.check_dead_letters import any_letter
from leasehold.core.model import Group

async def main():
    store = open_dead_letters(sys.argv[1])
    group = Group(namespace="homes.local", feed="sensors", name="alerts")
    for n in range(int(sys.argv[2])):
        await store.put([any_letter(group, n)])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_what_was_put_survives_a_kill_and_may_be_put_again(path: Path) -> None:
    url = f"sqlite:///{path}"
    for puts in (3, 5):  # the second instance begins anew, not knowing what the first had put
        died = subprocess.run(
            [sys.executable, "-c", PUT_AND_DIE, url, str(puts)], timeout=60, check=False
        )
        assert died.returncode == -signal.SIGKILL

        async def sequences() -> list[int]:
            store = open_dead_letters(url)
            found = [letter.sequence for letter in await store.list(ALL)]
            await store.close()
            return found

        assert asyncio.run(sequences()) == list(range(puts))


def test_a_closed_store_leaves_no_thread(path: Path) -> None:
    before = {*threading.enumerate()}
    _use(path)
    assert {*threading.enumerate()} <= before
    assert [entry.name for entry in path.parent.iterdir()] == ["dead.db"]


def test_a_memory_store_is_private_without_a_name_and_shared_by_name() -> None:
    assert open_dead_letters("memory://") is not open_dead_letters("memory://")
    assert open_dead_letters("memory://demo") is open_dead_letters("memory://demo")
    assert open_dead_letters("memory://demo") is not open_dead_letters("memory://other")


def test_nothing_is_made_before_first_use(tmp_path: Path) -> None:
    store = open_dead_letters(f"sqlite:///{tmp_path}/data/dead.db")
    assert isinstance(store, DeadLetters)
    assert store.requests.total() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dead.db", "sqlite:///dead.db"),
        ("sqlite://", "sqlite:///data/dead.db"),
        ("sqlite://data/dead.db", "sqlite:///data/dead.db"),
        ("sqlite:///:memory:", "for dead letters in this process only, use memory://"),
        ("sqlite:///dead.db?speed=high", "'speed'"),
        ("sqlite:///dead.db?timeout_s=soon", "timeout_s"),
        ("postgresql://me:open-sesame@host/db", "PGPASSWORD"),
        ("mysql://me:open-sesame@host/db", "no dead letters are kept in mysql://"),
        ("postgresql:me:open-sesame@host/db", "Valid are"),
    ],
)
def test_a_wrong_url_is_answered_with_a_right_one(url: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        open_dead_letters(url)
    assert says in str(refused.value)
    assert "sesame" not in str(refused.value)
