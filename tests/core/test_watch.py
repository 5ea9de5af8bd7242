"""Which ages an instance believes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.core.watch import Watched, watch

GROUP = Group(namespace="n", feed="f", name="g")
DOUBT_S = 1.25


def lease(age_s, *, version="1", owner="a", partition="0", epoch=1, ttl_s=10.0):
    return Lease(
        group=GROUP,
        partition=partition,
        checkpoint=Checkpoint(next_sequence=0),
        owner=owner,
        epoch=epoch,
        version=version,
        age_s=age_s,
        ttl_s=ttl_s,
    )


def member(age_s, version="1", instance="a"):
    return Member(instance=instance, incarnation="x", age_s=age_s, version=version)


class Watcher:
    def __init__(self):
        self.known: Watched | None = None

    def look(self, at, *records, cut_off=False, took_s=0.0):
        """The records as this watcher takes them, which asks at that time."""
        self.known, seen = watch(
            self.known,
            Snapshot(
                leases=tuple(each for each in records if isinstance(each, Lease)),
                members=tuple(each for each in records if isinstance(each, Member)),
            ),
            asked=at,
            answered=at + took_s,
            cut_off=cut_off,
            doubt_s=DOUBT_S,
        )
        self.seen = seen
        return [*seen.leases, *seen.members]

    def doubted(self, at, *records, **more):
        self.look(at, *records, **more)
        return self.seen.doubted

    def ages(self, at, *records, **more):
        return [record.age_s for record in self.look(at, *records, **more)]


def test_ages_that_fit_the_watchers_own_clock_are_taken_as_they_are():
    watcher = Watcher()
    assert watcher.ages(0, lease(1), member(2)) == [1, 2]
    assert watcher.ages(3, lease(4.1), member(0.3, version="2")) == [4.1, 0.3]
    assert watcher.ages(13, lease(14), member(10.3, version="2")) == [14, 10.3]


def test_what_is_seen_unchanged_is_at_least_that_old_whatever_the_stores_whole_seconds_say():
    watcher = Watcher()
    watcher.look(0, lease(0))
    assert watcher.ages(0.9, lease(0)) == [0.9]


def test_the_time_that_asking_took_makes_nothing_older():
    watcher = Watcher()
    watcher.look(0, lease(0), took_s=2.0)
    assert watcher.ages(3, lease(0.5), took_s=2.0) == [1.0]


@pytest.mark.parametrize("step_s", [30, -30, 4, -4, 1e6, -1e6])
def test_a_step_of_the_stores_clock_makes_nobody_older(step_s):
    watcher = Watcher()
    watcher.look(0, lease(1), lease(2, partition="1"), member(2))
    seen = watcher.look(3, lease(4 + step_s), lease(5 + step_s, partition="1"), member(5 + step_s))
    assert [record.age_s for record in seen] == [3, 3, 3]
    assert not any(record.expired for record in seen)


def test_after_a_step_who_is_seen_unchanged_for_the_time_to_live_is_dead():
    watcher = Watcher()
    watcher.look(0, lease(1))
    watcher.look(3, lease(-26))
    assert not watcher.look(9.9, lease(-19.1))[0].expired
    assert watcher.look(10.1, lease(-18.9))[0].expired


def test_after_a_step_who_renews_is_believed_again():
    watcher = Watcher()
    watcher.look(0, lease(1))
    watcher.look(3, lease(34))
    assert watcher.ages(4, lease(0.5, version="2")) == [0.5]
    assert watcher.ages(7, lease(3.5, version="2")) == [3.5]


def test_a_record_that_changed_and_is_older_than_the_time_since_the_last_look_shows_the_step():
    watcher = Watcher()
    watcher.look(0, lease(1), lease(1, partition="1"))
    assert watcher.ages(3, lease(31, version="2"), lease(34, partition="1")) == [0, 3]


def test_a_stamp_ahead_of_the_stores_clock_does_not_count_as_dead_at_a_first_look_either():
    watcher = Watcher()
    assert not watcher.look(0, lease(-27))[0].expired
    assert not watcher.look(9, lease(-18))[0].expired
    assert watcher.look(10.5, lease(-16.5))[0].expired


def test_after_a_time_without_answers_everybody_has_a_whole_time_to_live():
    watcher = Watcher()
    watcher.look(0, lease(1), member(1))
    assert watcher.ages(600, lease(601), member(601), cut_off=True) == [0, 0]
    assert not watcher.look(609.9, lease(610.9), member(0.1, version="2"))[0].expired
    assert watcher.look(610.1, lease(611.1), member(0.3, version="2"))[0].expired


def test_after_a_time_without_answers_the_dead_stay_dead():
    watcher = Watcher()
    watcher.look(0, lease(1), member(1, instance="b"))
    watcher.look(11, lease(12), member(12, instance="b"))
    seen = watcher.look(600, lease(601), member(601, instance="b"), cut_off=True)
    assert all(record.expired for record in seen)
    seen = watcher.look(601, lease(0, version="2"), member(0, version="2", instance="b"))
    assert not any(record.expired for record in seen)


def test_after_a_time_without_answers_everybody_is_doubted_until_it_is_heard_again():
    watcher = Watcher()
    assert watcher.doubted(0, lease(1), member(1), member(1, instance="b")) == set()
    records = lease(601), member(601), member(601, instance="b")
    assert watcher.doubted(600, *records, cut_off=True) == {"a", "b"}
    records = lease(602), member(0.1, version="2"), member(602, instance="b")
    assert watcher.doubted(601, *records) == {"b"}
    records = lease(612), member(1, version="3"), member(612, instance="b")
    assert watcher.doubted(611, *records) == set(), "it is dead"


def test_who_is_heard_is_not_doubted_however_wild_the_stores_clock_is():
    watcher = Watcher()
    watcher.look(0, member(1))
    for at in range(1, 9):
        age_s = 1000.0 * (-1) ** at
        assert watcher.doubted(at, member(age_s, version=f"v{at}")) == set()


def test_at_a_first_look_the_living_are_not_doubted():
    assert Watcher().doubted(0, lease(1), member(5000, instance="b")) == {"b"}


def test_at_a_first_look_the_long_dead_are_doubted_for_a_moment_only():
    watcher = Watcher()
    first = watcher.look(0, lease(5000), member(5000))
    assert not any(record.expired for record in first)
    assert [record.ttl_s - record.age_s for record in first] == [DOUBT_S, DOUBT_S]
    assert not watcher.look(1.2, lease(5001.2), member(5001.2))[0].expired
    assert watcher.ages(1.3, lease(5001.3), member(5001.3)) == [5001.3, 5001.3]


def test_at_a_first_look_who_renews_one_lease_is_not_dead_in_another():
    watcher = Watcher()

    def expired(at):
        seen = watcher.look(
            at,
            lease(0.1, version=str(at)),
            lease(40 + at, partition="1"),
            lease(40 + at, partition="2", owner="b"),
            member(0.1, version=str(at), instance="b"),
        )
        return [record.partition for record in seen[:3] if record.expired]

    assert expired(0) == []
    assert expired(3) == ["2"], "a heartbeat alone may be that of its next life"
    assert expired(9) == ["2"]
    assert expired(10.5) == ["1", "2"]


def test_who_seemed_dead_and_goes_on_shows_that_all_were_kept_from_renewing():
    watcher = Watcher()
    watcher.look(0, lease(600), lease(600, partition="1", owner="b"))
    watcher.look(1, lease(0.1, version="2"), lease(601, partition="1", owner="b"))
    seen = watcher.look(5, lease(4.1, version="2"), lease(605, partition="1", owner="b"))
    assert not any(record.expired for record in seen)
    assert watcher.look(10.1, lease(1, version="3"), lease(611, partition="1", owner="b"))[
        1
    ].expired


def test_a_dead_owners_lease_that_another_took_says_nothing_about_the_clock():
    watcher = Watcher()
    watcher.look(0, lease(5), lease(5, partition="1", owner="b"))
    watcher.look(6, lease(11), lease(11, partition="1", owner="b"))
    seen = watcher.look(7, lease(0.5, owner="c", epoch=2, version="2"), lease(12, partition="1"))
    assert [record.age_s for record in seen] == [0.5, 12]


def test_what_nobody_owns_may_change_its_age_as_it_likes():
    watcher = Watcher()
    watcher.look(0, lease(500, owner=None), lease(1, partition="1"))
    assert watcher.ages(3, lease(2, owner=None), lease(4, partition="1")) == [3, 4]


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0.05, 4),  # own time until the next look
            st.one_of(st.just(0.0), st.floats(-1e5, 1e5)),  # what the store's clock is set by
        ),
        min_size=1,
        max_size=30,
    ),
    renews_every_s=st.floats(0.5, 4.9),
)
def test_whatever_is_done_to_the_stores_clock_a_living_owner_never_expires(steps, renews_every_s):
    """It renews twice within its time to live, and the watcher looks often enough to see that."""
    watcher, now, off_s = Watcher(), 0.0, 0.0
    stamp, renewed_at, version = 0.0, 0.0, 1
    for wait_s, step_s in [(0.0, 0.0), *steps]:
        end = now + wait_s
        step_at = now + wait_s / 2
        while renewed_at + renews_every_s <= end:
            renewed_at, version = renewed_at + renews_every_s, version + 1
            stamp = renewed_at + off_s + (step_s if renewed_at > step_at else 0.0)
        now, off_s = end, off_s + step_s
        (seen,) = watcher.look(now, lease(now + off_s - stamp, version=str(version)))
        assert not seen.expired


@given(
    looks=st.lists(st.floats(0.05, 3), min_size=1, max_size=40),
    steps=st.lists(st.one_of(st.just(0.0), st.floats(-1e5, 1e5)), min_size=40, max_size=40),
)
def test_whatever_is_done_to_the_stores_clock_a_dead_owner_expires_in_the_end(looks, steps):
    watcher, now, off_s = Watcher(), 0.0, 0.0
    seen = watcher.look(0, lease(0))[0]
    for wait_s, step_s in zip(looks, steps, strict=False):
        now, off_s = now + wait_s, off_s + step_s
        (seen,) = watcher.look(now, lease(now + off_s))
    assert seen.expired or now <= 10.0


def test_an_owner_from_before_the_machine_was_started_is_dead_for_good():
    watcher = Watcher()
    watcher.look(0, lease(1e9), lease(1, partition="1", owner="b"))
    assert math.isclose(watcher.ages(3, lease(1e9), lease(4, partition="1", owner="b"))[0], 1e9)


def test_only_ages_are_changed():
    given_lease = lease(700)
    (seen,) = Watcher().look(0, given_lease)
    assert replace(seen, age_s=700) == given_lease


@given(
    looks=st.lists(
        st.tuples(st.floats(0.05, 30), st.booleans(), st.sampled_from([0.0, -1e4, 1e4])),
        min_size=1,
        max_size=30,
    ),
)
def test_however_often_the_store_is_silent_a_dead_owner_expires_in_the_end(looks):
    """Of a silence a moment counts, but that counts."""
    watcher, now, off_s, seen_s = Watcher(), 0.0, 0.0, -math.inf
    watcher.look(0, lease(0))
    for wait_s, cut_off, step_s in looks:
        now, off_s = now + wait_s, off_s + step_s
        (seen,) = watcher.look(now, lease(now + off_s), cut_off=cut_off)
        seen_s += min(wait_s, DOUBT_S)
        if cut_off and seen_s < 0:
            seen_s = 0.0
        assert seen.expired or seen_s <= 10.01


def test_two_silences_in_a_row_cost_the_living_a_moment_only():
    watcher = Watcher()
    watcher.look(0, lease(1))
    watcher.look(600, lease(601), cut_off=True)
    assert watcher.ages(1200, lease(1201), cut_off=True) == [DOUBT_S]
    assert watcher.ages(1800, lease(0.5, version="2"), cut_off=True) == [0]
