from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.breaker import Breaker, Bury, TryAgain, Wait

STEPS = st.lists(st.sampled_from(["buried", "handled"]), max_size=60)


@given(steps=STEPS, limit=st.integers(1, 8))
def test_it_is_open_after_so_many_letters_with_nothing_handled_in_between(
    steps: list[str], limit: int
) -> None:
    breaker, in_a_row = Breaker(limit=limit, pause_s=60), 0
    for now, step in enumerate(steps):
        breaker = breaker.handled() if step == "handled" else breaker.buried(now)
        in_a_row = 0 if step == "handled" else in_a_row + 1
        assert breaker.open == (in_a_row >= limit)


@given(steps=STEPS, late=st.floats(0, 1e6))
def test_closed_it_lets_every_letter_go(steps: list[str], late: float) -> None:
    breaker = Breaker(limit=100, pause_s=60)
    for now, step in enumerate(steps):
        breaker = breaker.handled() if step == "handled" else breaker.buried(now)
        assert breaker.verdict(late, tried_at=0.0) == Bury()


@given(
    asked=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60),
    limit=st.integers(1, 5),
)
def test_open_it_lets_one_letter_go_in_each_pause_and_none_untried(
    asked: list[tuple[int, bool]], limit: int
) -> None:
    """However often it is asked, by whichever partition."""
    breaker, now, letters = Breaker(limit=limit, pause_s=10), 0.0, list[float]()
    tried_at = 0.0
    for after, tries in asked:
        now += after
        match breaker.verdict(now, tried_at):
            case Bury():
                if breaker.open:
                    assert tried_at >= letters[-1] + 10
                    assert now >= letters[-1] + 10
                breaker = breaker.buried(now)
                letters.append(now)
            case Wait(seconds=seconds):
                assert 0 < seconds <= 10
            case TryAgain() if tries:
                tried_at = now


def test_a_feed_of_nothing_but_poison_is_not_blocked_for_ever() -> None:
    breaker, now = Breaker(limit=2, pause_s=10), 0.0
    for _ in range(20):
        match breaker.verdict(now, tried_at=now):
            case Wait(seconds=seconds):
                now += seconds
        assert breaker.verdict(now, tried_at=now) == Bury()
        breaker = breaker.buried(now)
    assert now == 180
