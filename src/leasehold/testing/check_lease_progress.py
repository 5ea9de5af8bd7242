"""Rules for lease stores: who may write how far a group has come, and what becomes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from leasehold.core.model import Checkpoint, Group
from leasehold.ports import Renewed
from leasehold.testing.lease_scenes import EARLIEST, Check, OpenStore, at, leases_of, member, take

CHECKS: list[Check] = []


def check(rule: Check) -> Check:
    CHECKS.append(rule)
    return rule


@check
async def renewals_and_checkpoints_of_one_owner_do_not_fight(
    open_store: OpenStore, group: Group
) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    for n in range(1, 4):
        assert (await store.renew([held])).kept
        kept = await store.checkpoint([replace(held, checkpoint=at(n))])
        assert [lease.checkpoint for lease in kept] == [at(n)]
    renewed, written = await asyncio.gather(
        store.renew([held]), store.checkpoint([replace(held, checkpoint=at(9))])
    )
    assert renewed.kept
    assert written
    assert (await leases_of(store, group))["0"].checkpoint == at(9)
    await store.close()


@check
async def a_stale_owner_can_write_nothing(open_store: OpenStore, group: Group) -> None:
    zombie, store = await open_store(), await open_store()
    await store.create(group, {"0": EARLIEST})
    stale = await take(zombie, group, "0", "a")
    await zombie.checkpoint([replace(stale, checkpoint=at(5))])
    current = await take(store, group, "0", "b")
    assert current.checkpoint == at(5)
    assert list(await zombie.checkpoint([replace(stale, checkpoint=at(50))])) == []
    assert list(await zombie.checkpoint([replace(stale, attempts=3)])) == []
    assert await zombie.renew([stale]) == Renewed()
    await zombie.release([replace(stale, offered_to="z")])
    assert not await zombie.split(stale, {"00": at(5), "01": at(5)})
    lease = (await leases_of(store, group))["0"]
    assert (lease.owner, lease.epoch) == ("b", current.epoch)
    assert lease.checkpoint == at(5)
    assert lease.attempts == 0
    kept = await store.checkpoint([replace(current, checkpoint=at(6))])
    assert [lease.checkpoint for lease in kept] == [at(6)]
    await zombie.close()
    await store.close()


@check
async def what_nobody_owns_nobody_writes(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    unowned = (await leases_of(store, group))["0"]
    assert await store.renew([unowned]) == Renewed()
    assert list(await store.checkpoint([replace(unowned, checkpoint=at(5))])) == []
    assert not await store.split(unowned, {"00": at(5)})
    assert (await leases_of(store, group))["0"].checkpoint == EARLIEST
    await store.close()


@check
async def the_same_owner_in_an_older_epoch_is_stale_too(
    open_store: OpenStore, group: Group
) -> None:
    before, after = await open_store(), await open_store()
    await before.create(group, {"0": EARLIEST})
    stale = await take(before, group, "0", "a")
    current = await take(after, group, "0", "a")
    assert current.epoch == stale.epoch + 1
    assert list(await before.checkpoint([replace(stale, checkpoint=at(3))])) == []
    assert await before.renew([stale]) == Renewed()
    await before.release([stale])
    assert (await leases_of(after, group))["0"].owner == "a"
    await before.close()
    await after.close()


@check
async def a_checkpoint_never_goes_back(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=at(10))])
    kept = await store.checkpoint([replace(held, checkpoint=at(4))])
    assert [lease.checkpoint for lease in kept] == [at(10)]
    lease = (await leases_of(store, group))["0"]
    assert lease.checkpoint == at(10)
    assert lease.advanced
    await store.close()


@check
async def writing_a_checkpoint_again_is_harmless(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    for _ in range(2):
        kept = await store.checkpoint([replace(held, checkpoint=at(3))])
        assert [lease.checkpoint for lease in kept] == [at(3)]
    await store.close()


@check
async def at_the_same_sequence_the_owner_s_last_token_counts(
    open_store: OpenStore, group: Group
) -> None:
    """Events may share a sequence, and a token tells how many of them are done."""
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    for token in ("7.1", "7.2"):
        told = Checkpoint(next_sequence=7, token=token)
        kept = await store.checkpoint([replace(held, checkpoint=told)])
        assert [lease.checkpoint for lease in kept] == [told]
    for told in (Checkpoint(next_sequence=7), Checkpoint(next_sequence=6, token="6")):
        await store.checkpoint([replace(held, checkpoint=told)])
    lease = (await leases_of(store, group))["0"]
    assert lease.checkpoint == Checkpoint(next_sequence=7, token="7.2")
    await store.close()


@check
async def several_checkpoints_in_one_call_fail_one_by_one(
    open_store: OpenStore, group: Group
) -> None:
    store, rival = await open_store(), await open_store()
    await store.create(group, dict.fromkeys("012", EARLIEST))
    held = [await take(store, group, p, "a") for p in "012"]
    await take(rival, group, "1", "b")
    kept = await store.checkpoint([replace(lease, checkpoint=at(8)) for lease in held])
    assert sorted(lease.partition for lease in kept) == ["0", "2"]
    leases = await leases_of(rival, group)
    assert [leases[p].checkpoint.next_sequence for p in "012"] == [8, 0, 8]
    await store.close()
    await rival.close()


@check
async def attempts_last_until_the_checkpoint_moves_on(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.checkpoint([replace(held, attempts=2)])
    lease = (await leases_of(store, group))["0"]
    assert lease.attempts == 2
    assert not lease.advanced
    taken = await take(store, group, "0", "b")
    assert taken.attempts == 2
    await store.checkpoint([replace(taken, checkpoint=at(1), attempts=0)])
    assert (await leases_of(store, group))["0"].attempts == 0
    await store.close()


@check
async def a_rewind_goes_back_and_fences_the_owner_off(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=at(20), attempts=2)])
    seen = (await leases_of(store, group))["0"]
    moved = await store.rewind([replace(seen, checkpoint=at(5))])
    assert [(lease.checkpoint, lease.owner) for lease in moved] == [(at(5), None)]
    assert list(await store.checkpoint([replace(held, checkpoint=at(21))])) == []
    lease = (await leases_of(store, group))["0"]
    assert (lease.checkpoint, lease.owner, lease.attempts) == (at(5), None, 0)
    assert lease.epoch > held.epoch
    taken = await take(store, group, "0", "b")
    assert taken.checkpoint == at(5)
    kept = await store.checkpoint([replace(taken, checkpoint=at(6))])
    assert [lease.checkpoint for lease in kept] == [at(6)]
    await store.close()


@check
async def a_rewind_from_an_older_look_is_refused(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": at(9)})
    seen = (await leases_of(store, group))["0"]
    await take(store, group, "0", "a")
    assert list(await store.rewind([replace(seen, checkpoint=at(1))])) == []
    assert (await leases_of(store, group))["0"].checkpoint == at(9)
    await store.close()


@check
async def a_split_replaces_the_parent_by_its_children(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    held = await take(store, group, "0", "a")
    await store.checkpoint([replace(held, checkpoint=at(30))])
    children = {"00": at(30), "01": at(31)}
    for _ in range(2):  # the answer may have been lost: again is harmless
        assert await store.split(held, children)
    snapshot = await store.snapshot(group)
    assert {lease.partition: lease.checkpoint for lease in snapshot.leases} == children
    assert all(lease.owner is None for lease in snapshot.leases)
    assert "0" in snapshot.replaced
    assert await store.renew([held]) == Renewed()
    await store.create(group, {"0": EARLIEST, "00": EARLIEST})
    again = await leases_of(store, group)
    assert {p: lease.checkpoint for p, lease in again.items()} == children
    await store.close()


@check
async def a_child_can_be_split_in_its_turn(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    await store.create(group, {"0": EARLIEST})
    await store.split(await take(store, group, "0", "a"), {"00": at(3), "01": at(3)})
    held = await take(store, group, "00", "a")
    await store.checkpoint([replace(held, checkpoint=at(8))])
    assert await store.split(held, {"000": at(8), "001": at(8)})
    assert sorted(await leases_of(store, group)) == ["000", "001", "01"]
    await store.close()


@check
async def a_childs_lease_made_beside_its_parents_takes_over_the_progress_unless_it_was_held(
    open_store: OpenStore, group: Group
) -> None:
    store, other = await open_store(), await open_store()
    begin, end = {"00": EARLIEST, "01": EARLIEST, "02": EARLIEST, "03": at(40)}, at(30)
    # An instance that saw no leases yet, but the split already, was a moment later than another.
    await store.create(group, {"0": EARLIEST})
    await other.create(group, begin)
    mine = await take(other, group, "01", "b")
    await other.checkpoint([replace(mine, checkpoint=at(35))])
    await store.rewind([replace((await leases_of(store, group))["02"], checkpoint=at(2))])
    held = await take(store, group, "0", "a")
    assert await store.split(held, dict.fromkeys(begin, end))
    found = {p: lease.checkpoint for p, lease in (await leases_of(other, group)).items()}
    assert found == {"00": end, "01": at(35), "02": at(2), "03": end}
    assert (await take(other, group, "00", "b")).checkpoint == end
    await store.close()
    await other.close()


@check
async def odd_names_come_back_as_they_were(open_store: OpenStore, group: Group) -> None:
    store = await open_store()
    odd = ["worker 1", "Wörker/ü", "a'b\"c", "x%2Fy", "UPPER", "line\nbreak", "#?&=;"]
    await store.create(group, dict.fromkeys(["0", "1"], EARLIEST))
    for name in odd:
        await store.join(group, member(name))
        held = await take(store, group, "0", name)
        assert held.owner == name
        assert (await leases_of(store, group))["0"].owner == name
        await store.release([replace(held, offered_to=name)])
        assert (await leases_of(store, group))["0"].offered_to == name
    assert sorted(m.instance for m in (await store.snapshot(group)).members) == sorted(odd)
    token = "cont; \"é\" {'a': [1, 2]}\n"
    held = await take(store, group, "1", "a")
    await store.checkpoint([replace(held, checkpoint=Checkpoint(next_sequence=1, token=token))])
    assert (await leases_of(store, group))["1"].checkpoint.token == token
    await store.close()
