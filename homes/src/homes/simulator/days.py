"""Believable days in many homes, as a pure function of the seed, the minute and the home.

Nothing is remembered from one minute to the next, so any slice of time can be computed again, by
any process. What happens in a home does not depend on how many others there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from homes.domain.kinds import FITTED, KINDS
from homes.domain.reading import HOMES_MAX, MINUTE_MS
from leasehold import BadInput

MOTION, DOOR, WINDOW, GLASS, CO = map(KINDS.index, ("motion", "door", "window", "glass", "co"))
SENSOR_GAP_MS = 100
"""A home's sensors report one after another."""
DAY_MINUTES = 1440
YEAR_MINUTES = 365 * DAY_MINUTES
BATTERY_FULL, BATTERY_REPLACED = 99, 10

ASLEEP, AWAY, HOME = range(3)
DOOR_CHANCE = np.array([0.0005, 0.0, 0.02])
MOTION_CHANCE = np.array([0.02, 0.001, 0.0])  # at home: by the home's own liveliness

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRates:
    """How often the rare things happen."""

    break_ins_per_year: float = 1.0
    """Per home."""
    leaks_per_year: float = 0.2
    """Of carbon monoxide, per home."""
    silences_per_year: float = 3.0
    """Per sensor; each takes one to six hours."""

    def __post_init__(self) -> None:
        for name in ("break_ins_per_year", "leaks_per_year", "silences_per_year"):
            if not 0 <= getattr(self, name) <= 8760:
                raise BadInput(f"{name} is {getattr(self, name)}; it is 0 to 8760, once an hour")


class Readings(NamedTuple):
    """Readings of some homes in one minute: a row per home, a column per kind of sensor."""

    homes: Ints
    """The homes' numbers, in the order in which they report."""
    ts_ms: Ints
    values: npt.NDArray[np.float64]
    battery: Ints
    silent: Bools
    """Where a sensor is silent, there is no reading."""


class _Day(NamedTuple):
    """When people get up, leave, come back and go to bed, in minutes of the day."""

    wake: Ints
    leave: Ints
    back: Ints
    bed: Ints


class _Spells(NamedTuple):
    """Rare things that begin within one stretch of time."""

    place: Ints
    """Which homes, by their place in the minute."""
    start: Ints
    length: Ints
    size: npt.NDArray[np.float64]
    """How bad it is, 0 to 1."""


class Town:
    """Homes 0 to ``homes`` - 1. They report in the order of their own moment of the minute."""

    def __init__(self, homes: int, seed: int = 1, rates: IncidentRates | None = None) -> None:
        if not 1 <= homes <= HOMES_MAX:
            raise BadInput(f"homes is {homes}; it is 1 to {HOMES_MAX:,}")
        if not 0 <= seed < 1 << 63:
            raise BadInput(f"seed is {seed}; it is 0 or more, in 63 bits")
        self.homes, self.seed = homes, seed
        self.rates = rates or IncidentRates()
        numbers = np.arange(homes, dtype=np.uint64)
        keys = _mixed(numbers + _mixed_one(seed))
        room_ms = MINUTE_MS - len(KINDS) * SENSOR_GAP_MS
        moments = (_mixed(keys ^ _mixed_one(1)) % np.uint64(room_ms)).astype(np.int64)
        order = np.argsort(moments, kind="stable")
        self.numbers: Ints = order.astype(np.int64)
        self.moments: Ints = moments[order]
        self._keys: Hashes = keys[order]
        self._lively = 0.3 + 0.4 * chance(self._hashes(2))
        self._works = chance(self._hashes(3)) < 0.65
        self._battery_life = [
            _between(self._hashes(10 + k), 200, 1000) * 24 for k in range(len(KINDS))
        ]
        self._battery_phase = [_between(self._hashes(20 + k), 0, 24_000) for k in range(len(KINDS))]
        self._day = lru_cache(4)(self._make_day)
        self._battery = lru_cache(4)(self._make_battery)
        self._spells = lru_cache(32)(self._make_spells)

    def places(self, from_ms: int, to_ms: int) -> slice:
        """Which homes report within [from, to) of a minute, by their place in it."""
        start, stop = self.moments.searchsorted([from_ms, to_ms])
        return slice(int(start), int(stop))

    def readings(self, minute: int, part: slice, kinds: int = FITTED) -> Readings:
        """Readings of the homes in these places, of the first ``kinds`` kinds of sensor."""
        values = np.zeros((part.stop - part.start, kinds))
        state, turns = self._states(minute, part)
        dice = self._hashes(4, minute, part)
        moving = MOTION_CHANCE[state]
        moving[state == HOME] = self._lively[part][state == HOME]
        values[:, MOTION] = (chance(dice) < moving) | turns
        values[:, DOOR] = (chance(dice << np.uint64(24)) < DOOR_CHANCE[state]) | turns
        airing = chance(self._hashes(5, minute // 120, part)) < 0.08
        values[:, WINDOW] = airing & (state != AWAY)
        self._break_in(values, minute, part)
        if kinds > CO:
            self._leak(values, dice, minute, part)
        ts_ms = minute * MINUTE_MS + self.moments[part]
        return Readings(
            self.numbers[part],
            ts_ms[:, None] + np.arange(kinds) * SENSOR_GAP_MS,
            values,
            self._battery(minute // 60)[part, :kinds],
            self._silent(minute, part, kinds),
        )

    def dice(self, minute: int, part: slice, kinds: int) -> Hashes:
        """A number for each sensor and minute, for further decisions by the seed."""
        homes = self._hashes(8, minute, part)
        return _mixed(homes[:, None] + np.arange(kinds, dtype=np.uint64))

    def _states(self, minute: int, part: slice) -> tuple[Ints, Bools]:
        """Asleep, away or at home; and whether somebody goes out or comes in right now."""
        day, now = self._day(minute // DAY_MINUTES), minute % DAY_MINUTES
        leave, back = day.leave[part], day.back[part]
        asleep = (now < day.wake[part]) | (now >= day.bed[part])
        away = (leave <= now) & (now < back)
        state = np.where(away, AWAY, np.where(asleep, ASLEEP, HOME))
        passing = ((now == leave) | (now == back)) & (back - leave < DAY_MINUTES) & (back > leave)
        return state, passing

    def _make_day(self, day: int) -> _Day:
        dice = self._hashes(6, day)
        wake, bed = _between(dice, 330, 450), _between(_turned(dice, 16), 1290, 1439)
        work = self._works & ((day + 3) % 7 < 5)  # 1 January 1970 was a Thursday
        leave = np.where(
            work, _between(_turned(dice, 24), 420, 540), _between(_turned(dice, 24), 560, 900)
        )
        back = np.where(
            work,
            _between(_turned(dice, 32), 960, 1110),
            leave + _between(_turned(dice, 32), 20, 240),
        )
        stays = ~work & (chance(_turned(dice, 48)) < 0.4)
        holidays = chance(self._hashes(7, day // 7)) < 0.04
        leave = np.where(holidays, 0, leave)
        back = np.where(holidays, DAY_MINUTES, np.where(stays, leave, back))
        return _Day(wake, leave, back, bed)

    def _break_in(self, values: npt.NDArray[np.float64], minute: int, part: slice) -> None:
        """Glass breaks, the window is open, somebody moves; only where nobody was at home."""
        for place, age, _ in self._going_on(30, minute, 60, self.rates.break_ins_per_year, part):
            state, _ = self._states(minute - age, slice(place, place + 1))
            if state[0] != HOME:
                row = values[place - part.start]
                row[GLASS], row[WINDOW], row[MOTION] = age == 0, 1, age < 6

    def _leak(
        self, values: npt.NDArray[np.float64], dice: Hashes, minute: int, part: slice
    ) -> None:
        """Parts per million: a few at most; in a leak up to 200 within half an hour."""
        values[:, CO] = np.round(3 * chance(dice << np.uint64(40)), 1)
        for place, age, size in self._going_on(31, minute, 60, self.rates.leaks_per_year, part):
            rise = min(age + 1, 60 - age) / 30
            values[place - part.start, CO] += round((80 + 120 * size) * rise, 1)

    def _silent(self, minute: int, part: slice, kinds: int) -> Bools:
        silent = np.zeros((part.stop - part.start, kinds), dtype=np.bool_)
        for kind in range(kinds):
            found = self._going_on(40 + kind, minute, 360, self.rates.silences_per_year, part)
            for place, _, _ in found:
                silent[place - part.start, kind] = True
        return silent

    def _going_on(
        self, stream: int, minute: int, stretch: int, per_year: float, part: slice
    ) -> list[tuple[int, int, float]]:
        """The spells of some homes at a minute: place, minutes since the start, size."""
        found = []
        for number in (minute // stretch - 1, minute // stretch):
            spells = self._spells(stream, number, stretch, per_year)
            age = minute - spells.start
            here = (part.start <= spells.place) & (spells.place < part.stop)
            for n in np.flatnonzero(here & (age >= 0) & (age < spells.length)):
                found.append((int(spells.place[n]), int(age[n]), float(spells.size[n])))
        return found

    def _make_spells(self, stream: int, number: int, stretch: int, per_year: float) -> _Spells:
        dice = self._hashes(stream, number)
        place = np.flatnonzero(chance(dice) < per_year * stretch / YEAR_MINUTES)
        dice = _mixed(dice[place])
        return _Spells(
            place.astype(np.int64),
            number * stretch + _between(dice, 0, stretch),
            _between(_turned(dice, 16), stretch // 6, stretch + 1)
            if stretch > 60
            else np.full(len(place), stretch, dtype=np.int64),
            chance(_turned(dice, 32)),
        )

    def _make_battery(self, hour: int) -> Ints:
        """Declines over months, and is replaced when it is low."""
        columns = [
            BATTERY_FULL - (BATTERY_FULL - BATTERY_REPLACED + 1) * ((hour + phase) % life) // life
            for life, phase in zip(self._battery_life, self._battery_phase, strict=True)
        ]
        return np.stack(columns, axis=1)

    def _hashes(self, stream: int, time: int = 0, part: slice | None = None) -> Hashes:
        """A number for each home that depends on nothing but home, seed, stream and time."""
        keys = self._keys if part is None else self._keys[part]
        return _mixed(keys ^ _mixed_one((stream << 48) ^ time))


def _mixed(state: Any) -> Hashes:
    """The finaliser of SplitMix64, over a whole column."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Hashes = state ^ (state >> np.uint64(31))
    return found


def _mixed_one(number: int) -> np.uint64:
    return np.uint64(_mixed(np.array([number & (1 << 64) - 1], dtype=np.uint64))[0])


def chance(hashes: Hashes) -> npt.NDArray[np.float64]:
    """From 0 up to 1, by the topmost bits."""
    return (hashes >> np.uint64(40)).astype(np.float64) * 2.0**-24


def _between(hashes: Hashes, low: int, high: int) -> Ints:
    """Whole numbers from low up to, not including, high."""
    return low + (chance(hashes) * (high - low)).astype(np.int64)


def _turned(hashes: Hashes, bits: int) -> Hashes:
    """Other bits on top: one hash serves several decisions."""
    return (hashes << np.uint64(bits)) | (hashes >> np.uint64(64 - bits))


class Scene(NamedTuple):
    after_s: float
    """Since the scene before."""
    kind: str
    value: float


STORY = (
    Scene(8, "door", 1),  # somebody comes home
    Scene(3, "motion", 1),
    Scene(4, "door", 0),
    Scene(20, "window", 1),
    Scene(15, "window", 0),
    Scene(40, "glass", 1),  # and then a window breaks
    Scene(5, "motion", 1),
)
"""What happens in the demo's home by itself."""
