from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.lag import Extent, Lag, PartitionLag, observe, partition_lag, rates, stuck
from leasehold.core.model import Checkpoint, Group, Lease

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")
NOW = 1_000.0


def lease(next_sequence: int, partition: str = "0", owner: str | None = "a") -> Lease:
    return Lease(
        group=GROUP,
        partition=partition,
        checkpoint=Checkpoint(next_sequence=next_sequence),
        owner=owner,
    )


def extent(first: int, end: int, partition: str = "0", last: float | None = None) -> Extent:
    return Extent(partition=partition, first=first, end=end, last_enqueued_at=last)


def seen(at: float, next_sequence: int | None, end: int, first: int = 0) -> Lag:
    leases = [] if next_sequence is None else [lease(next_sequence)]
    return observe([extent(first, end)], leases, now=at)


def only_rate(earlier: Lag, later: Lag) -> tuple[float, float, float | None]:
    result = rates(earlier, later)
    assert result is not None
    (rate,) = result.partitions
    return rate.processed_per_s, rate.incoming_per_s, rate.catch_up_s


def test_lag_is_what_lies_between_checkpoint_and_end() -> None:
    lag = partition_lag(extent(0, 100), lease(60), NOW, next_event_time=NOW - 12)
    assert (lag.lag_events, lag.lag_s) == (40, 12.0)
    assert (lag.expired, lag.beyond_end) == (False, False)
    assert (lag.owner, lag.owner_live) == ("a", True)


def test_a_partition_that_was_never_checkpointed_lags_by_its_whole_backlog() -> None:
    lag = partition_lag(extent(20, 100), None, NOW)
    assert (lag.lag_events, lag.checkpoint, lag.next_sequence) == (80, None, 20)
    assert (lag.expired, lag.beyond_end, lag.owner) == (False, False, None)


def test_a_start_position_that_was_not_yet_advanced_counts_as_a_checkpoint() -> None:
    at_latest = replace(lease(100), advanced=False)
    assert partition_lag(extent(20, 100), at_latest, NOW).lag_events == 0


def test_e18_a_checkpoint_before_retention_is_counted_from_the_oldest_kept_and_flagged() -> None:
    lag = partition_lag(extent(50, 100), lease(30), NOW)
    assert lag.expired
    assert (lag.lag_events, lag.lost_events, lag.next_sequence) == (50, 20, 50)


def test_a_checkpoint_at_the_oldest_kept_event_has_lost_nothing() -> None:
    assert not partition_lag(extent(50, 100), lease(50), NOW).expired


def test_a_checkpoint_beyond_the_end_is_flagged_and_lags_by_nothing() -> None:
    lag = partition_lag(extent(0, 10), lease(500), NOW)
    assert lag.beyond_end
    assert (lag.lag_events, lag.lag_s) == (0, 0.0)


def test_a_checkpoint_at_the_end_is_not_beyond_it() -> None:
    assert not partition_lag(extent(0, 10), lease(10), NOW).beyond_end


def test_a_partition_emptied_by_retention_still_shows_what_was_lost() -> None:
    lag = partition_lag(extent(10, 10), lease(4), NOW)
    assert (lag.expired, lag.lost_events, lag.lag_events) == (True, 6, 0)


def test_the_age_of_the_oldest_unprocessed_event_is_unknown_unless_given() -> None:
    assert partition_lag(extent(0, 10, last=NOW - 1), lease(5), NOW).lag_s is None


def test_a_single_unprocessed_event_is_the_newest_one_so_its_age_is_known() -> None:
    assert partition_lag(extent(0, 10, last=NOW - 3), lease(9), NOW).lag_s == 3.0


def test_an_event_stamped_by_a_clock_ahead_of_ours_has_no_negative_age() -> None:
    assert partition_lag(extent(0, 10), lease(5), NOW, next_event_time=NOW + 2).lag_s == 0.0


def test_an_owner_that_stopped_renewing_is_named_but_not_live() -> None:
    dead = replace(lease(5), age_s=60.0)
    lag = partition_lag(extent(0, 10), dead, NOW)
    assert (lag.owner, lag.owner_live) == ("a", False)


def test_totals_add_events_and_take_the_greatest_age() -> None:
    lag = observe(
        [extent(0, 10, "0"), extent(0, 20, "1"), extent(0, 5, "2")],
        [lease(5, "0"), lease(10, "1"), lease(5, "2")],
        now=NOW,
        next_event_times={"0": NOW - 7, "1": NOW - 4},
    )
    assert (lag.lag_events, lag.lag_s) == (15, 7.0)


def test_the_total_age_is_unknown_if_that_of_any_partition_is() -> None:
    lag = observe(
        [extent(0, 10, "0"), extent(0, 10, "1")],
        [lease(5, "0"), lease(5, "1")],
        now=NOW,
        next_event_times={"0": NOW - 7},
    )
    assert lag.lag_s is None


def test_leases_of_partitions_that_the_feed_does_not_have_are_named() -> None:
    lag = observe([extent(0, 10, "1")], [lease(1, "9"), lease(1, "1"), lease(1, "5")], now=NOW)
    assert lag.gone == ("5", "9")
    assert [p.partition for p in lag.partitions] == ["1"]


@given(st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(0, 120))
def test_lag_is_never_negative_and_never_more_than_the_feed_holds(
    first: int, size: int, checkpoint: int | None
) -> None:
    held = None if checkpoint is None else lease(checkpoint)
    lag = partition_lag(extent(first, first + size), held, NOW)
    assert 0 <= lag.lag_events <= size
    assert lag.lag_events == lag.end - lag.next_sequence
    if checkpoint is not None and first <= checkpoint <= first + size:
        assert lag.lag_events == first + size - checkpoint
        assert (lag.expired, lag.beyond_end) == (False, False)
    elif checkpoint is not None:
        assert lag.expired != lag.beyond_end


def test_a_partition_with_work_that_does_not_advance_is_stuck() -> None:
    assert stuck(seen(0, 5, 10), seen(61, 5, 12), longer_than_s=60) == ("0",)


def test_a_partition_nobody_ever_took_is_stuck() -> None:
    assert stuck(seen(0, None, 10), seen(61, None, 10), longer_than_s=60) == ("0",)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        pytest.param(seen(0, 5, 10), seen(60, 5, 10), id="not for long enough"),
        pytest.param(seen(0, 5, 10), seen(61, 6, 10), id="it advanced"),
        pytest.param(seen(0, 9, 10), seen(61, 3, 10), id="it was rewound"),
        pytest.param(seen(0, 10, 10), seen(61, 10, 12), id="work came only later"),
        pytest.param(seen(0, 5, 10), seen(61, 5, 10, first=10), id="no work is left"),
        pytest.param(seen(0, None, 10), seen(61, 0, 10), id="a lease was made"),
        pytest.param(Lag(at=0, partitions=()), seen(61, 5, 10), id="it is new"),
    ],
)
def test_a_partition_is_not_stuck_when(earlier: Lag, later: Lag) -> None:
    assert stuck(earlier, later, longer_than_s=60) == ()


def test_rates_and_the_time_to_catch_up() -> None:
    assert only_rate(seen(0, 0, 1000), seen(10, 300, 1100)) == (30.0, 10.0, 40.0)


def test_who_is_slower_than_what_comes_in_never_catches_up() -> None:
    assert only_rate(seen(0, 0, 1000), seen(10, 100, 1100)) == (10.0, 10.0, None)


def test_who_has_caught_up_needs_no_time() -> None:
    assert only_rate(seen(0, 0, 10), seen(10, 20, 20)) == (2.0, 1.0, 0.0)
    assert only_rate(seen(0, 10, 10), seen(10, 20, 20)) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("earlier", "later", "processed_per_s"),
    [
        pytest.param(seen(0, 900, 1000), seen(10, 100, 1000), 0.0, id="a rewind"),
        pytest.param(seen(0, None, 1000), seen(10, 1000, 1000), 0.0, id="a start at the end"),
        pytest.param(seen(0, 50, 1000, 60), seen(10, 50, 1000, 100), 0.0, id="retention"),
        pytest.param(seen(0, 50, 1000, 100), seen(10, 150, 1000, 100), 5.0, id="a jump, then work"),
        pytest.param(seen(0, 500, 100), seen(10, 500, 100), 0.0, id="beyond the end"),
        pytest.param(seen(0, 500, 100), seen(10, 500, 300), 0.0, id="beyond a growing end"),
    ],
)
def test_only_processed_events_count_as_progress(
    earlier: Lag, later: Lag, processed_per_s: float
) -> None:
    assert only_rate(earlier, later)[0] == processed_per_s


def test_a_partition_seen_for_the_first_time_has_no_rate_and_no_end_in_sight() -> None:
    assert only_rate(Lag(at=0, partitions=()), seen(10, 5, 10)) == (0.0, 0.0, None)


@pytest.mark.parametrize("elapsed_s", [0, -5])
def test_there_is_no_rate_unless_time_has_passed(elapsed_s: float) -> None:
    assert rates(seen(100, 5, 10), seen(100 + elapsed_s, 6, 10)) is None


def both(at: float, *partitions: tuple[int, int]) -> Lag:
    return observe(
        [extent(0, end, str(i)) for i, (_, end) in enumerate(partitions)],
        [lease(at_, str(i)) for i, (at_, _) in enumerate(partitions)],
        now=at,
    )


def test_rates_add_up_and_the_slowest_partition_decides_when_the_group_has_caught_up() -> None:
    result = rates(both(0, (0, 100), (0, 100)), both(10, (50, 100), (20, 100)))
    assert result is not None
    assert (result.processed_per_s, result.incoming_per_s) == (7.0, 0.0)
    assert result.catch_up_s == 40.0


def test_a_group_never_catches_up_if_one_of_its_partitions_does_not() -> None:
    result = rates(both(0, (0, 100), (0, 100)), both(10, (99, 100), (0, 100)))
    assert result is not None
    assert result.catch_up_s is None


position = st.integers(0, 100)


@given(position, position, position, position, st.floats(0.001, 1e6))
def test_rates_are_never_negative_and_catching_up_at_that_pace_clears_the_lag(
    then_at: int, now_at: int, then_end: int, now_end: int, elapsed_s: float
) -> None:
    later = seen(elapsed_s, now_at, now_end)
    processed, incoming, catch_up_s = only_rate(seen(0, then_at, then_end), later)
    assert processed >= 0
    assert incoming >= 0
    left: PartitionLag = later.partitions[0]
    if catch_up_s is None:
        assert left.lag_events > 0
        assert processed <= incoming
    elif left.lag_events:
        assert catch_up_s * (processed - incoming) == pytest.approx(left.lag_events)


def counted(at: float, next_sequence: int, end: int, remaining: int) -> Lag:
    return observe([extent(1, end)], [lease(next_sequence)], now=at, remaining={"0": remaining})


def test_where_the_feed_counts_the_distance_of_sequences_says_nothing() -> None:
    (lag,) = counted(NOW, 40, 900, 3).partitions
    assert (lag.lag_events, lag.counted) == (3, True)
    (lag,) = observe([extent(50, 900)], [lease(40)], now=NOW, remaining={"0": 7}).partitions
    assert (lag.lag_events, lag.lost_events, lag.expired) == (7, 0, False)


def test_counted_rates_follow_from_what_came_in_and_what_remains() -> None:
    result = rates(counted(0, 40, 900, 30), counted(10, 300, 2000, 20), {"0": 15})
    assert result is not None
    (rate,) = result.partitions
    assert (rate.processed_per_s, rate.incoming_per_s, rate.catch_up_s) == (2.5, 1.5, 20.0)


@pytest.mark.parametrize("later", [40, 12])
def test_what_vanishes_while_the_checkpoint_stands_or_goes_back_is_not_progress(later: int) -> None:
    result = rates(counted(0, 40, 900, 30), counted(10, later, 900, 20), {"0": 0})
    assert result is not None
    assert (result.processed_per_s, result.catch_up_s) == (0.0, None)
