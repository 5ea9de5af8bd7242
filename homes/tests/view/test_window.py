from __future__ import annotations

from typing import Any

from activity_rows import NOW_MINUTE, frame, row
from hypothesis import given
from hypothesis import strategies as st

from homes.domain.kinds import KINDS
from homes.view.window import AHEAD_MINUTES, BUCKET_MINUTES, DAY_BUCKETS, Series, Window

HOMES = ["H000001", "H000002", "H000003"]
ROWS = st.builds(
    row,
    st.sampled_from(HOMES),
    st.sampled_from(KINDS),
    st.one_of(st.integers(-12, 70), st.integers(0, 1600)),
    st.sampled_from([0.0, 1.0, 45.5]),
    events=st.integers(1, 5),
)


def plainly(rows: list[dict[str, Any]], kind: str, series: Series, steps: int) -> Any:
    """The same by hand, from all rows of a home."""
    levels: list[float | None] = []
    step = series.step_minutes
    for n in range(steps):
        start = series.start_minute + n * step
        here = [r for r in rows if r["kind"] == kind and start <= r["minute"] < start + step]
        if not here:
            levels.append(None)
        elif kind == "co":
            levels.append(max(r["highest"] for r in here))
        else:
            levels.append(sum(r["active"] for r in here))
    return levels


@given(st.lists(st.lists(ROWS, max_size=12), max_size=6), st.integers(0, 90))
def test_what_is_merged_piece_by_piece_is_what_all_rows_say(
    pieces: list[list[dict[str, Any]]], later: int
) -> None:
    window = Window(NOW_MINUTE, homes=1)
    for piece in pieces:
        window.add(frame(piece))
    window.advance(NOW_MINUTE + later)
    now = NOW_MINUTE + later
    rows = [r for piece in pieces for r in piece if r["minute"] <= NOW_MINUTE + AHEAD_MINUTES]
    for home in HOMES:
        hour, day = window.last_hour(home), window.last_day(home)
        here = [r for r in rows if r["home_id"] == home]
        assert (hour.start_minute, hour.step_minutes) == (now - 59, 1)
        first = (now // BUCKET_MINUTES - DAY_BUCKETS + 1) * BUCKET_MINUTES
        assert (day.start_minute, day.step_minutes) == (first, BUCKET_MINUTES)
        for kind in KINDS:
            assert hour.levels[kind] == plainly(here, kind, hour, 60)
            assert day.levels[kind] == plainly(here, kind, day, DAY_BUCKETS)


@given(st.permutations([row(ago=ago, value=float(ago), battery=50.0 + ago) for ago in range(5)]))
def test_the_last_reading_is_the_latest_whatever_comes_last(rows: list[dict[str, Any]]) -> None:
    window = Window(NOW_MINUTE)
    for each in rows:
        window.add(frame([each]))
    (reading,) = window.readings("H000001")
    assert (reading.value, reading.battery, reading.ts_ms) == (0.0, 50.0, NOW_MINUTE * 60_000)


def test_one_sensor_far_ahead_does_not_push_out_everybodys_hour() -> None:
    window = Window(NOW_MINUTE)
    window.add(frame([row(value=1.0)]))
    window.add(frame([row("H000002", ago=-600, value=1.0)]))
    assert window.last_hour("H000001").levels["door"][-1] == 1
    assert window.readings("H000002") == []


def test_counts_stop_at_their_greatest_and_do_not_start_again_at_zero() -> None:
    window = Window(NOW_MINUTE)
    for _ in range(3):
        window.add(frame([row(value=1.0, events=200, active=40_000)]))
    assert window.last_hour("H000001").levels["door"][-1] == 65_535


def test_rows_without_a_home_and_of_kinds_to_come_are_passed_over() -> None:
    window = Window(NOW_MINUTE)
    window.add(frame([row(None, "wrong time"), row(kind="radar"), row(battery=None)]))
    assert len(window) == 1
    assert window.rejected == {"wrong time": 1}
    assert [(r.kind, r.battery) for r in window.readings("H000001")] == [("door", None)]


def test_a_home_that_nobody_knows_has_no_readings_and_an_empty_chart() -> None:
    window = Window(NOW_MINUTE)
    assert window.readings("H999999") == []
    assert set(window.last_day("H999999").levels["door"]) == {None}


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    window = Window(NOW_MINUTE)
    window.add(frame([row(value=1.0)]))
    window.advance(NOW_MINUTE - 500)
    assert window.last_hour("H000001").levels["door"][-1] == 1


def test_a_hundred_thousand_homes_fit_in_two_hundred_megabytes() -> None:
    assert Window(NOW_MINUTE, homes=100_000).nbytes < 200e6
