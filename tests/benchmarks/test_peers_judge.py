"""The judge of the peers, on logs that were made up to say one thing each."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.peers import judge
from benchmarks.peers.judge import HandledEvent, LogReader
from benchmarks.peers.member import RECORD, Aggregates
from benchmarks.peers.throughput import require_equal


def steady(
    member: str, partition: int, begin: float, end: float, first: int = 0
) -> list[HandledEvent]:
    """Ten events a second."""
    count = round((end - begin) * 10)
    return [HandledEvent(begin + n / 10, partition, first + n, member) for n in range(count)]


def test_a_log_is_read_as_far_as_whole_records_are_written(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    reader = LogReader(path, "a")
    assert reader.new() == []
    one, two = RECORD.pack(3, 17, 1.5), RECORD.pack(4, 18, 2.5)
    path.write_bytes(one + two[:7])
    assert reader.new() == [HandledEvent(1.5, 3, 17, "a")]
    path.write_bytes(one + two)
    assert reader.new() == [HandledEvent(2.5, 4, 18, "a")]
    assert reader.new() == []


def test_only_what_was_handled_before_counts_as_twice_and_only_within_the_time() -> None:
    handled = [
        HandledEvent(1.0, 0, 5, "a"),
        HandledEvent(2.0, 1, 5, "a"),  # another partition's
        HandledEvent(3.0, 0, 5, "b"),
        HandledEvent(4.0, 0, 5, "a"),
    ]
    assert judge.twice(handled) == 2
    assert judge.twice(reversed(handled), since=3.0) == 1
    assert judge.twice(handled, until=2.5) == 0


def test_what_was_passed_over_is_lost_and_what_is_still_to_come_is_not() -> None:
    handled = [HandledEvent(n, 0, offset, "a") for n, offset in enumerate((10, 11, 14))]
    assert judge.never(handled, {0: 10}) == 2
    assert judge.never(handled, {0: 9}) == 3
    assert judge.never(handled, {0: 10, 1: 50}) == 2, "nothing of partition 1 was due yet"


def test_a_move_is_a_partition_that_another_member_goes_on_with() -> None:
    handled = steady("a", 0, 0, 5) + steady("b", 0, 5, 9, 50) + steady("a", 1, 0, 9)
    assert judge.changes(handled, 0, 9) == [5.0]
    assert judge.changes(handled, 5.0, 9) == []
    assert judge.owners(handled, 0, 4) == {0: "a", 1: "a"}
    assert judge.owners(handled, 0, 9) == {0: "b", 1: "a"}


@pytest.mark.parametrize(
    ("shares", "members", "fewest"),
    [
        ({"a": 8, "b": 8}, "abcde", 9),
        ({"a": 8, "b": 8}, "abc", 5),
        ({"a": 6, "b": 5, "c": 5}, "ab", 5),
        ({"a": 6, "b": 5, "c": 5}, "abc", 0),
        ({"a": 16, "b": 0}, "ab", 8),
    ],
)
def test_the_fewest_moves(shares: dict[str, int], members: str, fewest: int) -> None:
    owned = dict(enumerate(member for member, count in shares.items() for _ in range(count)))
    assert judge.fewest_moves(owned, list(members)) == fewest


def test_the_spread_counts_members_that_have_nothing() -> None:
    owned = {0: "a", 1: "a", 2: "b"}
    assert judge.spread(owned, ["a", "b"]) == 1
    assert judge.spread(owned, ["a", "b", "c"]) == 2


def test_a_pause_is_a_partitions_own_and_counts_if_it_reaches_into_the_time() -> None:
    handled = steady("a", 0, 0, 4) + steady("b", 0, 7, 9, 40) + steady("a", 1, 0, 9)
    found = judge.pauses(handled, 2.0, 8.0)
    assert found[0] == pytest.approx(3.1)
    assert found[1] == pytest.approx(0.1)
    assert judge.pauses(handled, 3.95, 5.0)[0] == pytest.approx(3.1)
    assert judge.pauses(handled, 7.5, 8.0)[0] == pytest.approx(0.1)


def test_failover_waits_for_each_partition_of_the_killed_and_for_no_other() -> None:
    handled = (
        steady("dead", 0, 0, 4)
        + steady("b", 0, 9, 12, 35)
        + steady("dead", 1, 0, 4)
        + steady("c", 1, 11, 12, 35)
        + steady("b", 2, 0, 12)
        + steady("dead", 3, 0, 2)  # had moved before
        + steady("b", 3, 2, 12, 20)
    )
    assert judge.failover(handled, "dead", 4.0) == pytest.approx({0: 5.0, 1: 7.0})
    left = [each for each in handled if each.partition != 1 or each.member == "dead"]
    assert judge.failover(left, "dead", 4.0)[1] == math.inf


def test_delays_are_of_the_first_time_and_of_what_was_sent_within_the_time() -> None:
    sent = {(0, n): float(n) for n in range(4)}
    handled = [HandledEvent(n + 0.25 * n, 0, n, "a") for n in range(4)] + [
        HandledEvent(9.0, 0, 1, "b")
    ]
    assert judge.delays(handled, sent, 1.0, 3.0) == [0.25, 0.5, 0.75]


def test_partitions_wait_after_a_second_without_an_event() -> None:
    handled = steady("a", 0, 0, 2.1) + steady("b", 0, 5, 8, 20) + steady("a", 1, 0, 8)
    points = dict(judge.waiting(handled, 1.0, 7.0, step_s=0.5))
    assert [points[at] for at in (0.0, 1.5, 2.5, 3.5, 4.5, 6.0)] == [0, 0, 1, 1, 0, 0]


def test_results_that_differ_in_anything_are_refused() -> None:
    expected = Aggregates()
    for home, value in (("H1", 3), ("H1", 5), ("H2", 7)):
        expected.add({"home": home, "time_ms": 120_000, "value": value})
    right = [["H1", 2, 2, 8, 3, 5], ["H2", 2, 1, 7, 7, 7]]
    require_equal("right", right, expected)
    for wrong in (right[:1], [*right, right[1]], [["H1", 2, 2, 8, 3, 6], right[1]], []):
        with pytest.raises(AssertionError, match="wrong found"):
            require_equal("wrong", wrong, expected)
