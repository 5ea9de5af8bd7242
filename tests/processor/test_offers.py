"""What an instance gave up, and what others do not take from it."""

from dataclasses import replace

from leasehold.core.model import Checkpoint, Group, Lease, Snapshot
from leasehold.processor.offers import GIVEN_UP_S, KEPT_S, Offers

GROUP = Group(namespace="n", feed="f", name="g")


def lease(epoch: int) -> Lease:
    return Lease(
        group=GROUP, partition="0", checkpoint=Checkpoint(next_sequence=0), owner="me", epoch=epoch
    )


def test_what_was_given_up_is_left_to_others_for_a_while() -> None:
    offers = Offers()
    offers.give_up("0", now=100.0)
    assert offers.given_up(100.0 + GIVEN_UP_S - 1) == {"0"}
    assert offers.over_at == 100.0 + GIVEN_UP_S
    assert offers.given_up(100.0 + GIVEN_UP_S) == frozenset()


def test_what_is_not_taken_is_kept_for_longer_each_time() -> None:
    offers, now, kept = Offers(), 0.0, []
    for epoch in range(1, 9):
        offered_at = now
        while not offers.offer(lease(epoch), "other", now):
            now += 1.0
        kept.append(now - offered_at)
        now += 5.0
        offers.taken(lease(epoch + 1), now)
    assert kept == [0.0, *KEPT_S, KEPT_S[-1], KEPT_S[-1]]


def test_what_somebody_had_meanwhile_or_is_meant_for_another_is_let_go_at_once() -> None:
    offers = Offers()
    assert offers.offer(lease(1), "other", 0.0)
    for epoch in (2, 3):
        offers.taken(lease(epoch), 0.0)
        offers.offer(lease(epoch), "other", 1.0)
    assert not offers.offer(lease(3), "other", 1.0), "it did not come twice"
    assert offers.offer(lease(3), "third", 1.0)
    offers.taken(lease(7), 1.0)
    assert offers.offer(lease(7), "other", 1.0), "somebody had it in between"


def test_what_is_being_let_go_stays_so_however_often_it_is_asked() -> None:
    offers = Offers()
    assert offers.offer(lease(1), "other", 0.0)
    assert offers.offer(lease(1), "other", 1.0)
    assert offers.offer(lease(1), None, 2.0)


def test_what_was_offered_and_not_taken_may_be_kept_by_its_owner() -> None:
    offers, mine = Offers(), replace(lease(1), owner=None, offered_to="me")
    other = replace(mine, partition="1", offered_to="other")
    offers.look(Snapshot(leases=(mine, other)), "me", {"me", "other"}, 0.0)
    assert offers.missed(KEPT_S[-1] - 1) == {("0", 2)}
    assert offers.missed(KEPT_S[-1]) == frozenset()
    offers.look(Snapshot(leases=(mine,)), "me", {"me"}, 300.0)
    offers.taken(lease(2), 301.0)
    assert offers.missed(302.0) == frozenset()


def test_who_was_away_gets_a_new_offer() -> None:
    kept = Offers()
    for epoch in (1, 2, 3):
        kept.offer(lease(epoch), "other", 0.0)
        kept.taken(lease(epoch + 1), 0.0)
    assert not kept.offer(lease(4), "other", 1.0)
    kept.look(Snapshot(leases=(), doubted=frozenset({"other"})), "me", {"me"}, 1.0)
    assert not kept.offer(lease(4), "other", 1.0), "nobody knows whether it was away"
    kept.look(Snapshot(leases=()), "me", {"me"}, 1.0)
    assert kept.offer(lease(4), "other", 1.0)
