from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homes.domain.reading import MINUTE_MS
from homes.simulator.days import (
    BATTERY_FULL,
    BATTERY_REPLACED,
    CO,
    DAY_MINUTES,
    DOOR,
    GLASS,
    MOTION,
    WINDOW,
    IncidentRates,
    Town,
)
from leasehold.errors import BadInput

MONDAY = 1_767_571_200_000 // MINUTE_MS  # 5 January 2026, midnight
minutes = st.integers(1_000_000_000_000 // MINUTE_MS, 9_000_000_000_000 // MINUTE_MS)


def whole(town):
    return slice(0, town.homes)


def day_of(town, kinds=4, day=0):
    """Values of a whole day: minute, home, kind."""
    first = MONDAY + day * DAY_MINUTES
    found = [town.readings(first + m, whole(town), kinds) for m in range(DAY_MINUTES)]
    return np.stack([readings.values for readings in found])


@settings(max_examples=30)
@given(minute=minutes, seed=st.integers(0, 2**63 - 1), cuts=st.lists(st.integers(0, 60_000)))
def test_a_minute_in_pieces_is_the_minute(minute, seed, cuts):
    town = Town(40, seed)
    edges = [0, *sorted(cuts), 60_000]
    parts = [town.places(a, b) for a, b in pairwise(edges)]
    pieces = [town.readings(minute, part, 5) for part in parts]
    for piece, all_of_it in zip(
        zip(*pieces, strict=True), Town(40, seed).readings(minute, whole(town), 5), strict=True
    ):
        assert np.array_equal(np.concatenate(piece), all_of_it)


@settings(max_examples=30)
@given(minute=minutes, seed=st.integers(0, 1000))
def test_a_home_does_not_depend_on_how_many_others_there_are(minute, seed):
    def by_home(homes):
        town = Town(homes, seed, IncidentRates(break_ins_per_year=8760))
        found = town.readings(minute, whole(town), 5)
        return {
            int(home): [field[n].tolist() for field in found[1:]]
            for n, home in enumerate(found.homes)
        }

    few, many = by_home(5), by_home(50)
    assert few == {home: many[home] for home in range(5)}


def test_every_home_reports_once_a_minute_at_its_own_moment():
    town = Town(2000)
    first, second = (town.readings(MONDAY + n, whole(town)) for n in range(2))
    assert sorted(first.homes) == list(range(2000))
    assert np.array_equal(second.ts_ms - first.ts_ms, np.full((2000, 4), MINUTE_MS))
    assert (first.ts_ms // MINUTE_MS == MONDAY).all()
    seconds = np.bincount(first.ts_ms[:, 0] // 1000 % 60, minlength=60)
    assert seconds.min() > 10  # spread over the minute


def test_another_seed_is_another_town():
    one, other = (day_of(Town(20, seed)) for seed in (1, 2))
    assert not np.array_equal(one, other)


def test_people_sleep_at_night_work_on_weekdays_and_are_at_home_in_the_evening():
    motion = day_of(Town(400))[:, :, MOTION]
    night, noon, evening = (motion[h * 60 : h * 60 + 60].mean() for h in (3, 12, 20))
    assert night < 0.1 < noon < evening
    sunday = day_of(Town(400), day=6)[12 * 60 : 13 * 60, :, MOTION].mean()
    assert sunday > noon


def test_doors_open_when_people_go_out_and_come_in():
    doors = day_of(Town(400))[:, :, DOOR]
    assert doors[7 * 60 : 9 * 60].mean() > 3 * doors[2 * 60 : 4 * 60].mean()


def test_a_break_in_is_broken_glass_an_open_window_and_motion_where_nobody_is_up():
    values = day_of(Town(300, rates=IncidentRates(break_ins_per_year=365)))
    broken = np.argwhere(values[:, :, GLASS] == 1)
    assert len(broken) > 20
    for minute, home in broken:
        after = values[minute : minute + 5, home]
        assert after[:, WINDOW].all()
        assert after[:, MOTION].all()
    assert not day_of(Town(300, rates=IncidentRates(break_ins_per_year=0)))[:, :, GLASS].any()


def test_carbon_monoxide_is_low_unless_there_is_a_leak():
    calm = day_of(Town(100, rates=IncidentRates(leaks_per_year=0)), 5)[:, :, CO]
    assert 0 < calm.max() <= 3
    leaky = day_of(Town(100, rates=IncidentRates(leaks_per_year=365)), 5)[:, :, CO]
    assert 100 < leaky.max() < 250
    assert (leaky <= 3).mean() > 0.8


def test_batteries_decline_and_are_replaced():
    town = Town(50)
    levels = np.stack(
        [
            town.readings(MONDAY + day * DAY_MINUTES, whole(town)).battery[:, 0]
            for day in range(1500)
        ]
    )
    assert levels.min() >= BATTERY_REPLACED
    assert levels.max() <= BATTERY_FULL
    steps = np.diff(levels, axis=0)
    assert ((steps <= 0) | (steps > 80)).all()
    assert (steps > 80).any(axis=0).all()


def test_a_sensor_that_goes_silent_stays_so_for_hours():
    town = Town(100, rates=IncidentRates(silences_per_year=100))
    silent = np.stack(
        [town.readings(MONDAY + m, whole(town)).silent for m in range(3 * DAY_MINUTES)]
    )
    assert 0 < silent.mean() < 0.2
    changes = np.diff(silent.astype(int), axis=0)
    begun, ended = np.argwhere(changes == 1), np.argwhere(changes == -1)
    for minute, *sensor in begun:
        ends = [m for m, *other in ended if other == sensor and m > minute]
        assert not ends or ends[0] - minute >= 60


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Town(0), "homes is 0"),
        (lambda: Town(1_000_001), "homes is 1000001"),
        (lambda: Town(1, -1), "seed is -1"),
        (lambda: IncidentRates(leaks_per_year=float("nan")), "leaks_per_year is nan"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, says):
    with pytest.raises(BadInput, match=says):
        make()
