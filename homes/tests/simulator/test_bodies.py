import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homes.domain.kinds import KINDS
from homes.domain.reading import body, home_id
from homes.simulator.bodies import Writer
from homes.simulator.days import CO, IncidentRates, Readings, Town
from leasehold.errors import BadInput


def everything(town):
    return slice(0, town.homes)


@settings(max_examples=30)
@given(
    minute=st.integers(20_000_000, 150_000_000),
    seed=st.integers(0, 1000),
    kinds=st.sampled_from([4, 5]),
)
def test_columns_say_what_the_readings_say(minute, seed, kinds):
    town = Town(30, seed, IncidentRates(leaks_per_year=8760, silences_per_year=500))
    readings = town.readings(minute, everything(town), kinds)
    keys, bodies = Writer(town.numbers, kinds).columns(everything(town), readings)
    wanted = [
        json.loads(
            body(
                home_id(readings.homes[row]),
                KINDS[kind],
                round(readings.values[row, kind], 1),
                int(readings.battery[row, kind]),
                int(readings.ts_ms[row, kind]),
            )
        )
        for row in range(town.homes)
        for kind in range(kinds)
        if not readings.silent[row, kind]
    ]
    found = [json.loads(each) for each in bodies.to_pylist()]
    assert found == wanted
    assert keys.to_pylist() == [each["home_id"] for each in found]


@given(ppm=st.floats(0, 2000))
def test_every_level_of_carbon_monoxide_can_be_written(ppm):
    town = Town(1)
    readings = town.readings(29_000_000, slice(0, 1), 5)
    readings.values[0, CO] = ppm
    readings.silent[:] = False
    last = Writer(town.numbers, 5).columns(slice(0, 1), readings)[1].to_pylist()[-1]
    assert json.loads(last)["value"] == pytest.approx(min(ppm, 999.9), abs=0.051)


def test_a_body_has_about_110_bytes():
    town = Town(100)
    _, bodies = Writer(town.numbers, 5).columns(
        everything(town), town.readings(29_000_000, everything(town), 5)
    )
    assert {len(each) for each in bodies.to_pylist()} <= set(range(100, 115))


def test_a_time_of_other_than_13_digits_is_refused():
    town = Town(1)
    readings = town.readings(29_000_000, slice(0, 1))
    early = Readings(*readings[:1], np.full((1, 4), 10**12 - 1), *readings[2:])
    with pytest.raises(BadInput, match="readings have times from"):
        Writer(town.numbers, 4).columns(slice(0, 1), early)
