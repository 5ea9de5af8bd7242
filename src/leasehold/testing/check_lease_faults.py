"""What a lease store must do when parts of a request fail, its clock steps, or it was closed.

These belong to ``check_lease_store``. ``FAULT_CHECKS`` are for all; ``LOCK_CHECKS`` for stores
whose records another program can keep locked one by one; ``CLOCK_CHECKS`` for those whose clock a
test can set.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import Any

from leasehold.core.model import Group, Lease
from leasehold.errors import StoreUnavailable
from leasehold.ports import LeaseStore, Renewed
from leasehold.testing.lease_scenes import EARLIEST, Check, OpenStore, at, leases_of, member, take

Lock = Callable[[Group, str], AbstractAsyncContextManager[None]]
"""Keeps the record of one partition's lease locked, as another program would."""
Step = Callable[[Group, float], Awaitable[None]]
"""Sets the store's clock by so many seconds."""
LockCheck = Callable[[OpenStore, Group, Lock], Awaitable[None]]
ClockCheck = Callable[[OpenStore, Group, Step], Awaitable[None]]
GIVE_UP_S = 30.0
"""For noticing what hangs."""


async def a_renewal_of_many_is_answered_one_by_one(open_store: OpenStore, group: Group) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, dict.fromkeys("012", EARLIEST))
    held = [await take(store, group, partition, "a") for partition in "012"]
    await store.release([held[1]])
    await take(rival, group, "1", "b")
    ghost = replace(held[0], partition="no such partition")
    answer = await store.renew([*held, ghost])
    assert {lease.partition for lease in answer.kept} == {"0", "2"}
    assert not answer.unknown, "what a rival took is lost, not unknown"
    await store.close()
    await rival.close()


async def of_many_claims_each_is_won_or_lost_by_itself(open_store: OpenStore, group: Group) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, dict.fromkeys("012", EARLIEST))
    seen = list((await leases_of(store, group)).values())
    await take(rival, group, "1", "b")
    won = await store.acquire(seen, "a", 10.0)
    assert {lease.partition for lease in won} == {"0", "2"}
    await store.close()
    await rival.close()


async def a_closed_store_can_be_used_again(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.close()
    await store.close()
    assert (await store.renew([held])).kept
    assert list(await store.checkpoint([replace(held, checkpoint=at(3))]))
    assert (await leases_of(store, group))["0"].checkpoint == at(3)
    await store.close()


async def calls_cancelled_at_every_turn_break_nothing(open_store: OpenStore, group: Group) -> None:
    """As when a limit of time, a lost lease and a shutdown all come together."""
    store = await open_store()
    await store.create(group, dict.fromkeys("01", EARLIEST))
    held = [await take(store, group, partition, "a") for partition in "01"]
    with _nothing_left_behind():
        for turns in (0, 1, 2, 3, 5, 8, 13, 21):
            calls: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(store.renew(held)),
                asyncio.ensure_future(store.snapshot(group)),
                asyncio.ensure_future(store.checkpoint(held[:1])),
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(GIVE_UP_S):
                while asked := [call for call in calls if not call.done()]:
                    for call in asked:
                        call.cancel()
                    await asyncio.sleep(0)
            await asyncio.gather(*calls, return_exceptions=True)
    assert len((await store.renew(held)).kept) == len(held)
    await store.close()


async def a_store_closed_while_it_is_asked_breaks_nothing(
    open_store: OpenStore, group: Group
) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    with _nothing_left_behind():
        for turns in (0, 1, 2, 3, 5, 8):
            calls = [asyncio.ensure_future(store.renew([held])) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await store.close()
            async with asyncio.timeout(GIVE_UP_S):
                answers = await asyncio.gather(*calls, return_exceptions=True)
            for answer in answers:
                assert isinstance(answer, Renewed | StoreUnavailable), repr(answer)
    assert (await store.renew([held])).kept
    await store.close()


async def a_locked_record_costs_itself_only(
    open_store: OpenStore, group: Group, lock: Lock
) -> None:
    store = await open_store()
    await store.create(group, dict.fromkeys("012", EARLIEST))
    held = {partition: await take(store, group, partition, "a") for partition in "012"}
    async with lock(group, "1"):
        answer = await store.renew(list(held.values()))
        assert {lease.partition for lease in answer.kept} == {"0", "2"}
        assert set(answer.unknown) == {"1"}, "neither kept nor lost"
        assert list(await store.checkpoint([replace(held["0"], checkpoint=at(3))]))
        assert await _is_unavailable(store, held["1"])
        assert set(await leases_of(store, group)) == set("012"), "looking needs no lock"
    answer = await store.renew(list(held.values()))
    assert {lease.partition for lease in answer.kept} == set("012")
    assert list(await store.checkpoint([replace(held["1"], checkpoint=at(3))]))
    await store.close()


async def a_locked_lease_is_taken_over_once_it_is_free(
    open_store: OpenStore, group: Group, lock: Lock
) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, dict.fromkeys("012", EARLIEST))
    stale = [await take(store, group, partition, "a", ttl_s=0.1) for partition in "012"]
    async with lock(group, "1"):
        seen = await leases_of(rival, group)
        won = await rival.acquire(list(seen.values()), "b", 10.0)
        assert {lease.partition for lease in won} == {"0", "2"}
    (late,) = await rival.acquire([(await leases_of(rival, group))["1"]], "b", 10.0)
    assert (late.owner, late.epoch) == ("b", stale[1].epoch + 1)
    assert await store.renew(stale) == Renewed(), "lost, not unknown"
    await store.close()
    await rival.close()


async def a_step_of_the_stores_clock_changes_nothing_but_ages(
    open_store: OpenStore, group: Group, step: Step
) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.join(group, member("a"))
    for seconds in (30.0, -60.0, 30.0):
        before = await store.snapshot(group)
        await step(group, seconds)
        after = await rival.snapshot(group)
        assert [replace(x, age_s=0.0) for x in after.leases] == [
            replace(x, age_s=0.0) for x in before.leases
        ]
        assert [x.instance for x in after.members] == ["a"]
        assert (await store.renew([held])).kept, "its owner goes on"
        assert await store.heartbeat(group, member("a"))
        renewed = await rival.snapshot(group)
        for now, then in ((renewed.leases, after.leases), (renewed.members, after.members)):
            assert abs(now[0].age_s) < 10, "young again, by the clock as it is now"
            assert now[0].version != then[0].version, "who watches sees that it lives"
    await store.close()
    await rival.close()


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """No part of a call fails unheard, after the call itself has ended."""
    loop, unheard = asyncio.get_running_loop(), list[str]()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, what: unheard.append(str(what)))
    try:
        yield
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert not unheard, unheard


async def _is_unavailable(store: LeaseStore, lease: Lease) -> bool:
    try:
        await store.checkpoint([replace(lease, checkpoint=at(3))])
    except StoreUnavailable:
        return True
    return False


FAULT_CHECKS: list[Check] = [
    a_renewal_of_many_is_answered_one_by_one,
    of_many_claims_each_is_won_or_lost_by_itself,
    a_closed_store_can_be_used_again,
    calls_cancelled_at_every_turn_break_nothing,
    a_store_closed_while_it_is_asked_breaks_nothing,
]
LOCK_CHECKS: list[LockCheck] = [
    a_locked_record_costs_itself_only,
    a_locked_lease_is_taken_over_once_it_is_free,
]
CLOCK_CHECKS: list[ClockCheck] = [a_step_of_the_stores_clock_changes_nothing_but_ages]
