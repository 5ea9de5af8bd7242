"""How long a job took, when others ran beside it or before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.spark.pacer import WAIT_MAX, Pacer, SharedTime

spans = st.tuples(st.floats(0, 100), st.floats(0, 10)).map(lambda span: (span[0], sum(span)))


@given(st.lists(spans, max_size=8))
def test_together_jobs_took_as_long_as_any_of_them_ran(jobs: list[tuple[float, float]]) -> None:
    time, begun, own_s = SharedTime(), dict[int, float](), 0.0
    # Of the same moment: what begins comes first.
    turns = sorted((at, ends, n) for n, job in enumerate(jobs) for ends, at in enumerate(job))
    busy_s, since = 0.0, 0.0
    for at, ends, n in turns:
        busy_s, since = busy_s + bool(begun) * (at - since), at
        if ends:
            own_s += time.end(at, begun.pop(n))
        else:
            begun[n] = time.begin(at)
    assert own_s == pytest.approx(busy_s)


def test_what_a_job_waited_for_behind_another_is_no_reason_for_smaller_ones() -> None:
    """As far ahead as the next one begins."""
    pacer = Pacer(target_s=2.0, max_events=1 << 40, overlap=True)
    for _ in range(10):
        grown = pacer.events > 1_900_000
        ahead_s = 2.0 - pacer.begin_next_s(2 * pacer.events, full=True) if grown else 0.2
        pacer.ended(pacer.events, pacer.events / 1e6 + ahead_s, own_s=pacer.events / 1e6)
    assert ahead_s == pytest.approx(0.5)
    assert 1_900_000 <= pacer.events <= 2_000_000


@given(st.floats(1e4, 1e8), st.floats(0.1, 60))
def test_jobs_that_really_run_at_once_do_not_become_ever_longer(
    rate: float, target_s: float
) -> None:
    """As on a cluster with cores to spare: each seems to have taken half of its time."""
    pacer = Pacer(target_s=target_s, max_events=1 << 60, overlap=True)
    for _ in range(40):
        seconds = pacer.events / rate
        pacer.ended(pacer.events, seconds, own_s=seconds / 2)
    assert pacer.events / rate <= 1.01 * WAIT_MAX * target_s + 2 / rate


def test_the_first_job_has_all_that_is_claimed() -> None:
    """Or the second one would be as small, however quick the first one was."""
    pacer = Pacer(target_s=2.0, max_events=1 << 40, overlap=True)
    assert pacer.claim_events == pacer.events
    pacer.ended(pacer.events, 0.2)
    assert pacer.claim_events == 2 * pacer.events


def test_the_second_job_of_a_backlog_has_another_beside_it_if_the_first_was_quick() -> None:
    pacer = Pacer(target_s=2.0, max_events=1 << 40, overlap=True)
    first_s = pacer.begin_next_s(pacer.events, full=True)
    assert first_s > 0, "nobody knows how long the first one takes"
    pacer.ended(pacer.events, 0.2)
    assert pacer.begin_next_s(pacer.events, full=True) == 0
    few_s = pacer.begin_next_s(pacer.events // 3, full=False)
    assert few_s > 0, "no backlog: what comes is gathered"
    pacer.ended(pacer.events, 0.4)
    assert pacer.begin_next_s(pacer.events, full=True) > 0


def test_after_a_first_job_that_was_slow_the_next_one_is_alone() -> None:
    pacer = Pacer(target_s=2.0, max_events=1 << 40, overlap=True)
    pacer.ended(pacer.events, 0.6)
    assert pacer.begin_next_s(pacer.events, full=True) > 0
