from hypothesis import given
from hypothesis import strategies as st

from leasehold.local.whole_seconds import certain_age_s

TIMES = st.floats(0, 1e9)


@given(then_s=TIMES, passed_s=st.floats(0, 1e6))
def test_an_age_is_never_more_than_what_has_passed_and_at_most_two_seconds_less(then_s, passed_s):
    now_s = then_s + passed_s
    age_s = certain_age_s(int(now_s), int(then_s))
    assert now_s - then_s - 2 <= age_s <= now_s - then_s + 1e-6


def test_a_clock_that_was_set_back_shows():
    assert certain_age_s(100, 130) == -30
