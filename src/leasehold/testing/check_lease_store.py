"""What every lease store must do. A store is done when all of these pass.

``CHECKS`` lists the rules one by one, so that a test runner can report each by name;
``check_lease_store`` runs them all. A check gets a function that opens the store anew (all opened
stores share the same data, as two processes would) and a group that nobody else uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import uuid4

from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.ports import LeaseStore

OpenStore = Callable[[], Awaitable[LeaseStore]]
Check = Callable[[OpenStore, Group], Awaitable[None]]

CHECKS: list[Check] = []
EARLIEST = Checkpoint(next_sequence=0, token="-1")


def check(rule: Check) -> Check:
    CHECKS.append(rule)
    return rule


async def check_lease_store(open_store: OpenStore) -> None:
    for rule in CHECKS:
        await rule(open_store, any_group())


def any_group() -> Group:
    return Group(namespace="homes.local", feed="sensors", name=f"g-{uuid4().hex[:12]}")


@check
async def creating_makes_an_unowned_lease_at_its_start(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    start = Checkpoint(next_sequence=41, token="4100")
    await store.create(group, {"0": start, "1": EARLIEST})
    leases = await _leases(store, group)
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
    held = await _take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=_at(7))])
    await store.create(group, {"0": _at(99), "1": _at(5)})
    leases = await _leases(store, group)
    assert leases["0"].checkpoint == _at(7)
    assert leases["0"].owner == "a"
    assert leases["1"].checkpoint == _at(5)
    await store.close()


@check
async def many_creators_at_once_agree_on_one_start(open_store: OpenStore, group: Group) -> None:
    stores = [await open_store() for _ in range(6)]
    await asyncio.gather(
        *(store.create(group, {"0": _at(n), "1": _at(n)}) for n, store in enumerate(stores))
    )
    seen = [await _leases(store, group) for store in stores]
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
    await store.join(group, _member("a"))
    await _take(store, group, "0", "a")
    assert (await _leases(store, other))["0"].owner is None
    assert (await store.snapshot(other)).members == ()
    assert {group, other} <= set(await store.groups())
    await store.close()


@check
async def taking_a_lease_raises_its_epoch_by_one(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    first = await _take(store, group, "0", "a")
    second = await _take(store, group, "0", "b")
    assert (first.owner, second.owner) == ("a", "b")
    assert second.epoch == first.epoch + 1
    assert second.checkpoint == EARLIEST
    assert (await _leases(store, group))["0"].epoch == second.epoch
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
        stored = await _leases(stores[1], group)
        assert {p: stored[p].owner for p in partitions} == owners
    for store in stores:
        await store.close()


@check
async def a_renewal_defeats_a_claim_made_from_an_older_look(
    open_store: OpenStore, group: Group
) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    seen = (await rival.snapshot(group)).leases
    assert [lease.partition for lease in await store.renew([held])] == ["0"]
    assert list(await rival.acquire(seen, "b", 10.0)) == []
    assert (await _leases(store, group))["0"].owner == "a"
    await store.close()
    await rival.close()


@check
async def renewing_makes_a_lease_young_again_by_the_store_clock(
    open_store: OpenStore, group: Group
) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST, "1": EARLIEST})
    held = await _take(store, group, "0", "a", ttl_s=1.0)
    await _take(store, group, "1", "a", ttl_s=1.0)
    await asyncio.sleep(2.2)
    await store.renew([replace(held, ttl_s=30.0)])
    leases = await _leases(store, group)
    assert leases["1"].expired
    assert not leases["0"].expired
    assert leases["0"].ttl_s == 30.0
    assert leases["1"].age_s > leases["0"].age_s + 0.9
    await store.close()


@check
async def renewals_and_checkpoints_of_one_owner_do_not_fight(
    open_store: OpenStore, group: Group
) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    for n in range(1, 4):
        assert await store.renew([held])
        kept = await store.checkpoint([replace(held, checkpoint=_at(n))])
        assert [lease.checkpoint for lease in kept] == [_at(n)]
    both = await asyncio.gather(
        store.renew([held]), store.checkpoint([replace(held, checkpoint=_at(9))])
    )
    assert all(both)
    assert (await _leases(store, group))["0"].checkpoint == _at(9)
    await store.close()


@check
async def a_weight_travels_with_the_renewal(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    await store.renew([replace(held, weight=12.5)])
    assert (await _leases(store, group))["0"].weight == 12.5
    await store.close()


@check
async def a_stale_owner_can_write_nothing(open_store: OpenStore, group: Group) -> None:
    zombie, store = await open_store(), await open_store()
    await store.create(group, {"0": EARLIEST})
    stale = await _take(zombie, group, "0", "a")
    await zombie.checkpoint([replace(stale, checkpoint=_at(5))])
    current = await _take(store, group, "0", "b")
    assert current.checkpoint == _at(5)
    assert list(await zombie.checkpoint([replace(stale, checkpoint=_at(50))])) == []
    assert list(await zombie.checkpoint([replace(stale, attempts=3)])) == []
    assert list(await zombie.renew([stale])) == []
    await zombie.release([replace(stale, offered_to="z")])
    assert not await zombie.split(stale, {"00": _at(5), "01": _at(5)})
    lease = (await _leases(store, group))["0"]
    assert (lease.owner, lease.epoch) == ("b", current.epoch)
    assert lease.checkpoint == _at(5)
    assert lease.attempts == 0
    kept = await store.checkpoint([replace(current, checkpoint=_at(6))])
    assert [lease.checkpoint for lease in kept] == [_at(6)]
    await zombie.close()
    await store.close()


@check
async def what_nobody_owns_nobody_writes(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    unowned = (await _leases(store, group))["0"]
    assert list(await store.renew([unowned])) == []
    assert list(await store.checkpoint([replace(unowned, checkpoint=_at(5))])) == []
    assert not await store.split(unowned, {"00": _at(5)})
    assert (await _leases(store, group))["0"].checkpoint == EARLIEST
    await store.close()


@check
async def the_same_owner_in_an_older_epoch_is_stale_too(
    open_store: OpenStore, group: Group
) -> None:
    before, after = await open_store(), await open_store()
    await before.create(group, {"0": EARLIEST})
    stale = await _take(before, group, "0", "a")
    current = await _take(after, group, "0", "a")
    assert current.epoch == stale.epoch + 1
    assert list(await before.checkpoint([replace(stale, checkpoint=_at(3))])) == []
    assert list(await before.renew([stale])) == []
    await before.release([stale])
    assert (await _leases(after, group))["0"].owner == "a"
    await before.close()
    await after.close()


@check
async def a_checkpoint_never_goes_back(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=_at(10))])
    kept = await store.checkpoint([replace(held, checkpoint=_at(4))])
    assert [lease.checkpoint for lease in kept] == [_at(10)]
    lease = (await _leases(store, group))["0"]
    assert lease.checkpoint == _at(10)
    assert lease.advanced
    await store.close()


@check
async def writing_a_checkpoint_again_is_harmless(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    for _ in range(2):
        kept = await store.checkpoint([replace(held, checkpoint=_at(3))])
        assert [lease.checkpoint for lease in kept] == [_at(3)]
    await store.close()


@check
async def several_checkpoints_in_one_call_fail_one_by_one(
    open_store: OpenStore, group: Group
) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, dict.fromkeys("012", EARLIEST))
    held = [await _take(store, group, p, "a") for p in "012"]
    await _take(rival, group, "1", "b")
    kept = await store.checkpoint([replace(lease, checkpoint=_at(8)) for lease in held])
    assert sorted(lease.partition for lease in kept) == ["0", "2"]
    leases = await _leases(rival, group)
    assert [leases[p].checkpoint.next_sequence for p in "012"] == [8, 0, 8]
    await store.close()
    await rival.close()


@check
async def attempts_last_until_the_checkpoint_moves_on(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    await store.checkpoint([replace(held, attempts=2)])
    lease = (await _leases(store, group))["0"]
    assert lease.attempts == 2
    assert not lease.advanced
    taken = await _take(store, group, "0", "b")
    assert taken.attempts == 2
    await store.checkpoint([replace(taken, checkpoint=_at(1), attempts=0)])
    assert (await _leases(store, group))["0"].attempts == 0
    await store.close()


@check
async def a_release_passes_the_lease_on_at_once(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    for _ in range(2):  # the answer may have been lost: again is harmless
        await store.release([replace(held, offered_to="b")])
    lease = (await _leases(store, group))["0"]
    assert (lease.owner, lease.offered_to, lease.epoch) == (None, "b", held.epoch)
    assert list(await store.checkpoint([replace(held, checkpoint=_at(5))])) == []
    assert list(await store.renew([held])) == []
    taken = await _take(store, group, "0", "b")
    assert (taken.owner, taken.offered_to) == ("b", None)
    await store.close()


@check
async def a_rewind_goes_back_and_fences_the_owner_off(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=_at(20), attempts=2)])
    seen = (await _leases(store, group))["0"]
    moved = await store.rewind([replace(seen, checkpoint=_at(5))])
    assert [(lease.checkpoint, lease.owner) for lease in moved] == [(_at(5), None)]
    assert list(await store.checkpoint([replace(held, checkpoint=_at(21))])) == []
    lease = (await _leases(store, group))["0"]
    assert (lease.checkpoint, lease.owner, lease.attempts) == (_at(5), None, 0)
    assert lease.epoch > held.epoch
    taken = await _take(store, group, "0", "b")
    assert taken.checkpoint == _at(5)
    kept = await store.checkpoint([replace(taken, checkpoint=_at(6))])
    assert [lease.checkpoint for lease in kept] == [_at(6)]
    await store.close()


@check
async def a_rewind_from_an_older_look_is_refused(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": _at(9)})
    seen = (await _leases(store, group))["0"]
    await _take(store, group, "0", "a")
    assert list(await store.rewind([replace(seen, checkpoint=_at(1))])) == []
    assert (await _leases(store, group))["0"].checkpoint == _at(9)
    await store.close()


@check
async def a_split_replaces_the_parent_by_its_children(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await _take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=_at(30))])
    children = {"00": _at(30), "01": _at(31)}
    for _ in range(2):  # the answer may have been lost: again is harmless
        assert await store.split(held, children)
    snapshot = await store.snapshot(group)
    assert {lease.partition: lease.checkpoint for lease in snapshot.leases} == children
    assert all(lease.owner is None for lease in snapshot.leases)
    assert "0" in snapshot.replaced
    assert list(await store.renew([held])) == []
    await store.create(group, {"0": EARLIEST, "00": EARLIEST})
    again = await _leases(store, group)
    assert {p: lease.checkpoint for p, lease in again.items()} == children
    await store.close()


@check
async def a_child_can_be_split_in_its_turn(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    await store.split(await _take(store, group, "0", "a"), {"00": _at(3), "01": _at(3)})
    held = await _take(store, group, "00", "a")
    await store.checkpoint([replace(held, checkpoint=_at(8))])
    assert await store.split(held, {"000": _at(8), "001": _at(8)})
    assert sorted(await _leases(store, group)) == ["000", "001", "01"]
    await store.close()


@check
async def a_childs_lease_made_beside_its_parents_takes_over_the_progress_unless_it_was_held(
    open_store: OpenStore, group: Group
) -> None:
    store, other = await open_store(), await open_store()
    begin, end = {"00": EARLIEST, "01": EARLIEST, "02": EARLIEST, "03": _at(40)}, _at(30)
    # An instance that saw no leases yet, but the split already, was a moment later than another.
    await store.create(group, {"0": EARLIEST})
    await other.create(group, begin)
    mine = await _take(other, group, "01", "b")
    await other.checkpoint([replace(mine, checkpoint=_at(35))])
    await store.rewind([replace((await _leases(store, group))["02"], checkpoint=_at(2))])
    held = await _take(store, group, "0", "a")
    assert await store.split(held, dict.fromkeys(begin, end))
    found = {p: lease.checkpoint for p, lease in (await _leases(other, group)).items()}
    assert found == {"00": end, "01": _at(35), "02": _at(2), "03": end}
    assert (await _take(other, group, "00", "b")).checkpoint == end
    await store.close()
    await other.close()


@check
async def members_are_known_without_owning_anything(open_store: OpenStore, group: Group) -> None:
    store, other = await open_store(), await open_store()
    await store.join(group, _member("a"))
    await other.join(group, _member("b", ttl_s=4.0))
    members = {m.instance: m for m in (await store.snapshot(group)).members}
    assert sorted(members) == ["a", "b"]
    assert members["b"].ttl_s == 4.0
    assert not members["a"].leaving
    assert await store.heartbeat(group, replace(_member("a"), leaving=True))
    members = {m.instance: m for m in (await other.snapshot(group)).members}
    assert members["a"].leaving
    await store.leave(group, _member("a"))
    assert [m.instance for m in (await other.snapshot(group)).members] == ["b"]
    await store.close()
    await other.close()


@check
async def a_silent_member_grows_old(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.join(group, _member("a", ttl_s=1.0))
    await store.join(group, _member("b", ttl_s=1.0))
    await asyncio.sleep(2.2)
    await store.heartbeat(group, _member("b", ttl_s=30.0))
    members = {m.instance: m for m in (await store.snapshot(group)).members}
    assert members["a"].expired
    assert not members["b"].expired
    await store.close()


@check
async def the_newest_incarnation_has_the_name(open_store: OpenStore, group: Group) -> None:
    old, new = await open_store(), await open_store()
    await old.join(group, _member("a", incarnation="1"))
    assert await old.heartbeat(group, _member("a", incarnation="1"))
    await new.join(group, _member("a", incarnation="2"))
    assert not await old.heartbeat(group, _member("a", incarnation="1"))
    assert await new.heartbeat(group, _member("a", incarnation="2"))
    await old.leave(group, _member("a", incarnation="1"))
    assert [m.incarnation for m in (await new.snapshot(group)).members] == ["2"]
    await old.close()
    await new.close()


@check
async def a_forgotten_member_may_heartbeat_itself_back(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.join(group, _member("a"))
    await store.leave(group, _member("a"))
    assert await store.heartbeat(group, _member("a"))
    assert [m.instance for m in (await store.snapshot(group)).members] == ["a"]
    await store.close()


@check
async def odd_names_come_back_as_they_were(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    odd = ["worker 1", "Wörker/ü", "a'b\"c", "x%2Fy", "UPPER", "line\nbreak", "#?&=;"]
    await store.create(group, dict.fromkeys(["0", "1"], EARLIEST))
    for name in odd:
        await store.join(group, _member(name))
        held = await _take(store, group, "0", name)
        assert held.owner == name
        assert (await _leases(store, group))["0"].owner == name
        await store.release([replace(held, offered_to=name)])
        assert (await _leases(store, group))["0"].offered_to == name
    assert sorted(m.instance for m in (await store.snapshot(group)).members) == sorted(odd)
    token = "cont; \"é\" {'a': [1, 2]}\n"
    held = await _take(store, group, "1", "a")
    await store.checkpoint([replace(held, checkpoint=Checkpoint(next_sequence=1, token=token))])
    assert (await _leases(store, group))["1"].checkpoint.token == token
    await store.close()


@check
async def the_ownership_listing_has_every_field(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST, "1": EARLIEST})
    await _take(store, group, "0", "a")
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
    assert list(await store.renew([ghost])) == []
    assert list(await store.checkpoint([ghost])) == []
    assert list(await store.rewind([ghost])) == []
    assert not await store.split(ghost, {"770": EARLIEST})
    await store.release([ghost])
    await store.leave(group, _member("nobody"))
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


def _at(sequence: int) -> Checkpoint:
    return Checkpoint(next_sequence=sequence, token=str(sequence * 100))


def _member(instance: str, incarnation: str = "1", ttl_s: float = 10.0) -> Member:
    return Member(instance=instance, incarnation=incarnation, ttl_s=ttl_s)


async def _leases(store: LeaseStore, group: Group) -> dict[str, Lease]:
    return {lease.partition: lease for lease in (await store.snapshot(group)).leases}


async def _take(
    store: LeaseStore, group: Group, partition: str, owner: str, ttl_s: float = 10.0
) -> Lease:
    seen = (await _leases(store, group))[partition]
    (lease,) = await store.acquire([seen], owner, ttl_s)
    return lease
