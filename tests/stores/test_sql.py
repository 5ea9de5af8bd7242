"""The SQL stores beside the memory store, and the named queries both are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.errors import BadInput
from leasehold.local.sql import load_queries, split_queries
from leasehold.ports import LeaseStore
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore
from leasehold.testing.check_lease_store import any_group

VERBS = {
    "create", "snapshot", "join", "heartbeat", "leave", "acquire", "renew", "release",
    "checkpoint", "rewind", "split", "groups",
}  # fmt: skip


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    return str(request.getfixturevalue("postgres_url"))


def test_a_query_reaches_from_its_header_to_the_next() -> None:
    text = "-- about the file\n\n-- name: one\nSELECT 1\n-- why\nFROM a\n\n-- name: two\nSELECT 2\n"
    assert split_queries(text) == {"one": "SELECT 1\n-- why\nFROM a", "two": "SELECT 2"}


def test_a_query_name_is_used_once() -> None:
    with pytest.raises(ValueError, match="twice: one"):
        split_queries("-- name: one\nSELECT 1\n-- name: one\nSELECT 2\n")


@pytest.mark.parametrize("package", ["sqlite", "postgres"])
def test_every_verb_has_its_query(package: str) -> None:
    assert set(load_queries(f"leasehold.stores.{package}")) >= VERBS


PARTITIONS = st.sampled_from(["0", "1", "00", "01"])
OWNERS = st.sampled_from(["a", "b", None])
CHECKPOINTS = st.builds(
    Checkpoint, next_sequence=st.integers(0, 4), token=st.sampled_from(["", "x", "ü"])
)
STARTS = st.dictionaries(PARTITIONS, CHECKPOINTS, max_size=3)
QUARTERS = st.integers(1, 100).map(lambda n: n / 4)
MEMBERS = st.builds(
    Member,
    instance=st.sampled_from(["a", "b"]),
    incarnation=st.sampled_from(["1", "2"]),
    ttl_s=QUARTERS,
    leaving=st.booleans(),
)


@dataclass(frozen=True)
class Pick:
    """Some lease seen before (or the nth from the end, so that new ones come up), then changed."""

    back: int
    changes: dict[str, object]


PICKS = st.lists(
    st.builds(
        Pick,
        back=st.integers(1, 6),
        changes=st.fixed_dictionaries(
            {},
            optional={
                "checkpoint": CHECKPOINTS,
                "attempts": st.integers(0, 3),
                "offered_to": OWNERS,
                "weight": QUARTERS,
                "ttl_s": QUARTERS,
                "owner": OWNERS,
            },
        ),
    ),
    max_size=4,
    unique_by=lambda pick: pick.back,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), STARTS),
        st.tuples(st.just("acquire"), PICKS, st.sampled_from(["a", "b"]), QUARTERS),
        st.tuples(st.sampled_from(["renew", "release", "checkpoint", "rewind"]), PICKS),
        st.tuples(st.just("split"), PICKS.filter(bool), STARTS),
        st.tuples(st.sampled_from(["join", "heartbeat", "leave"]), MEMBERS),
    ),
    min_size=3,
    max_size=15,
)


async def _do(store: LeaseStore, group: Group, step: tuple, seen: Sequence[Lease]) -> object:
    verb, first, *rest = step
    if verb == "create":
        return await store.create(group, first)
    if verb in ("join", "heartbeat", "leave"):
        return await getattr(store, verb)(group, first)
    leases = [replace(seen[-p.back], **p.changes) for p in first if p.back <= len(seen)]
    if verb == "split":
        return await store.split(leases[0], *rest) if leases else None
    answer = await getattr(store, verb)(leases, *rest)
    return None if answer is None else _ageless(getattr(answer, "kept", answer))


def _ageless(leases: Sequence[Lease]) -> list[Lease]:
    return sorted((replace(lease, age_s=0.0) for lease in leases), key=str)


def _timeless(snapshot: Snapshot) -> tuple[object, ...]:
    return (
        [replace(lease, age_s=0.0) for lease in snapshot.leases],
        [replace(member, age_s=0.0, version="") for member in snapshot.members],
        snapshot.replaced,
    )


def test_whatever_is_asked_the_answer_is_that_of_the_memory_store(url: str) -> None:
    model, store = MemoryStore(), open_store(url)

    async def compare(steps: list[tuple]) -> None:
        group = any_group()
        await model.create(group, {"0": Checkpoint(next_sequence=0)})
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        seen: list[Lease] = list((await model.snapshot(group)).leases)
        for step in steps:
            expected = await _do(model, group, step, seen)
            assert await _do(store, group, step, seen) == expected
            snapshot = await model.snapshot(group)
            assert _timeless(await store.snapshot(group)) == _timeless(snapshot)
            seen += snapshot.leases
        assert (group in await store.groups()) == (group in await model.groups())

    with _loop(store) as loop:

        @settings(max_examples=60, suppress_health_check=list(HealthCheck))
        @given(STEPS)
        def steps_agree(steps: list[tuple]) -> None:
            loop.run(compare(steps))

        steps_agree()


def test_an_interval_costs_three_statements_whatever_the_number_of_leases(url: str) -> None:
    async def cost(partitions: int) -> int:
        store, group = open_store(url), any_group()
        member = Member(instance="a", incarnation="1")
        starts = {str(n): Checkpoint(next_sequence=0) for n in range(partitions)}
        await store.join(group, member)
        await store.create(group, starts)
        held = await store.acquire((await store.snapshot(group)).leases, "a", 10.0)
        before = store.requests.total()
        await store.heartbeat(group, member)
        assert len((await store.renew(held)).kept) == partitions
        assert len((await store.snapshot(group)).leases) == partitions
        spent = store.requests.total() - before
        await store.close()
        return spent

    assert [asyncio.run(cost(n)) for n in (1, 40, 400)] == [3, 3, 3]


def test_a_lease_given_twice_is_changed_in_turn(url: str) -> None:
    async def twice() -> None:
        store, group = open_store(url), any_group()
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        seen = (await store.snapshot(group)).leases
        (held,) = await store.acquire([*seen, *seen], "a", 10.0)
        later, last = (replace(held, checkpoint=Checkpoint(next_sequence=n)) for n in (5, 9))
        kept = await store.checkpoint([last, later])
        assert [lease.checkpoint.next_sequence for lease in kept] == [9, 9]
        await store.close()

    asyncio.run(twice())


def test_leases_of_several_groups_go_into_one_statement(url: str) -> None:
    async def both() -> None:
        store, groups = open_store(url), [any_group(), any_group()]
        for group in groups:
            await store.create(group, {"0": Checkpoint(next_sequence=0)})
        seen = [lease for group in groups for lease in (await store.snapshot(group)).leases]
        held = await store.acquire(seen[::-1], "a", 10.0)
        assert [lease.group for lease in held] == groups[::-1]
        assert store.requests["acquire"] == 1
        await store.close()

    asyncio.run(both())


def test_a_store_serves_one_event_loop_after_another(url: str) -> None:
    store, group = open_store(url), any_group()

    async def crowd() -> int:
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        looks = await asyncio.gather(*(store.snapshot(group) for _ in range(5)))
        return sum(len(look.leases) for look in looks)

    assert [asyncio.run(crowd()) for _ in range(3)] == [5, 5, 5]
    asyncio.run(store.close())


def test_closing_again_is_harmless_and_use_opens_anew(url: str) -> None:
    async def reopen() -> None:
        store, group = open_store(url), any_group()
        await store.close()
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        await store.close()
        await store.close()
        assert len((await store.snapshot(group)).leases) == 1
        await store.close()

    asyncio.run(reopen())


@pytest.mark.parametrize(
    "broken",
    [
        {"checkpoint": Checkpoint(next_sequence=2**64)},
        {"checkpoint": Checkpoint(next_sequence=7, token="a\0b")},
        {"checkpoint": Checkpoint(next_sequence=7, token="\udc80")},
        {"attempts": 2**70},
    ],
    ids=["a number too large", "a NUL", "a lone surrogate", "too many attempts"],
)
def test_a_value_the_store_cannot_hold_is_refused_and_the_store_goes_on(
    url: str, broken: dict[str, object]
) -> None:
    async def refused() -> None:
        store, group = open_store(url), any_group()
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        held = await store.acquire((await store.snapshot(group)).leases, "a", 10.0)
        with pytest.raises(BadInput):
            await store.checkpoint([replace(held[0], **broken)])
        (lease,) = (await store.snapshot(group)).leases
        assert (lease.checkpoint, lease.attempts) == (Checkpoint(next_sequence=0), 0)
        await store.close()

    asyncio.run(refused())


@pytest.mark.parametrize("ttl_s", [float("inf"), float("nan")])
def test_a_time_to_live_that_is_no_number_is_refused(url: str, ttl_s: float) -> None:
    async def refused() -> None:
        store, group = open_store(url), any_group()
        await store.create(group, {"0": Checkpoint(next_sequence=0)})
        seen = (await store.snapshot(group)).leases
        with pytest.raises(BadInput, match="ttl_s"):
            await store.acquire(seen, "a", ttl_s)
        with pytest.raises(BadInput, match="ttl_s"):
            await store.join(group, Member(instance="a", incarnation="1", ttl_s=ttl_s))
        await store.close()

    asyncio.run(refused())


@contextmanager
def _loop(store: LeaseStore) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner
        runner.run(store.close())


def test_a_lease_that_is_split_into_itself_is_only_closed(url: str) -> None:
    async def main() -> Snapshot:
        store, group = open_store(url), any_group()
        try:
            await store.create(group, {"0": Checkpoint(next_sequence=3)})
            (lease,) = await store.acquire((await store.snapshot(group)).leases, "a", 10.0)
            assert await store.split(lease, {"0": lease.checkpoint})
            return await store.snapshot(group)
        finally:
            await store.close()

    found = asyncio.run(main())
    assert not found.leases
    assert found.replaced == {"0"}
