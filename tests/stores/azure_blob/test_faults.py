"""The blob store when requests or their answers are lost, at every single request of a verb."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.azure_wire import Wire, at, leases, store_on, take
from support.servers import Azurite

from leasehold.core.model import Lease, Member, Snapshot
from leasehold.errors import StoreUnavailable
from leasehold.stores.azure_blob import AzureBlobStore
from leasehold.testing.check_lease_store import EARLIEST, any_group

CONTAINER = "leases"
FATES = ("before", "after")


def failing(nth: int, fate: str) -> Callable[[int], str | None]:
    return lambda n: fate if n == nth else None


async def until_it_succeeds(
    azurite: Azurite, prepare: Callable[[], Awaitable[Any]], act: Callable[..., Awaitable[Any]]
) -> list[tuple[int, str, Any, Any]]:
    """``act`` once for each of its requests and each fate of that one; stops when none failed."""
    outcomes = []
    for fate in FATES:
        for nth in range(50):
            prepared = await prepare()
            wire = Wire(failing(nth, fate))
            store = store_on(azurite, CONTAINER, wire)
            try:
                answer = await act(store, prepared)
            except StoreUnavailable as error:
                answer = error
            await store.close()
            if wire.sent <= nth:
                break
            outcomes.append((nth, fate, prepared, answer))
    return outcomes


def test_a_lease_whose_takeover_fails_half_way_is_not_won_and_not_left_owned(
    azurite: Azurite,
) -> None:
    async def main() -> None:
        store = store_on(azurite, CONTAINER)

        async def prepare() -> Lease:
            group = any_group()
            await store.create(group, {"0": EARLIEST})
            await take(store, group, "0", "former")
            return (await leases(store, group))["0"]

        outcomes = await until_it_succeeds(
            azurite, prepare, lambda s, lease: s.acquire([lease], "b", 10.0)
        )
        assert len(outcomes) >= 6
        touches = 0
        for nth, fate, lease, answer in outcomes:
            assert isinstance(answer, StoreUnavailable)
            now = (await leases(store, lease.group))["0"]
            claimed = now.epoch > lease.epoch
            touches += claimed and now.owner is None
            # Owned, where even the claim's own answer was lost: there was nobody to give it back.
            if now.owner == "b":
                assert (nth, fate) == (2, "after")
            after = await take(store, lease.group, "0", "c")
            assert after.epoch > max(now.epoch, lease.epoch)
            assert await store.checkpoint([replace(after, checkpoint=at(1))])
        assert touches == 2
        await store.close()

    asyncio.run(main())


def test_a_taker_paused_half_way_does_not_undo_a_later_taker(azurite: Azurite) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        slow, quick = store_on(azurite, CONTAINER, wire), store_on(azurite, CONTAINER)
        await quick.create(group, {"0": EARLIEST})
        seen = (await slow.snapshot(group)).leases
        later: list[Lease] = []
        touch = wire.sent + 1

        async def others(nth: int) -> None:
            if nth == touch:
                later.append(await take(quick, group, "0", "quick"))

        wire.meanwhile = others
        assert list(await slow.acquire(seen, "slow", 10.0)) == []
        assert await quick.checkpoint([replace(later[0], checkpoint=at(3))])
        assert (await quick.renew(later)).kept
        spent = (quick.requests["checkpoint"], quick.requests["renew"])
        assert spent == (1, 1), "nothing had to be mended"
        await slow.close()
        await quick.close()

    asyncio.run(main())


def test_the_owner_of_a_split_cut_off_after_its_first_step_can_write_no_more(
    azurite: Azurite,
) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        store = store_on(azurite, CONTAINER, wire)
        await store.create(group, {"0": EARLIEST})
        lease = await take(store, group, "0", "a")
        marked = wire.sent
        wire.fail = lambda n: "before" if n > marked else None
        with pytest.raises(StoreUnavailable):
            await store.split(lease, {"0a": at(1), "0b": at(1)})
        wire.fail = lambda n: None
        assert list(await store.checkpoint([replace(lease, checkpoint=at(5))])) == []
        assert sorted(await leases(store, group)) == ["0a", "0b"]
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("fate", ["before", "after"])
def test_of_40_renewals_one_fails_and_39_are_kept(azurite: Azurite, fate: str) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        store = store_on(azurite, CONTAINER, wire)
        await store.create(group, {f"{n:02}": EARLIEST for n in range(40)})
        held = await store.acquire((await store.snapshot(group)).leases, "a", 10.0)
        bad = wire.sent + 17
        wire.fail = lambda n: fate if n == bad else None
        answer = await store.renew(held)
        assert len(answer.kept) == 39
        assert [type(why) for why in answer.unknown.values()] == [StoreUnavailable]
        assert {x.partition for x in answer.kept} | set(answer.unknown) == {
            x.partition for x in held
        }
        assert len((await store.renew(held)).kept) == 40, "unknown is not lost"
        wire.fail = lambda n: fate
        with pytest.raises(StoreUnavailable):
            await store.renew(held)
        wire.fail = lambda n: None
        await store.close()

    asyncio.run(main())


def test_a_renewal_that_hangs_costs_itself_only(azurite: Azurite) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        store = store_on(azurite, CONTAINER, wire, timeout_s=5.0)
        await store.create(group, dict.fromkeys("0123", EARLIEST))
        held = await store.acquire((await store.snapshot(group)).leases, "a", 10.0)
        bad = wire.sent + 1

        async def hang(nth: int) -> None:
            if nth == bad:
                await asyncio.sleep(3600)

        wire.meanwhile = hang
        answer = await store.renew(held)
        assert (len(answer.kept), len(answer.unknown)) == (3, 1)
        await store.close()

    asyncio.run(main())


def test_leases_already_won_are_not_lost_to_anothers_failure(azurite: Azurite) -> None:
    async def main() -> None:
        group, wire = any_group(), Wire()
        store = store_on(azurite, CONTAINER, wire)
        await store.create(group, dict.fromkeys("012", EARLIEST))
        seen = (await store.snapshot(group)).leases
        wire.fail = failing(wire.sent, "before")
        won = await store.acquire(seen, "a", 10.0)
        assert [lease.partition for lease in won] == ["1", "2"]
        wire.fail = lambda n: "before"
        with pytest.raises(StoreUnavailable):
            await store.acquire(seen, "a", 10.0)
        await store.close()

    asyncio.run(main())


Verb = Callable[[AzureBlobStore, Lease], Awaitable[Any]]
MEMBER = Member(instance="m", incarnation="1")
VERBS: dict[str, Verb] = {
    "create": lambda store, lease: store.create(lease.group, {"0": at(9), "new": at(4)}),
    "join": lambda store, lease: store.join(lease.group, MEMBER),
    "heartbeat": lambda store, lease: store.heartbeat(lease.group, MEMBER),
    "leave": lambda store, lease: store.leave(lease.group, MEMBER),
    "renew": lambda store, lease: store.renew([replace(lease, weight=7.0)]),
    "release": lambda store, lease: store.release([replace(lease, offered_to="z")]),
    "checkpoint": lambda store, lease: store.checkpoint([replace(lease, checkpoint=at(8))]),
    "attempts": lambda store, lease: store.checkpoint([replace(lease, attempts=2)]),
    "split": lambda store, lease: store.split(lease, {"0a": at(8), "0b": at(9)}),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_failed_at_any_request_may_be_repeated(azurite: Azurite, verb: str) -> None:
    async def main() -> None:
        store = store_on(azurite, CONTAINER)

        async def prepare() -> Lease:
            group = any_group()
            await store.create(group, {"0": EARLIEST})
            await store.join(group, MEMBER)
            return await take(store, group, "0", "a")

        async def state(lease: Lease) -> Snapshot:
            found = await store.snapshot(lease.group)
            return Snapshot(
                leases=tuple(
                    replace(one, group=smooth.group, version="", age_s=0.0) for one in found.leases
                ),
                members=tuple(replace(one, version="", age_s=0.0) for one in found.members),
                replaced=found.replaced,
            )

        smooth = await prepare()
        await VERBS[verb](store, smooth)
        wanted = await state(smooth)
        outcomes = await until_it_succeeds(azurite, prepare, VERBS[verb])
        assert outcomes
        for *_, lease, answer in outcomes:
            # A split is done once the children are there; its rest is left to whoever looks next.
            assert isinstance(answer, StoreUnavailable) or (verb == "split" and answer is True)
            fresh = store_on(azurite, CONTAINER)
            await VERBS[verb](fresh, lease)
            assert await state(lease) == wanted
            await fresh.close()
        await store.close()

    asyncio.run(main())


def test_a_split_cut_off_at_any_request_is_finished_by_the_next_to_look(azurite: Azurite) -> None:
    async def main() -> None:
        store = store_on(azurite, CONTAINER)

        async def prepare() -> Lease:
            group = any_group()
            await store.create(group, {"0": EARLIEST})
            lease = await take(store, group, "0", "a")
            await store.checkpoint([replace(lease, checkpoint=at(8))])
            return lease

        children = {"0a": at(8), "0b": at(9)}
        outcomes = await until_it_succeeds(
            azurite, prepare, lambda s, lease: s.split(lease, children)
        )
        finished = []
        for *_, lease, _answer in outcomes:
            passer_by = store_on(azurite, CONTAINER)
            snapshot = await passer_by.snapshot(lease.group)
            found = {one.partition: one.checkpoint for one in snapshot.leases}
            finished.append(snapshot.replaced == {"0"})
            if finished[-1]:
                assert found == children
                assert list(await store.checkpoint([replace(lease, checkpoint=at(9))])) == []
                assert not (await store.renew([lease])).kept
                await passer_by.create(lease.group, {"0": EARLIEST})
                assert sorted(await leases(passer_by, lease.group)) == ["0a", "0b"]
            else:
                assert found == {"0": at(8)}
                assert await store.checkpoint([replace(lease, checkpoint=at(9))])
            # In calm, a look at a finished split costs no more than any other.
            before = passer_by.requests["snapshot"]
            await passer_by.snapshot(lease.group)
            assert passer_by.requests["snapshot"] == before + 1
            await passer_by.close()
        assert finished.count(True) > 8
        assert finished.count(False) > 2
        await store.close()

    asyncio.run(main())
