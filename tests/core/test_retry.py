from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold.core.retry import ALONE, WITHIN, Bisection, Decision, decide, describe, resume
from leasehold.settings import Retry

DEAD_LETTER = Retry(attempts=3, then="dead-letter")
FOREVER = Retry(attempts=3, then="retry-forever")
STOP = Retry(attempts=3, then="stop")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attempts", 0),
        ("attempts", ALONE),
        ("then", "panic"),
        ("backoff_s", -1.0),
        ("backoff_s", math.nan),
        ("backoff_max_s", 0.5),
        ("backoff_max_s", math.inf),
        ("factor", 0.5),
        ("factor", math.nan),
    ],
)
def test_a_bad_setting_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"Retry: {setting} must be .*, but is"):
        Retry(**{setting: value})


def test_the_wait_grows_by_the_factor_up_to_its_maximum() -> None:
    retry = Retry(backoff_s=1, backoff_max_s=10, factor=3)
    assert [retry.delay_s(n, chance=0.0) for n in (1, 2, 3, 4, 5)] == [0.5, 1.5, 4.5, 5.0, 5.0]


@given(
    st.integers(0, 2 * ALONE),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
    st.floats(1, 1e300),
)
@example(10**6, 0.5, 1e-300, 1e300, 1.0000001)
def test_a_wait_is_at_least_half_of_the_backoff_and_never_above_the_maximum(
    attempts: int, chance: float, backoff_s: float, more_s: float, factor: float
) -> None:
    retry = Retry(backoff_s=backoff_s, backoff_max_s=backoff_s + more_s, factor=factor)
    assert backoff_s / 2 <= retry.delay_s(attempts, chance) <= retry.backoff_max_s


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True))
def test_chance_spreads_the_wait_over_its_upper_half(n: int, chance: float) -> None:
    retry = Retry()
    longest = 2 * retry.delay_s(n, chance=0.0)
    assert retry.delay_s(n, chance) == pytest.approx(longest / 2 * (1 + chance))
    assert retry.delay_s(n, chance) <= longest


@pytest.mark.parametrize("alone", [0, ALONE])
@pytest.mark.parametrize("retry", [DEAD_LETTER, FOREVER, STOP])
def test_before_the_attempts_are_used_up_it_is_tried_again_after_a_wait(
    retry: Retry, alone: int
) -> None:
    assert decide(retry, alone + 2, 0.0) == Decision(do="again", delay_s=1.0)


@pytest.mark.parametrize(
    ("retry", "attempts", "do"),
    [
        (STOP, 3, "give-up"),
        (STOP, ALONE + 3, "give-up"),
        (FOREVER, 3, "again"),
        (FOREVER, ALONE + 999, "again"),
        (DEAD_LETTER, 3, "bisect"),
        (DEAD_LETTER, ALONE - 1, "bisect"),
        (DEAD_LETTER, WITHIN + 2, "bisect"),
        (DEAD_LETTER, ALONE + 3, "dead-letter"),
    ],
)
def test_after_the_last_attempt_the_setting_decides(retry: Retry, attempts: int, do: str) -> None:
    assert decide(retry, attempts, 0.0).do == do


@pytest.mark.parametrize(
    ("attempts", "text"),
    [
        (0, "no failure"),
        (4, "batch failed 4 times"),
        (ALONE + 4, "next event failed 4 times alone"),
        (WITHIN + 16, "failing within the next 16 events"),
    ],
)
def test_people_see_what_the_number_means(attempts: int, text: str) -> None:
    assert describe(attempts) == text


@dataclass
class Partition:
    """Events 0 … size-1, a handler that fails on some, and all that is kept when it crashes."""

    size: int
    poison: set[int]
    checkpoint: int = 0
    attempts: int = 0
    handled: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    calls: list[range] = field(default_factory=list)

    def fails(self, events: range) -> bool:
        self.calls.append(events)
        return any(event in self.poison for event in events)

    def save(self, batch: Bisection) -> None:
        assert batch.first >= self.checkpoint
        self.checkpoint, self.attempts = batch.first, batch.attempts

    def step(self, batch: Bisection) -> Bisection:
        """Try once, or dead-letter."""
        if batch.poison:
            assert self.times_alone(batch.first) >= batch.retry.attempts
            self.dead.append(batch.first)
            batch = batch.dead_lettered()
        elif self.fails(batch.target):
            batch = batch.failed()
        else:
            self.handled += batch.target
            batch = batch.succeeded()
        self.save(batch)
        return batch

    def begin(self, retry: Retry, batch_size: int) -> Bisection:
        end = min(self.size, self.checkpoint + batch_size)
        return resume(retry, self.checkpoint, end, self.attempts)

    def run(self, retry: Retry) -> None:
        batch = self.begin(retry, self.size)
        while not batch.done:
            batch = self.step(batch)

    def times_alone(self, event: int) -> int:
        return self.calls.count(range(event, event + 1))


def test_the_search_halves_what_fails_and_never_tries_again_whole_what_it_knows_to_fail() -> None:
    partition = Partition(size=8, poison={5})
    partition.run(Retry(attempts=2, then="dead-letter"))
    assert partition.calls == [
        range(8),
        range(8),
        range(4),
        range(4, 6),
        range(4, 5),
        range(5, 6),
        range(5, 6),
        range(6, 8),
    ]
    assert partition.dead == [5]


def test_a_batch_of_one_is_tried_alone_from_the_start() -> None:
    partition = Partition(size=1, poison={0})
    partition.run(DEAD_LETTER)
    assert (partition.dead, len(partition.calls)) == ([0], 3)


def test_an_empty_batch_is_done_and_holds_no_poison() -> None:
    batch = resume(DEAD_LETTER, 7, 7, attempts=ALONE + 9)
    assert (batch.done, batch.poison) == (True, False)


@pytest.mark.parametrize("retry", [FOREVER, STOP])
@given(st.integers(1, 40), st.integers(0, 3 * ALONE), st.integers(1, 9))
def test_without_dead_lettering_the_batch_is_only_ever_tried_whole(
    retry: Retry, size: int, attempts: int, failures: int
) -> None:
    batch = resume(retry, 10, 10 + size, attempts)
    for _ in range(failures):
        assert not batch.poison
        assert batch.target == range(10, 10 + size)
        batch = batch.failed()
    assert batch.succeeded().done
    assert batch.succeeded().attempts == 0


poisoned = st.integers(1, 70).flatmap(
    lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), max_size=6))
)
all_poison = (9, set(range(9)))


@given(poisoned, st.integers(1, 4))
@example(all_poison, 2)
def test_every_event_is_handled_once_in_order_except_the_poison_ones(
    events: tuple[int, set[int]], attempts: int
) -> None:
    size, poison = events
    partition = Partition(size=size, poison=poison)
    partition.run(Retry(attempts=attempts, then="dead-letter"))
    assert partition.handled == [event for event in range(size) if event not in poison]
    assert partition.dead == sorted(poison)
    assert (partition.checkpoint, partition.attempts) == (size, 0)


@given(poisoned, st.integers(1, 4))
@example(all_poison, 2)
def test_an_event_is_poison_after_exactly_its_attempts_alone(
    events: tuple[int, set[int]], attempts: int
) -> None:
    partition = Partition(size=events[0], poison=events[1])
    partition.run(Retry(attempts=attempts, then="dead-letter"))
    for event in partition.dead:
        assert partition.times_alone(event) == attempts


@given(poisoned, st.integers(1, 4))
@example(all_poison, 2)
def test_each_poison_event_costs_about_log2_of_the_batch_in_tries(
    events: tuple[int, set[int]], attempts: int
) -> None:
    size, poison = events
    partition = Partition(size=size, poison=poison)
    partition.run(Retry(attempts=attempts, then="dead-letter"))
    per_poison = 1 + math.ceil(math.log2(size)) + attempts
    assert len(partition.calls) <= attempts + len(poison) * per_poison


@given(poisoned)
def test_every_try_begins_at_the_checkpoint_and_what_failed_whole_is_not_tried_whole_again(
    events: tuple[int, set[int]],
) -> None:
    size, poison = events
    partition = Partition(size=size, poison=poison)
    partition.run(Retry(attempts=1, then="dead-letter"))
    assert len(set(partition.calls)) == len(partition.calls)
    starts = [call.start for call in partition.calls]
    assert starts == sorted(starts)


retries = st.builds(
    Retry,
    attempts=st.integers(1, 4),
    then=st.sampled_from(["dead-letter", "dead-letter", "retry-forever", "stop"]),
)


@settings(max_examples=300)
@given(poisoned, st.data())
def test_no_crash_no_other_batch_size_and_no_other_setting_condemns_an_innocent_event(
    events: tuple[int, set[int]], data: st.DataObject
) -> None:
    size, poison = events
    partition = Partition(size=size, poison=poison)
    for _ in range(data.draw(st.integers(1, 12))):
        retry = data.draw(retries)
        batch = partition.begin(retry, data.draw(st.integers(1, size)))
        for _ in range(data.draw(st.integers(0, 8))):
            if batch.done:
                break
            batch = partition.step(batch)
            # The life may end in the middle of the next try, which is then counted as failed.
            if data.draw(st.booleans()):
                if not (batch.done or batch.poison):
                    partition.calls.append(batch.target)
                    partition.attempts = batch.attempts_if_unfinished
                break
    if partition.checkpoint < size:
        partition.run(DEAD_LETTER)
    assert sorted(partition.handled + partition.dead) == list(range(size))
    assert partition.handled == sorted(partition.handled)
    assert poison <= set(partition.dead)


@given(poisoned, st.integers(1, 4), st.data())
def test_a_search_interrupted_between_tries_makes_the_same_tries_as_one_that_is_not(
    events: tuple[int, set[int]], attempts: int, data: st.DataObject
) -> None:
    retry = Retry(attempts=attempts, then="dead-letter")
    whole, interrupted = (Partition(size=events[0], poison=events[1]) for _ in range(2))
    whole.run(retry)
    batch = interrupted.begin(retry, events[0])
    while not batch.done:
        batch = interrupted.step(batch)
        if data.draw(st.booleans()):
            batch = interrupted.begin(retry, events[0])
    assert interrupted.calls == whole.calls


def test_a_search_goes_on_in_the_next_batch_if_this_one_ends_within_the_suspects() -> None:
    batch = resume(DEAD_LETTER, 0, 3, attempts=WITHIN + 16)
    assert batch.target == range(3)
    done = batch.succeeded()
    assert (done.done, done.attempts) == (True, WITHIN + 13)
    assert resume(DEAD_LETTER, 3, 100, done.attempts).target == range(3, 10)


def test_with_dead_lettering_switched_off_an_unfinished_search_is_a_batch_that_failed() -> None:
    batch = resume(STOP, 0, 8, attempts=WITHIN + 40)
    assert batch.target == range(8)
    assert batch.failed().attempts == STOP.attempts + 1
    assert batch.succeeded().attempts == 0


@given(poisoned, st.integers(1, 4))
@example(all_poison, 2)
def test_poison_that_kills_the_process_is_found_from_checkpoint_and_attempts_alone(
    events: tuple[int, set[int]], attempts: int
) -> None:
    size, poison = events
    retry = Retry(attempts=attempts, then="dead-letter")
    partition = Partition(size=size, poison=poison)
    crashes = 0
    while partition.checkpoint < size:
        batch = partition.begin(retry, size)
        while not batch.done:
            if not batch.poison and not poison.isdisjoint(batch.target):
                partition.calls.append(batch.target)
                partition.attempts = batch.attempts_if_unfinished
                crashes += 1
                break
            batch = partition.step(batch)
    assert partition.handled == [event for event in range(size) if event not in poison]
    assert partition.dead == sorted(poison)
    calm = Partition(size=size, poison=poison)
    calm.run(retry)
    assert crashes == sum(not poison.isdisjoint(call) for call in calm.calls)


@given(st.integers(2, 70), st.data())
def test_a_failure_that_passes_costs_nothing_but_tries(size: int, data: st.DataObject) -> None:
    """The search draws wrong conclusions from it; still all is handled, and nothing dead-lettered
    that has succeeded alone."""
    outages = data.draw(st.integers(1, 11))
    partition = Partition(size=size, poison=set(range(size)))
    batch = partition.begin(Retry(attempts=6, then="dead-letter"), size)
    for _ in range(outages):
        batch = partition.step(batch)
    partition.poison = set()
    while not batch.done:
        batch = partition.step(batch)
    assert partition.handled == list(range(size))


def test_poison_behind_a_long_retry_forever_is_found_once_dead_lettering_is_switched_on() -> None:
    """The count of the long outage must not be taken for tries of the first event alone."""
    partition = Partition(size=50, poison={30}, attempts=500)
    partition.run(DEAD_LETTER)
    assert partition.dead == [30]
    assert partition.handled == [event for event in range(50) if event != 30]


def test_a_lowered_number_of_attempts_condemns_no_event_that_was_not_tried_alone() -> None:
    partition = Partition(size=50, poison={30}, attempts=9)
    partition.run(Retry(attempts=1, then="dead-letter"))
    assert partition.dead == [30]


@pytest.mark.parametrize(("size", "mark"), [(10, ALONE), (1, WITHIN)])
def test_counting_stops_short_of_the_next_mark(size: int, mark: int) -> None:
    assert resume(FOREVER, 0, size, attempts=mark - 1).failed().attempts == mark - 1
