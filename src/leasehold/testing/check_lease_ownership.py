"""Rules for lease stores: who has a lease, for how long, and who else is there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from leasehold.core.model import Checkpoint, Group, Lease
from leasehold.ports import Renewed
from leasehold.testing.lease_scenes import EARLIEST, Check, OpenStore, at, leases_of, member, take

CHECKS: list[Check] = []


def check(rule: Check) -> Check:
    CHECKS.append(rule)
    return rule


@check
async def creating_makes_an_unowned_lease_at_its_start(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    start = Checkpoint(next_sequence=41, token="4100")
    await store.create(group, {"0": start, "1": EARLIEST})
    leases = await leases_of(store, group)
    assert sorted(leases) == ["0", "1"]
    assert leases["0"].checkpoint == start
    assert leases["1"].checkpoint == EARLIEST
    for lease in leases.values():
        assert lease.owner is None
        assert lease.offered_to is None
        assert not lease.advanced
        assert lease.attempts == 0
    await store.close()


@check
async def creating_again_changes_nothing(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=at(7))])
    await store.create(group, {"0": at(99), "1": at(5)})
    leases = await leases_of(store, group)
    assert leases["0"].checkpoint == at(7)
    assert leases["0"].owner == "a"
    assert leases["1"].checkpoint == at(5)
    await store.close()


@check
async def many_creators_at_once_agree_on_one_start(open_store: OpenStore, group: Group) -> None:
    stores = [await open_store() for _ in range(6)]
    await asyncio.gather(
        *(store.create(group, {"0": at(n), "1": at(n)}) for n, store in enumerate(stores))
    )
    seen = [await leases_of(store, group) for store in stores]
    assert all(sorted(leases) == ["0", "1"] for leases in seen)
    assert len({leases["0"].checkpoint for leases in seen}) == 1
    for store in stores:
        await store.close()


@check
async def an_unknown_group_is_empty(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    snapshot = await store.snapshot(group)
    assert snapshot.leases == ()
    assert snapshot.members == ()
    assert group not in await store.groups()
    await store.close()


@check
async def groups_do_not_see_each_other(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    other = replace(group, name=group.name + "-b")
    await store.create(group, {"0": EARLIEST})
    await store.create(other, {"0": EARLIEST})
    await store.join(group, member("a"))
    await take(store, group, "0", "a")
    assert (await leases_of(store, other))["0"].owner is None
    assert (await store.snapshot(other)).members == ()
    assert {group, other} <= set(await store.groups())
    await store.close()


@check
async def taking_a_lease_raises_its_epoch_by_one(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    first = await take(store, group, "0", "a")
    second = await take(store, group, "0", "b")
    assert (first.owner, second.owner) == ("a", "b")
    assert second.epoch == first.epoch + 1
    assert second.checkpoint == EARLIEST
    assert (await leases_of(store, group))["0"].epoch == second.epoch
    await store.close()


@check
async def of_many_claimants_exactly_one_wins(open_store: OpenStore, group: Group) -> None:
    partitions = [str(n) for n in range(4)]
    stores = [await open_store() for _ in range(8)]
    await stores[0].create(group, dict.fromkeys(partitions, EARLIEST))
    for _ in range(3):  # first claims, then claims of leases that have an owner
        seen = (await stores[0].snapshot(group)).leases
        won = await asyncio.gather(
            *(store.acquire(seen, f"i{n}", 10.0) for n, store in enumerate(stores))
        )
        winners = [lease.partition for leases in won for lease in leases]
        assert sorted(winners) == partitions, f"each partition has one winner, got {winners}"
        owners = {lease.partition: lease.owner for leases in won for lease in leases}
        stored = await leases_of(stores[1], group)
        assert {p: stored[p].owner for p in partitions} == owners
    for store in stores:
        await store.close()


@check
async def a_renewal_defeats_a_claim_made_from_an_older_look(
    open_store: OpenStore, group: Group
) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    seen = (await rival.snapshot(group)).leases
    assert [lease.partition for lease in (await store.renew([held])).kept] == ["0"]
    assert list(await rival.acquire(seen, "b", 10.0)) == []
    assert (await leases_of(store, group))["0"].owner == "a"
    await store.close()
    await rival.close()


@check
async def renewing_makes_a_lease_young_again_by_the_store_clock(
    open_store: OpenStore, group: Group
) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST, "1": EARLIEST})
    held = await take(store, group, "0", "a", ttl_s=1.0)
    await take(store, group, "1", "a", ttl_s=1.0)
    await asyncio.sleep(2.2)
    await store.renew([replace(held, ttl_s=30.0)])
    leases = await leases_of(store, group)
    assert leases["1"].expired
    assert not leases["0"].expired
    assert leases["0"].ttl_s == 30.0
    assert leases["1"].age_s > leases["0"].age_s + 0.9
    await store.close()


@check
async def a_weight_travels_with_the_renewal(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.renew([replace(held, weight=12.5)])
    assert (await leases_of(store, group))["0"].weight == 12.5
    await store.close()


@check
async def a_release_passes_the_lease_on_at_once(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    for _ in range(2):  # the answer may have been lost: again is harmless
        await store.release([replace(held, offered_to="b")])
    lease = (await leases_of(store, group))["0"]
    assert (lease.owner, lease.offered_to, lease.epoch) == (None, "b", held.epoch)
    assert list(await store.checkpoint([replace(held, checkpoint=at(5))])) == []
    assert await store.renew([held]) == Renewed()
    taken = await take(store, group, "0", "b")
    assert (taken.owner, taken.offered_to) == ("b", None)
    await store.close()


@check
async def members_are_known_without_owning_anything(open_store: OpenStore, group: Group) -> None:
    store, other = await open_store(), await open_store()
    await store.join(group, member("a"))
    await other.join(group, member("b", ttl_s=4.0))
    members = {m.instance: m for m in (await store.snapshot(group)).members}
    assert sorted(members) == ["a", "b"]
    assert members["b"].ttl_s == 4.0
    assert not members["a"].leaving
    assert await store.heartbeat(group, replace(member("a"), leaving=True))
    members = {m.instance: m for m in (await other.snapshot(group)).members}
    assert members["a"].leaving
    await store.leave(group, member("a"))
    assert [m.instance for m in (await other.snapshot(group)).members] == ["b"]
    await store.close()
    await other.close()


@check
async def a_silent_member_grows_old(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.join(group, member("a", ttl_s=1.0))
    await store.join(group, member("b", ttl_s=1.0))
    await asyncio.sleep(2.2)
    await store.heartbeat(group, member("b", ttl_s=30.0))
    members = {m.instance: m for m in (await store.snapshot(group)).members}
    assert members["a"].expired
    assert not members["b"].expired
    await store.close()


@check
async def the_newest_incarnation_has_the_name(open_store: OpenStore, group: Group) -> None:
    old, new = await open_store(), await open_store()
    await old.join(group, member("a", incarnation="1"))
    assert await old.heartbeat(group, member("a", incarnation="1"))
    await new.join(group, member("a", incarnation="2"))
    assert not await old.heartbeat(group, member("a", incarnation="1"))
    assert await new.heartbeat(group, member("a", incarnation="2"))
    await old.leave(group, member("a", incarnation="1"))
    assert [m.incarnation for m in (await new.snapshot(group)).members] == ["2"]
    await old.close()
    await new.close()


@check
async def a_forgotten_member_may_heartbeat_itself_back(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.join(group, member("a"))
    await store.leave(group, member("a"))
    assert await store.heartbeat(group, member("a"))
    assert [m.instance for m in (await store.snapshot(group)).members] == ["a"]
    await store.close()


@check
async def the_ownership_listing_has_every_field(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST, "1": EARLIEST})
    await take(store, group, "0", "a")
    snapshot = await store.snapshot(group)
    first, second = sorted(snapshot.ownership(), key=lambda row: row.partition)
    assert (first.namespace, first.hub, first.group) == (group.namespace, group.feed, group.name)
    assert (first.partition, first.owner) == ("0", "a")
    assert second.owner == ""
    assert abs(snapshot.taken_at - first.last_modified) < 60
    assert snapshot.taken_at > 1_600_000_000
    await store.close()


@check
async def verbs_on_nothing_do_nothing(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    ghost = Lease(group=group, partition="77", checkpoint=EARLIEST, owner="a", epoch=1, version="1")
    await store.create(group, {})
    assert list(await store.acquire([], "a", 10.0)) == []
    assert list(await store.acquire([ghost], "a", 10.0)) == []
    assert await store.renew([ghost]) == Renewed()
    assert list(await store.checkpoint([ghost])) == []
    assert list(await store.rewind([ghost])) == []
    assert not await store.split(ghost, {"770": EARLIEST})
    await store.release([ghost])
    await store.leave(group, member("nobody"))
    assert (await store.snapshot(group)).leases == ()
    await store.close()


@check
async def requests_are_counted(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    before = sum(store.requests.values())
    await store.create(group, {"0": EARLIEST})
    await store.snapshot(group)
    assert sum(store.requests.values()) >= before + 2
    await store.close()
