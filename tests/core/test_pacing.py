"""How large the next cycle is: found out by simulated cycles of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import log2
from random import Random
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.pacing import FIRST_EVENTS, GROWTH_MAX, Cycle, Pacing, begin, share
from leasehold.core.ranges import Range

MANY = 1 << 40
rates = st.floats(1e2, 1e8)
targets = st.floats(0.1, 60)
small_parts = st.floats(0, 0.25)
"""What a cycle costs whatever its size, as a part of the target."""


def cycles(pacing: Pacing, seconds: Callable[[int], float]) -> Iterator[tuple[Pacing, Cycle]]:
    while True:
        cycle = Cycle(events=pacing.events, seconds=seconds(pacing.events))
        pacing = pacing.after(cycle)
        yield pacing, cycle


def run(pacing: Pacing, seconds: Callable[[int], float], count: int) -> tuple[Pacing, Cycle]:
    found = cycles(pacing, seconds)
    for _ in range(count - 1):
        next(found)
    return next(found)


def linear(rate: float, fixed_s: float = 0.0) -> Callable[[int], float]:
    return lambda events: fixed_s + events / rate


def lengths_after(pacing: Pacing, seconds: Callable[[int], float], count: int) -> list[float]:
    """How long the five cycles last that come after so many."""
    return [cycle.seconds for _, cycle in islice(cycles(pacing, seconds), count, count + 5)]


def steps_to_grow(pacing: Pacing, to: float) -> int:
    steps, size = 0, float(pacing.events)
    while size < to:
        steps, size = steps + 1, size * 2
    return steps


@given(targets, st.integers(1, 10**9))
def test_it_begins_small(target_s: float, max_events: int) -> None:
    assert begin(target_s, max_events).events == min(FIRST_EVENTS, max_events)


@given(rates, targets, small_parts)
def test_cycles_come_to_last_as_long_as_they_should(
    rate: float, target_s: float, part: float
) -> None:
    pacing, seconds = begin(target_s, MANY), linear(rate, part * target_s)
    count = 12 + steps_to_grow(pacing, rate * target_s)
    found = lengths_after(pacing, seconds, count)
    slack_s = 2 / rate  # whole events
    assert 0.8 * target_s - slack_s <= median(found) <= max(found) <= 1.2 * target_s + slack_s


@given(rates, targets, small_parts, st.sampled_from([0.1, 10.0]))
def test_it_copes_with_a_rate_that_changes_tenfold(
    rate: float, target_s: float, part: float, change: float
) -> None:
    pacing = begin(target_s, MANY)
    pacing, _ = run(pacing, linear(rate, part * target_s), 40)
    later = linear(rate * change, part * target_s)
    found = [cycle.seconds for _, cycle in islice(cycles(pacing, later), 15)]
    slack_s = 2 / (rate * change)
    assert found[1] <= 2.5 * target_s + slack_s, "one long cycle, and no second one"
    assert 0.7 * target_s - slack_s <= median(found[-5:]) <= 1.4 * target_s + slack_s


def impatient(
    pacing: Pacing, seconds: Callable[[int], float], count: int
) -> tuple[list[Cycle], list[Cycle]]:
    """All cycles if overdue ones are cancelled, and those that were. Each that comes again is given
    twice as long."""
    found, more = [], 1.0
    for _ in range(count):
        needed_s, limit_s = seconds(pacing.events), pacing.overdue_s(more)
        finished = needed_s <= limit_s
        cycle = Cycle(events=pacing.events, seconds=min(needed_s, limit_s), finished=finished)
        found.append(cycle)
        before, pacing = pacing, pacing.after(cycle)
        more = 1.0 if finished else 2 * more
        if not finished:
            assert pacing.events <= max(1, before.events / (12 if before.seen else 4))
    return found, [each for each in found if not each.finished]


@given(rates, targets, small_parts, st.floats(5, 1000))
def test_however_slow_it_becomes_no_cycle_is_waited_for_much_longer_than_it_should_take(
    rate: float, target_s: float, part: float, change: float
) -> None:
    pacing, _ = run(begin(target_s, MANY), linear(rate, part * target_s), 40)
    found, cut = impatient(pacing, linear(rate / change, part * target_s), 25)
    slack_s = 2 * change / rate  # whole events
    assert found[0].seconds <= 4 * target_s
    assert found[1].seconds <= (change / 8 + 2) * target_s + slack_s
    assert len(cut) <= 2 + log2(change)
    assert median(each.seconds for each in found[-5:]) <= 1.4 * target_s + slack_s


@given(rates, st.floats(0.6, 50), targets)
def test_what_is_slow_whatever_its_size_is_not_cancelled_again_and_again(
    rate: float, part: float, target_s: float
) -> None:
    """As with storage that has become slow: smaller cycles do not help."""
    pacing, _ = run(begin(target_s, MANY), linear(rate, 0.05 * target_s), 40)
    fixed_s = part * target_s
    count = 60 + 2 * steps_to_grow(begin(target_s, MANY), rate * fixed_s)
    found, cut = impatient(pacing, linear(rate, fixed_s), count)
    assert len(cut) <= 2 + log2(max(2.0, part))
    last = found[-10:]
    done = sum(each.events for each in last) / sum(each.seconds for each in last)
    assert done >= rate / 6 - 2 / fixed_s


def test_until_one_is_done_cycles_have_longer_since_nothing_is_known_of_them() -> None:
    cold = begin(2.0, MANY)
    assert cold.overdue_s() == 60.0
    cut = cold.after(Cycle(events=20_000, seconds=60.0, finished=False))
    assert (cut.events, cut.overdue_s(), cut.overdue_s(32.0)) == (5_000, 120.0, 192.0)
    known = cut.after(Cycle(events=1, seconds=1.0))
    assert (known.overdue_s(), known.overdue_s(2.0)) == (6.0, 12.0)
    slow = known.after(Cycle(events=5_000, seconds=6.0, finished=False))
    assert slow.overdue_s() == 60.0


def test_cycles_that_are_cancelled_for_ever_leave_a_limit_that_is_a_number() -> None:
    """As by a user's own limit of a second, at an event that always hangs."""
    pacing = begin(2.0, MANY)
    for _ in range(3_000):
        pacing = pacing.after(Cycle(events=1, seconds=1.0, finished=False))
    assert 60.0 < pacing.overdue_s() < 1e9


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.floats(0.001, 100), targets)
def test_a_long_cycle_makes_the_next_one_smaller_at_once(
    now: int, events: int, seconds: float, target_s: float
) -> None:
    pacing = Pacing(target_s=target_s, max_events=MANY, events=now)
    after = pacing.after(Cycle(events=events, seconds=seconds))
    if seconds > target_s:
        assert after.events <= max(1, events * target_s / seconds)
    else:
        assert now <= after.events <= GROWTH_MAX * now


@given(rates, targets, small_parts, st.floats(0.5, 1.0))
def test_it_tells_how_long_a_cycle_will_take(
    rate: float, target_s: float, part: float, size: float
) -> None:
    assert begin(target_s, MANY).expected_s(20_000) == target_s, "nothing was measured yet"
    seconds = linear(rate, part * target_s)
    pacing, _ = run(begin(target_s, MANY), seconds, 40)
    events = max(1, int(size * pacing.events))
    slack_s = 2 / rate
    low_s, high_s = 0.7 * seconds(events) - slack_s, 1.3 * seconds(events) + slack_s
    assert low_s <= pacing.expected_s(events) <= high_s


@given(st.lists(st.tuples(st.integers(0, 10**8), st.floats(0, 1e4)), max_size=20))
def test_whatever_was_measured_the_bound_holds(measured: list[tuple[int, float]]) -> None:
    pacing = begin(2.0, 5_000_000)
    for events, seconds in measured:
        pacing = pacing.after(Cycle(events=events, seconds=seconds))
        assert 1 <= pacing.events <= 5_000_000
        assert pacing.fixed_s <= max([seconds for _, seconds in measured])


@given(rates, st.floats(0.6, 20), targets)
def test_fixed_costs_above_the_target_do_not_make_cycles_ever_smaller(
    rate: float, part: float, target_s: float
) -> None:
    """Or all the time would go into them: a cycle takes about twice as long as they do."""
    fixed_s = part * target_s
    pacing = begin(target_s, MANY)
    count = 60 + 2 * steps_to_grow(pacing, rate * fixed_s)
    found = [cycle for _, cycle in islice(cycles(pacing, linear(rate, fixed_s)), count)][-10:]
    done = sum(each.events for each in found) / sum(each.seconds for each in found)
    assert done >= rate / 6 - 2 / fixed_s
    assert all(each.seconds <= 5 * fixed_s + 2 / rate for each in found)


@given(st.floats(0, 3), st.integers(0, 2**32), st.floats(0.1, 20))
def test_on_a_busy_machine_where_each_cycle_takes_any_time_the_work_goes_on(
    part: float, seed: int, target_s: float
) -> None:
    """Whether fixed costs are above the target or not. Cycles vary by a factor of 2 each way."""
    chance, rate, fixed_s = Random(seed), 500_000.0, part * target_s
    seconds = linear(rate, fixed_s)
    found = [
        cycle
        for _, cycle in islice(
            cycles(
                begin(target_s, MANY), lambda events: seconds(events) * 2 ** chance.uniform(-1, 1)
            ),
            40,
            140,
        )
    ]
    done = sum(each.events for each in found) / sum(each.seconds for each in found)
    assert done >= rate / 10
    assert median(each.seconds for each in found) <= 2 * max(target_s, 2 * fixed_s)


def test_a_first_cycle_that_is_slow_since_all_is_cold_delays_growth_by_little() -> None:
    times = iter([6.0])
    warm = linear(1_000_000, 0.15)
    _, last = run(begin(2.0, MANY), lambda events: next(times, None) or warm(events), 9)
    assert last.events > 1_000_000


def test_small_cycles_in_quiet_times_are_no_reason_to_take_less() -> None:
    pacing = Pacing(target_s=2.0, max_events=MANY, events=3_000_000)
    for _ in range(100):
        pacing = pacing.after(Cycle(events=2_000, seconds=0.15))
    assert pacing.events == 3_000_000


sizes = st.lists(st.integers(0, 10**7), min_size=1, max_size=32)


def backlogs(lengths: list[int]) -> list[Range]:
    return [Range(partition=str(i), first=5, end=5 + size) for i, size in enumerate(lengths)]


@given(
    sizes,
    st.integers(0, 10**7),
    st.integers(1, 10**7),
    st.integers(1, 10**10),
    st.lists(st.floats(0.1, 1e6), min_size=32, max_size=32),
)
def test_shares_keep_to_the_bounds_and_leave_nobody_out(
    lengths: list[int], events: int, each: int, max_bytes: int, kinds: list[float]
) -> None:
    bytes_of = {str(i): size for i, size in enumerate(kinds)}
    found = share(
        backlogs(lengths),
        events=events,
        events_each=each,
        bytes_of=bytes_of,
        max_bytes=max_bytes,
    )
    assert {int(name) for name in found} == {i for i, size in enumerate(lengths) if size}
    for name, taken in found.items():
        assert taken.first == 5
        assert 1 <= len(taken) <= min(max(each, 1), lengths[int(name)])
    at_least = len(found)
    assert sum(map(len, found.values())) <= max(events, 0) + at_least
    size = sum(len(taken) * bytes_of[name] for name, taken in found.items())
    assert size <= max_bytes * 1.000001 + sum(bytes_of[name] for name in found)


@given(st.integers(2, 32), st.integers(1_000, 100_000), st.floats(1e5, 1e8))
def test_with_nine_tenths_in_one_partition_the_others_are_done_first(
    count: int, other: int, rate: float
) -> None:
    """And the large one has all of each cycle from then on."""
    left = [9 * other * (count - 1), *[other] * (count - 1)]
    taken, turn, pacing = 0, 0, begin(2.0, MANY)
    while any(left):
        allowed, there = pacing.events, sum(left)
        waited = any(left[1:])
        some = share(
            backlogs(left),
            events=allowed,
            events_each=allowed,
            bytes_of={},
            max_bytes=MANY,
            turn=turn,
        )
        for name, each in some.items():
            left[int(name)] -= len(each)
        events = sum(map(len, some.values()))
        taken, turn = taken + events, turn + 1
        assert events == min(allowed, there), "no cycle is left empty while there is a backlog"
        if waited and not any(left[1:]):
            assert taken <= count * other + allowed
        pacing = pacing.after(Cycle(events=events, seconds=0.05 + events / rate))
