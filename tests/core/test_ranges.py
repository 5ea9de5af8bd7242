from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.ranges import Range, pack, pick, there, without


def backlogs_of(sizes: list[int], first: int = 100) -> list[Range]:
    return [
        Range(partition=str(i), first=first * i, end=first * i + size)
        for i, size in enumerate(sizes)
    ]


def sizes_of(ranges: tuple[Range, ...]) -> dict[str, int]:
    return {r.partition: len(r) for r in ranges}


def load(task: tuple[Range, ...]) -> int:
    return sum(len(r) for r in task)


sizes = st.lists(st.integers(0, 60), max_size=12)


def test_a_range_cannot_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="partition 7: a range cannot end at 4"):
        Range(partition="7", first=5, end=4)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.none() | st.integers(0, 35))),
)
def test_what_is_there_and_what_is_left_are_all_but_what_is_lost(
    drawn: list[tuple[int, int, int | None]],
) -> None:
    ranges = [
        Range(partition=str(number), first=first, end=first + size)
        for number, (first, size, _) in enumerate(drawn)
    ]
    begin_at = {each.partition: at for each, (_, _, at) in zip(ranges, drawn, strict=True)}

    def events(some: list[Range]) -> list[tuple[str, int]]:
        return sorted((each.partition, n) for each in some for n in range(each.first, each.end))

    known = [each for each in ranges if begin_at[each.partition] is not None]
    assert events(there(ranges, begin_at) + without(ranges, begin_at)) == events(known)
    assert all(each.end <= (begin_at[each.partition] or 0) for each in there(ranges, begin_at))
    assert there(ranges, {}) == []


def test_small_backlogs_are_taken_whole_and_the_rest_share_equally() -> None:
    picked = pick(backlogs_of([3, 1000, 5, 1000]), 100)
    assert sizes_of(picked) == {"0": 3, "1": 46, "2": 5, "3": 46}


def test_partitions_with_nothing_to_read_are_left_out() -> None:
    assert sizes_of(pick(backlogs_of([0, 4, 0]), 10)) == {"1": 4}
    assert pick([], 10) == ()
    assert pick(backlogs_of([5, 5]), 0) == ()


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="max_events"):
        pick(backlogs_of([1]), -1)


def test_with_fewer_events_than_partitions_each_has_its_turn_whatever_its_size() -> None:
    picks = [sizes_of(pick(backlogs_of([9, 8, 7]), 1, turn=turn)) for turn in range(3)]
    assert picks == [{"0": 1}, {"1": 1}, {"2": 1}]


@given(sizes, st.integers(0, 400), st.integers(-3, 50))
def test_a_pick_is_as_large_as_the_bound_or_the_backlog_allows(
    sizes: list[int], max_events: int, turn: int
) -> None:
    picked = pick(backlogs_of(sizes), max_events, turn=turn)
    assert load(picked) == min(max_events, sum(sizes))


@given(sizes, st.integers(0, 400), st.integers(-3, 50))
def test_every_picked_range_starts_at_its_checkpoint_and_stays_within_its_backlog(
    sizes: list[int], max_events: int, turn: int
) -> None:
    backlogs = {backlog.partition: backlog for backlog in backlogs_of(sizes)}
    picked = pick(tuple(backlogs.values()), max_events, turn=turn)
    for r in picked:
        assert r.first == backlogs[r.partition].first
        assert r.first < r.end <= backlogs[r.partition].end
    assert len({r.partition for r in picked}) == len(picked)


@given(sizes, st.integers(0, 400), st.integers(-3, 50))
def test_nobody_who_wants_more_gets_less_than_another_by_more_than_one_event(
    sizes: list[int], max_events: int, turn: int
) -> None:
    picked = sizes_of(pick(backlogs_of(sizes), max_events, turn=turn))
    most = max(picked.values(), default=0)
    for i, size in enumerate(sizes):
        got = picked.get(str(i), 0)
        assert got == size or got >= most - 1


@given(st.integers(1, 9), st.integers(0, 60))
def test_the_remainder_goes_to_each_partition_equally_often(partitions: int, total: int) -> None:
    backlogs = backlogs_of([100] * partitions)
    got: Counter[str] = Counter()
    for turn in range(partitions):
        got.update(sizes_of(pick(backlogs, total, turn=turn)))
    assert all(got[backlog.partition] == total for backlog in backlogs)


def test_one_large_range_is_split_over_all_tasks() -> None:
    packed = pack([Range(partition="0", first=10, end=20)], 4)
    assert packed == (
        (Range(partition="0", first=10, end=13),),
        (Range(partition="0", first=13, end=16),),
        (Range(partition="0", first=16, end=19),),
        (Range(partition="0", first=19, end=20),),
    )


def test_small_ranges_share_a_task() -> None:
    packed = pack(backlogs_of([80, 10, 10, 10, 10, 40]), 2, min_split=50)
    assert sorted(load(task) for task in packed) == [80, 80]
    assert max(len(task) for task in packed) == 5


def test_a_range_is_left_whole_when_a_piece_would_be_smaller_than_min_split() -> None:
    assert [load(task) for task in pack(backlogs_of([10, 1]), 2, min_split=6)] == [10, 1]
    assert sorted(load(task) for task in pack(backlogs_of([10, 1]), 2, min_split=4)) == [5, 6]


def test_equal_ranges_are_dealt_in_the_order_given() -> None:
    packed = pack(backlogs_of([5, 5, 5, 5, 5]), 2, min_split=5)
    assert [[r.partition for r in task] for task in packed] == [["0", "2", "4"], ["1", "3"]]


def test_nothing_to_read_needs_no_task() -> None:
    assert pack([], 4) == ()
    assert pack(backlogs_of([0, 0]), 4) == ()


@pytest.mark.parametrize(("tasks", "min_split"), [(0, 1), (1, 0)])
def test_pack_refuses_less_than_one_task_and_pieces_of_nothing(tasks: int, min_split: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        pack(backlogs_of([1]), tasks, min_split=min_split)


packings = given(sizes, st.integers(1, 20), st.integers(1, 25))


@packings
def test_packing_loses_nothing_and_doubles_nothing(
    sizes: list[int], tasks: int, min_split: int
) -> None:
    packed = pack(backlogs_of(sizes), tasks, min_split=min_split)
    got = Counter((r.partition, n) for task in packed for r in task for n in range(r.first, r.end))
    assert got == Counter(
        (r.partition, n) for r in backlogs_of(sizes) for n in range(r.first, r.end)
    )


@packings
def test_no_task_is_empty_and_there_are_no_more_than_asked_for(
    sizes: list[int], tasks: int, min_split: int
) -> None:
    packed = pack(backlogs_of(sizes), tasks, min_split=min_split)
    assert len(packed) <= tasks
    assert all(len(r) for task in packed for r in task)
    assert all(packed)


@packings
def test_the_largest_task_is_close_to_an_equal_share(
    sizes: list[int], tasks: int, min_split: int
) -> None:
    packed = pack(backlogs_of(sizes), tasks, min_split=min_split)
    largest = max((load(task) for task in packed), default=0)
    assert largest <= -(-sum(sizes) // tasks) + 2 * (min_split - 1)


@packings
def test_cuts_are_few_and_leave_no_piece_below_min_split(
    sizes: list[int], tasks: int, min_split: int
) -> None:
    packed = pack(backlogs_of(sizes), tasks, min_split=min_split)
    pieces: dict[str, list[Range]] = {}
    for task in packed:
        for r in task:
            pieces.setdefault(r.partition, []).append(r)
    cuts = sum(len(parts) - 1 for parts in pieces.values())
    assert cuts < tasks
    for parts in pieces.values():
        assert len(parts) == 1 or min(map(len, parts)) >= min_split


@given(sizes, st.integers(1, 5), st.integers(1, 25), st.data())
def test_a_task_reads_a_partition_in_order_even_if_it_came_in_several_ranges(
    sizes: list[int], tasks: int, min_split: int, data: st.DataObject
) -> None:
    ranges = []
    for backlog in backlogs_of(sizes):
        middle = data.draw(st.integers(backlog.first, backlog.end))
        ranges.append(Range(partition=backlog.partition, first=backlog.first, end=middle))
        ranges.append(Range(partition=backlog.partition, first=middle, end=backlog.end))
    for task in pack(ranges, tasks, min_split=min_split):
        ends: dict[str, int] = {}
        for r in task:
            assert r.first >= ends.get(r.partition, r.first)
            ends[r.partition] = r.end
