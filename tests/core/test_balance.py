import math
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.balance import (
    Plan,
    Timing,
    by_count,
    by_weight,
    expires_in_s,
    live_members,
    missing,
    next_look_s,
    plan,
    spread,
)
from leasehold.core.model import Checkpoint, Group, Lease, Member, Partition, Snapshot

GROUP = Group(namespace="n", feed="f", name="g")
TIMING = Timing(lease_ttl_s=10, balance_interval_s=3, shed_timeout_s=60)

names = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=10, unique=True)
partitions = st.lists(st.integers(0, 60).map(lambda n: f"{n:02d}"), max_size=40, unique=True)


@st.composite
def standings(draw):
    """Partitions, members, and current owners, some of whom may be gone."""
    parts, members = draw(partitions), draw(names)
    owner = st.sampled_from([*members, "gone"]) | st.none()
    current = {p: o for p in parts if (o := draw(owner)) is not None}
    return parts, current, members


def lease(partition, owner=None, *, age_s=0.0, epoch=1, offered_to=None, weight=1.0, ttl_s=10.0):
    return Lease(
        group=GROUP,
        partition=partition,
        checkpoint=Checkpoint(next_sequence=0),
        owner=owner,
        epoch=epoch,
        age_s=age_s,
        ttl_s=ttl_s,
        offered_to=offered_to,
        weight=weight,
    )


def member(name, *, age_s=0.0, leaving=False):
    return Member(instance=name, incarnation="1", age_s=age_s, leaving=leaving)


def snapshot(*leases, members="", replaced=()):
    return Snapshot(
        leases=leases,
        members=tuple(m if isinstance(m, Member) else member(m) for m in members),
        replaced=frozenset(replaced),
    )


def plan_of(me, look, *, held=(), waiting=None, now=0.0, known=None, **settings) -> Plan:
    known = known or [Partition(id=each.partition) for each in look.leases]
    return plan(
        look,
        known,
        me=me,
        held=held,
        waiting=waiting or {},
        now=now,
        timing=TIMING,
        **settings,
    )


def counts(target, members):
    return sorted(list(target.values()).count(m) for m in members)


# by_count


@given(standings())
def test_every_partition_has_a_live_owner_and_the_spread_is_at_most_one(standing):
    parts, current, members = standing
    target = by_count(parts, current, members, {})
    assert set(target) == set(parts)
    assert set(target.values()) <= set(members)
    assert max(counts(target, members)) - min(counts(target, members)) <= 1


@given(standings(), st.randoms(use_true_random=False))
def test_the_target_does_not_depend_on_the_order_things_are_listed_in(standing, random):
    parts, current, members = standing
    expected = by_count(parts, current, members, {})
    random.shuffle(parts)
    random.shuffle(members)
    shuffled = list(current.items())
    random.shuffle(shuffled)
    assert by_count(parts, dict(shuffled), members, {}) == expected


@given(standings())
def test_a_balanced_target_is_left_as_it_is(standing):
    parts, current, members = standing
    target = by_count(parts, current, members, {})
    assert by_count(parts, target, members, {}) == target


@given(standings(), st.data())
def test_a_target_that_is_carried_out_in_part_stays_the_target(standing, data):
    """Or those who look meanwhile would send leases elsewhere, and somebody would get too many."""
    parts, current, members = standing
    target = by_count(parts, current, members, {})
    done = data.draw(st.sets(st.sampled_from(parts))) if parts else ()
    assert by_count(parts, current | {p: target[p] for p in done}, members, {}) == target


@given(standings())
def test_no_other_even_target_moves_fewer(standing):
    parts, current, members = standing
    moved = _moves(by_count(parts, current, members, {}), current, members)
    owned = {m: sum(1 for o in current.values() if o == m) for m in members}
    low, extra = divmod(len(parts), len(members))
    # Whoever gets the larger quotas, what is above the quotas has to move.
    least = min(
        sum(max(0, owned[m] - low - (m in larger)) for m in members)
        for larger in _choices(members, extra, owned)
    )
    assert moved == least


def _choices(members, extra, owned):
    """Sets of members with the larger quota; ranked by ownership, only prefixes can be best."""
    ranked = sorted(members, key=lambda m: -owned[m])
    return [set(ranked[:extra])]


@given(st.integers(1, 5), st.integers(1, 3), st.data())
def test_the_moves_are_the_fewest_of_all_even_targets_tried_one_by_one(size, crowd, data):
    parts = [str(n) for n in range(size)]
    members = "abc"[:crowd]
    current = {p: o for p in parts if (o := data.draw(st.sampled_from([*members, None])))}
    even = [
        dict(zip(parts, owners, strict=True))
        for owners in product(members, repeat=size)
        if max(counts_ := [owners.count(m) for m in members]) - min(counts_) <= 1
    ]
    least = min(_moves(target, current, members) for target in even)
    assert _moves(by_count(parts, current, members, {}), current, members) == least


def _moves(target, current, members):
    """Partitions that a member has and must give away."""
    return sum(1 for p, o in current.items() if o in members and target[p] != o)


def test_members_beyond_the_number_of_partitions_stand_by():
    target = by_count(["0", "1"], {"0": "a", "1": "b"}, "abcd", {})
    assert target == {"0": "a", "1": "b"}


def test_no_member_means_no_target():
    assert by_count(["0"], {}, [], {}) == {}
    assert by_weight()(["0"], {}, [], {}) == {}


@pytest.mark.parametrize(
    ("before", "after", "moves"), [(1, 3, 21), (1, 12, 29), (1, 20, 30), (20, 5, 0)]
)
def test_scaling_32_partitions_moves_only_what_it_must(before, after, moves):
    """What stays was enough for its owner before; scaling in, what the leavers had is unowned."""
    parts = [f"{n:02d}" for n in range(32)]
    old = [f"i{n:02d}" for n in range(before)]
    new = [f"i{n:02d}" for n in range(after)]
    current = by_count(parts, {}, old, {})
    kept = {p: o for p, o in current.items() if o in new}
    target = by_count(parts, kept, new, {})
    assert _moves(target, kept, new) == moves
    assert max(counts(target, new)) - min(counts(target, new)) <= 1


# by_weight


@given(standings(), st.data())
def test_weights_are_evened_out_as_far_as_single_moves_can(standing, data):
    parts, current, members = standing
    # Whole numbers: no ties that only rounding makes.
    weights = {p: float(data.draw(st.integers(0, 1000))) for p in parts}
    target = by_weight(0.2)(parts, current, members, weights)
    assert set(target) == set(parts)
    assert set(target.values()) <= set(members)
    load = {m: sum(weights[p] for p in parts if target[p] == m) for m in members}
    gap = max(load.values()) - min(load.values())
    heavy = max(load, key=lambda name: (load[name], name))
    mean = sum(load.values()) / len(members)
    helpful = [p for p in parts if target[p] == heavy and 0 < weights[p] < gap * (1 - 1e-9)]
    assert gap <= 0.2 * mean * (1 + 1e-9) or not helpful


@given(standings(), st.data())
def test_a_weighted_target_is_stable(standing, data):
    parts, current, members = standing
    weights = {p: float(data.draw(st.integers(0, 50))) for p in parts}
    target = by_weight()(parts, current, members, weights)
    assert by_weight()(parts, target, members, weights) == target


def test_a_small_imbalance_of_weights_moves_nothing():
    current = {"0": "a", "1": "a", "2": "b"}
    weights = {"0": 5.0, "1": 5.5, "2": 9.5}
    assert by_weight(0.2)(list(current), current, "ab", weights) == current
    assert by_weight(0.0)(list(current), current, "ab", weights) == current


def test_one_hot_partition_gets_a_member_of_its_own():
    parts = [str(n) for n in range(8)]
    weights = dict.fromkeys(parts, 10.0) | {"0": 70.0}
    target = by_weight()(parts, dict.fromkeys(parts, "a"), "ab", weights)
    assert [p for p in parts if target[p] == target["0"]] == ["0"]


# missing, members


def test_a_new_partition_needs_a_lease():
    look = snapshot(lease("0"))
    assert missing(look, [Partition(id="0"), Partition(id="1")]) == ("1",)


def test_a_child_waits_for_its_parents_lease_to_be_split():
    known = [Partition(id="0.0", ancestors=("0",)), Partition(id="0.1", ancestors=("0",))]
    assert missing(snapshot(lease("0", "a")), known) == ()
    assert missing(snapshot(), known) == ("0.0", "0.1")


def test_a_replaced_partition_never_gets_a_lease_again():
    look = snapshot(lease("0.0"), lease("0.1"), replaced=["0"])
    assert missing(look, [Partition(id="0")]) == ()


def test_silent_and_leaving_members_do_not_count_but_owners_without_heartbeat_do():
    look = snapshot(
        lease("0", "stock"),
        lease("1", "dead", age_s=11),
        members=[member("a"), member("b", age_s=11), member("c", leaving=True)],
    )
    assert live_members(look) == {"a", "stock"}


def test_an_owner_that_is_leaving_does_not_count_although_it_still_owns():
    look = snapshot(lease("0", "c"), members=[member("a"), member("c", leaving=True)])
    assert live_members(look) == {"a"}


# plan


@st.composite
def looks(draw):
    crowd = draw(names)
    owner = st.sampled_from([*crowd, "dead"]) | st.none()
    leases = [
        lease(
            p,
            draw(owner),
            age_s=draw(st.sampled_from([0.0, 2.0, 5.0, 11.0, 20.0])),
            offered_to=draw(owner),
        )
        for p in draw(partitions)
    ]
    members = [
        member(m, age_s=draw(st.sampled_from([0.0, 11.0])), leaving=draw(st.booleans()))
        for m in crowd
    ]
    return snapshot(*leases, members=members), crowd


@given(looks())
def test_a_live_owner_that_heartbeats_is_not_robbed(look_and_crowd):
    look, crowd = look_and_crowd
    for me in crowd:
        for taken in plan_of(me, look).take:
            assert not taken.live or taken.owner in (me, "dead")


@given(looks())
def test_at_first_sight_no_two_instances_take_the_same_lease(look_and_crowd):
    look, crowd = look_and_crowd
    alive = [m for m in crowd if m in live_members(look)]
    takes = [
        t.partition
        for me in alive
        for t in plan_of(me, look, held=[x.partition for x in look.leases if x.owner == me]).take
    ]
    assert len(takes) == len(set(takes))


@given(looks())
def test_together_the_plans_reach_an_even_spread_in_one_round(look_and_crowd):
    look, crowd = look_and_crowd
    alive = sorted(live_members(look) & set(crowd))
    if not alive or "dead" in live_members(look):
        return
    owner = {x.partition: x.owner for x in look.leases if x.live}
    late = [x for x in look.leases if x.owner in alive and not x.live]
    if late:  # two may try for these, and the store decides
        return
    for me in alive:
        todo = plan_of(me, look, held=[p for p, o in owner.items() if o == me])
        owner |= {t.partition: me for t in todo.take}
        owner |= {p: to for p, to in todo.shed.items() if to}
    done = snapshot(*(lease(p, o) for p, o in owner.items()), members=alive)
    stuck = [x for x in look.leases if x.live and x.owner not in alive]
    if not stuck:
        assert set(owner) == {x.partition for x in look.leases}
        assert spread(done, [Partition(id=p) for p in owner]) <= 1


def test_no_move_when_the_spread_is_one():
    look = snapshot(lease("0", "a"), lease("1", "a"), lease("2", "b"), members="ab")
    for me, held in (("a", ["0", "1"]), ("b", ["2"])):
        todo = plan_of(me, look, held=held)
        assert (todo.take, dict(todo.shed), todo.settled) == ((), {}, True)


def test_an_owner_sheds_to_a_member_that_has_too_little():
    look = snapshot(*(lease(str(n), "a") for n in range(4)), members="ab")
    todo = plan_of("a", look, held="0123")
    assert len(todo.shed) == 2
    assert set(todo.shed.values()) == {"b"}
    assert not todo.settled
    assert plan_of("b", look).take == ()


def test_what_to_shed_is_decided_a_moment_after_somebody_came():
    """Of many that start together some may be seen before the others; what they were given would
    have to move once more."""
    few = snapshot(*(lease(str(n), "a") for n in range(6)), members="ab")
    first = plan_of("a", few, held="012345", met={"a"})
    assert (first.look_again, dict(first.shed), first.settled) == (True, {}, False)
    more = snapshot(*few.leases, members="abc")
    second = plan_of("a", more, held="012345", met=first.members)
    assert (second.look_again, dict(second.shed)) == (True, {})
    third = plan_of("a", more, held="012345", met=second.members)
    assert not third.look_again
    assert sorted(third.shed.values()) == ["b", "b", "c", "c"]


def test_somebody_new_puts_off_neither_taking_nor_leaving():
    look = snapshot(lease("0", "a"), lease("1"), lease("2"), members="ab")
    todo = plan_of("a", look, held="0", met=())
    assert (len(todo.take), todo.look_again) == (1, False)
    todo = plan_of("a", look, held="0", met=(), leaving=True)
    assert (dict(todo.shed), todo.look_again) == ({"0": "b"}, False)


def test_a_released_lease_goes_to_the_member_it_was_offered_to():
    look = snapshot(lease("0", offered_to="b"), lease("1", "a"), members="abc")
    assert [t.partition for t in plan_of("b", look).take] == ["0"]
    assert plan_of("c", look).take == ()


def test_an_expired_lease_is_taken_by_one_member_only():
    look = snapshot(lease("0", "dead", age_s=10.5), members="abc")
    takers = [me for me in "abc" if plan_of(me, look).take]
    assert len(takers) == 1


def test_a_lease_from_an_earlier_life_is_taken_up_at_once():
    look = snapshot(lease("0", "a", age_s=1.0), members="a")
    assert [t.partition for t in plan_of("a", look).take] == ["0"]
    assert plan_of("a", look, held=["0"]).take == ()


def test_an_owner_that_is_late_but_alive_keeps_its_lease():
    look = snapshot(lease("0", "a", age_s=11.0), lease("1", "b"), members="abc")
    assert [t.partition for t in plan_of("a", look).take] == ["0"]
    assert plan_of("c", look).take == ()


def test_a_lease_whose_taker_does_not_come_is_rescued_by_anyone():
    def look(age_s):
        return snapshot(lease("0", offered_to="b", age_s=age_s), members="abc")

    early = plan_of("c", look(3.0), now=100.0)
    assert early.take == ()
    assert not early.settled
    late = plan_of("c", look(4.0), waiting=early.waiting, now=101.0)
    assert [t.partition for t in late.take] == ["0"]


def test_after_a_night_without_instances_the_first_one_up_leaves_the_others_their_share():
    look = snapshot(*(lease(str(n), age_s=9999) for n in range(4)), members="ab")
    assert len(plan_of("a", look).take) == 2
    assert len(plan_of("b", look).take) == 2


def test_an_owner_that_does_not_let_go_is_overruled_after_the_timeout():
    look = snapshot(lease("0", "a"), lease("1", "a"), members="ab")
    first = plan_of("b", look, now=100.0)
    assert first.take == ()
    assert len(first.waiting) == 1
    still = plan_of("b", look, waiting=first.waiting, now=159.0)
    assert still.take == ()
    last = plan_of("b", look, waiting=still.waiting, now=160.0)
    assert len(last.take) == 1


def test_the_waiting_starts_anew_when_the_lease_changed_hands():
    look = snapshot(lease("0", "a", epoch=2), lease("1", "a", epoch=2), members="ab")
    todo = plan_of("b", look, waiting={("0", 1): 0.0, ("1", 1): 0.0}, now=1000.0)
    assert todo.take == ()


def test_an_owner_without_heartbeat_is_overruled_at_once_for_it_never_sheds():
    look = snapshot(lease("0", "stock"), lease("1", "stock"), members="a")
    assert len(plan_of("a", look).take) == 1


def test_a_leaving_instance_takes_nothing_and_sheds_everything():
    look = snapshot(lease("0", "a"), lease("1"), members=[member("a", leaving=True), member("b")])
    todo = plan_of("a", look, held=["0"], leaving=True)
    assert todo.take == ()
    assert dict(todo.shed) == {"0": "b"}


def test_the_last_instance_releases_to_nobody_in_particular():
    look = snapshot(lease("0", "a"), members=[member("a", leaving=True)])
    assert dict(plan_of("a", look, held=["0"], leaving=True).shed) == {"0": None}


def test_a_partition_that_is_gone_is_let_go_and_not_taken_again():
    look = snapshot(lease("0", "a"), lease("9"), members="a")
    todo = plan_of("a", look, held=["0", "9"], known=[Partition(id="0")])
    assert dict(todo.shed) == {"9": None}
    assert plan_of("a", look, known=[Partition(id="0")], held=["0"]).take == ()


def test_a_split_parent_is_still_read_while_its_lease_exists():
    look = snapshot(lease("0"), members="a")
    known = [Partition(id="0.0", ancestors=("0",)), Partition(id="0.1", ancestors=("0",))]
    assert [t.partition for t in plan_of("a", look, known=known).take] == ["0"]


def test_a_child_with_a_lease_of_its_own_still_waits_for_its_parent():
    """Two instances may make the leases of parent and child, each without seeing the other's."""
    known = [
        Partition(id="0.0.0", ancestors=("0.0", "0")),
        Partition(id="0.0.1", ancestors=("0.0", "0")),
        Partition(id="0.1", ancestors=("0",)),
    ]
    look = snapshot(lease("0"), lease("0.0"), lease("0.1"), members="a")
    assert [t.partition for t in plan_of("a", look, known=known).take] == ["0"]
    look = snapshot(lease("0.0"), lease("0.0.1"), lease("0.1"), members="a", replaced=["0"])
    assert [t.partition for t in plan_of("a", look, known=known).take] == ["0.0", "0.1"]


def test_weights_in_the_leases_drive_the_weighted_plan():
    look = snapshot(lease("0", "a", weight=100.0), lease("1", "a"), lease("2", "b"), members="ab")
    todo = plan_of("a", look, held=["0", "1"], assign=by_weight())
    assert dict(todo.shed) == {"1": "b"}


def test_looks_are_closer_together_while_leases_change_hands_but_not_for_ever():
    assert next_look_s(None, TIMING) == 3
    assert next_look_s(1.0, TIMING) == 1
    assert next_look_s(21.0, TIMING) == 3


def test_the_expiry_of_another_members_lease_is_foreseen():
    fresh, silent = lease("0", "a", age_s=1.0), lease("1", "b", age_s=8.5)
    mine, gone = lease("2", "me", age_s=9.9), lease("3", "c", age_s=10.5)
    assert expires_in_s(snapshot(fresh, silent, mine, gone), "me") == 1.5
    assert expires_in_s(snapshot(mine, gone, lease("4")), "me") == math.inf


def test_every_order_of_four_joins_ends_even():
    """Members that come one after another, in any order, each shed and taken in full between."""
    for order in permutations("abcd"):
        owner = {}
        for upto in range(1, 5):
            owner = by_count([str(n) for n in range(10)], owner, order[:upto], {})
            assert max(counts(owner, order[:upto])) - min(counts(owner, order[:upto])) <= 1
