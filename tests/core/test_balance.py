import math
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.balance import (
    Plan,
    _even_out,
    _exact,
    by_count,
    by_weight,
    expires_in_s,
    leasable,
    live_members,
    missing,
    next_look_s,
    plan,
    read_by_others,
    spread,
)
from leasehold.core.model import Checkpoint, Group, Lease, Member, Partition, Snapshot
from leasehold.settings import Timing

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
    weights = {p: float(data.draw(st.integers(1, 1000))) for p in parts}
    target = by_weight(0.2)(parts, current, members, weights)
    assert set(target) == set(parts)
    assert set(target.values()) <= set(members)
    load = {m: sum(weights[p] for p in parts if target[p] == m) for m in members}
    gap = max(load.values()) - min(load.values())
    heavy = max(load, key=lambda name: (load[name], name))
    mean = sum(load.values()) / len(members)
    helpful = [p for p in parts if target[p] == heavy and 0 < weights[p] < gap * (1 - 1e-9)]
    assert gap <= 0.2 * mean * (1 + 1e-9) or not helpful


# Whatever a store may hold: fractions, huge ratios, nothing, and what is no number at all.
some_weight = (
    st.integers(0, 50).map(float)
    | st.integers(0, 30).map(lambda n: n / 3)
    | st.floats(0, 1e6)
    | st.sampled_from([0.0, -1.0, 5e-324, 1e-300, 1e300, 1.7e308, math.nan, math.inf, -math.inf])
)


@st.composite
def weighted(draw):
    parts, current, members = draw(standings())
    return parts, current, members, {p: draw(some_weight) for p in parts}


def test_thirds_do_not_send_one_partition_back_and_forth_for_ever():
    weights = {"0": 22 / 3, "1": 5 / 3, "2": 22 / 3}
    for current in product("ab", repeat=3):
        owners = dict(zip("012", current, strict=True))
        target = by_weight()("012", owners, "ab", weights)
        assert by_weight()("012", target, "ab", weights) == target


@given(weighted(), st.floats(0, 2))
def test_evening_out_weights_ends_and_every_move_lowers_the_load_of_the_heaviest(case, threshold):
    parts, current, members, weights = case
    exact = _exact(weights)
    owned = {m: [(exact[p], p) for p in parts if current.get(p) == m] for m in members}
    loads = {m: sum(weight for weight, _ in mine) for m, mine in owned.items()}
    moves = []

    class Noted(list):
        def remove(self, entry):
            moves.append(entry)
            assert len(moves) <= len(parts) ** 2, "it goes on for ever"
            super().remove(entry)

    before = max(loads.values())
    _even_out(noted := {m: Noted(mine) for m, mine in owned.items()}, dict(loads), threshold)
    after = {m: sum(weight for weight, _ in mine) for m, mine in noted.items()}
    assert max(after.values()) <= before
    assert sum(after.values()) == sum(loads.values())
    squares = [sum(load**2 for load in each.values()) for each in (loads, after)]
    assert squares[1] < squares[0] if moves else squares[1] == squares[0]


@given(weighted(), st.randoms(use_true_random=False))
def test_every_instance_computes_the_same_weighted_target_and_leaves_it_as_it_is(case, random):
    parts, current, members, weights = case
    target = by_weight()(parts, current, members, weights)
    assert set(target) == set(parts)
    assert set(target.values()) <= set(members)
    assert by_weight()(parts, target, members, weights) == target
    random.shuffle(parts)
    random.shuffle(members)
    shuffled = [list(each.items()) for each in (current, weights)]
    for each in shuffled:
        random.shuffle(each)
    assert by_weight()(parts, dict(shuffled[0]), members, dict(shuffled[1])) == target


@given(weighted())
def test_nobody_gets_more_weight_than_the_heaviest_had_unless_leases_without_owner_are_dealt_out(
    case,
):
    _, current, members, weights = case
    owned = {p: owner for p, owner in current.items() if owner in members}
    target = by_weight()(list(owned), owned, members, weights)
    exact = _exact({p: weights[p] for p in owned})
    before, after = (
        max(sum(exact[p] for p in owned if each[p] == m) for m in members)
        for each in (owned, target)
    )
    assert after <= before


@given(weighted())
def test_a_weight_that_is_not_known_counts_as_the_others_do_on_average(case):
    parts, _, _, weights = case
    exact = _exact(weights)
    known = [p for p in parts if 0 < weights[p] < math.inf]
    usual = sum(exact[p] for p in known) // len(known) if known else 1
    assert all(exact[p] == usual for p in set(parts) - set(known))


def test_whoever_was_measured_first_does_not_look_heavy():
    """Or the leases of an instance that came a moment earlier would all be shed to the others."""
    current = {p: "ab"[n // 4] for n, p in enumerate("01234567")}
    measured = dict.fromkeys("0123", 345.0)
    assert by_weight()(list(current), current, "ab", measured) == current


def test_a_threshold_that_is_no_share_is_refused():
    for wrong in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="threshold must be 0 or more"):
            by_weight(wrong)


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


def test_who_may_be_dead_gets_nothing_and_keeps_what_it_has():
    two = [lease(p, "a") for p in "0123"] + [lease(p, "b") for p in "45"]
    look = snapshot(*two, members="abc")
    assert plan_of("a", look, held="0123").shed == {"2": "c", "3": "c"}
    doubtful = replace(look, doubted=frozenset("bc"))
    calm = plan_of("a", doubtful, held="0123")
    assert (calm.shed, calm.take, calm.settled) == ({}, (), False)
    dead = [replace(each, age_s=30.0) if each.owner == "b" else each for each in two]
    both = replace(snapshot(*dead, members="a"), doubted=frozenset("c"))
    assert {each.partition for each in plan_of("a", both, held="0123").take} == {"4", "5"}


def test_what_was_given_up_is_left_to_those_who_may_be_alive_too():
    """After a silence of its own an instance doubts all others, and they are still the better ones
    to take what hangs here."""
    look = snapshot(lease("0"), lease("1", "b"), members="ab")
    for seen in (look, replace(look, doubted=frozenset("b"))):
        assert plan_of("a", seen, given_up={"0"}).take == ()
    alone = snapshot(lease("0"), members="a")
    assert [each.partition for each in plan_of("a", alone, given_up={"0"}).take] == ["0"]


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


def test_an_owner_that_keeps_what_was_offered_in_vain_is_given_its_time_again_after_that():
    look = snapshot(lease("0", "a", epoch=3), lease("1", "a", epoch=3), members="ab")
    kept = plan_of("b", look, waiting={("1", 3, True): 0.0}, missed={("1", 3)}, now=300.0)
    assert kept.take == ()
    late = plan_of("b", look, waiting=kept.waiting, now=359.0)
    assert late.take == ()
    over = plan_of("b", look, waiting=late.waiting, now=360.0)
    assert [each.partition for each in over.take] == ["1"]


def test_an_owner_that_was_gone_has_all_its_time_to_let_go_once_it_is_back():
    """Its record may have been locked meanwhile, so that nobody could take what had expired."""

    def look(age_s):
        return snapshot(lease("0", "a"), lease("1", "a", age_s=age_s), members="ab")

    first = plan_of("b", look(0.0), now=0.0)
    dead = plan_of("b", look(99.0), waiting=first.waiting, now=50.0)
    assert [each.partition for each in dead.take] == ["1"]
    back = plan_of("b", look(0.0), waiting=dead.waiting, now=100.0)
    assert back.take == ()
    late = plan_of("b", look(0.0), waiting=back.waiting, now=159.0)
    assert late.take == ()
    over = plan_of("b", look(0.0), waiting=late.waiting, now=160.0)
    assert [each.partition for each in over.take] == ["1"]


def test_the_waiting_starts_anew_when_the_lease_changed_hands():
    look = snapshot(lease("0", "a", epoch=2), lease("1", "a", epoch=2), members="ab")
    todo = plan_of("b", look, waiting={("0", 1, True): 0.0, ("1", 1, True): 0.0}, now=1000.0)
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


def test_partitions_that_were_merged_are_read_on_side_by_side():
    """Unlike a parent and its child, of which one waits for the other."""
    merged = Partition(id="3", ancestors=("2", "1"))
    look = snapshot(lease("1"), lease("2"))
    assert [each.partition for each in leasable(look, [merged])] == ["1", "2"]
    assert missing(look, [merged]) == ()
    assert read_by_others(look, [merged]) == {"3"}
    children = [Partition(id=id, ancestors=("2", "1")) for id in ("3", "4")]
    assert [each.partition for each in leasable(look, children)] == ["1"]
    assert read_by_others(look, children) == frozenset()
