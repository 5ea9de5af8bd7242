"""The last day of all homes in memory: a ring of minutes, a ring of half hours, last readings.

About 1.7 kB a home. Partial aggregates are merged as they come, in any order; what is older than a
day, or further ahead than ``AHEAD_MINUTES``, leaves no trace.
"""

from __future__ import annotations

import json
import threading
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from homes.domain.activity_row import HOUR_MINUTES
from homes.domain.kinds import KINDS, MEASURED, NOTICED_ALARMS
from homes.domain.reading import HOME_ID, HOMES_MAX
from homes.local.whole_file import whole_file
from leasehold import strict_json

Ints = npt.NDArray[np.int64]
BUCKET_MINUTES = 30
DAY_BUCKETS = 48
AHEAD_MINUTES = 11
"""Sensors' clocks may be a little ahead of ours."""
EVENTS_MAX, LEVEL_MAX = 255, 65_535
PER_UNIT = 10
"""Levels are kept in tenths."""
IS_MEASURED = np.isin(np.arange(len(KINDS)), MEASURED)


class LastReading(NamedTuple):
    """Of one sensor."""

    kind: str
    value: float
    ts_ms: int
    battery: float | None


class Series(NamedTuple):
    """What happened in equal steps of time, by kind of sensor.

    A level is how often a sensor noticed something, or the highest value that it measured. None:
    there was no reading in that step.
    """

    start_minute: int
    step_minutes: int
    levels: dict[str, list[float | None]]


class _Rows(NamedTuple):
    """Rows as columns; homes and kinds by number."""

    home: Ints
    kind: Ints
    minute: Ints
    events: Ints
    active: Ints
    ppm: Ints
    last_ts: Ints
    last_value: npt.NDArray[np.float64]
    battery: npt.NDArray[np.float32]


class _Ring:
    """Counts and levels in each of the newest steps of time; what a home has lies together."""

    def __init__(self, step_minutes: int, back: int, ahead: int, homes: int) -> None:
        self.step, self.back, self.ahead = step_minutes, back, ahead
        self.slots = back + ahead + 1
        self.head: int | None = None
        self.events = np.zeros((homes, self.slots, len(KINDS)), np.uint8)
        self.levels = np.zeros((homes, self.slots, len(KINDS)), np.uint16)

    def advance(self, now_minute: int) -> None:
        """Make room: what leaves the ring is forgotten."""
        head = now_minute // self.step
        if self.head is None:
            self.head = head
        for step in range(max(self.head + 1, head - self.slots + 1), head + 1):
            slot = (step + self.ahead) % self.slots
            self.events[:, slot] = 0
            self.levels[:, slot] = 0
        self.head = max(self.head, head)

    def grow(self, homes: int) -> None:
        more = homes - len(self.events)
        self.events = np.pad(self.events, ((0, more), (0, 0), (0, 0)))
        self.levels = np.pad(self.levels, ((0, more), (0, 0), (0, 0)))

    def merged(self, rows: _Rows) -> pl.DataFrame:
        """What goes into each place."""
        assert self.head is not None
        step = rows.minute // self.step
        here = (step >= self.head - self.back) & (step <= self.head + self.ahead)
        place = (rows.home * self.slots + step % self.slots) * len(KINDS) + rows.kind
        columns = {"at": place, "events": rows.events, "active": rows.active, "ppm": rows.ppm}
        return (
            pl.DataFrame(columns)
            .filter(pl.Series(here))
            .group_by("at")
            .agg(pl.col("events", "active").sum(), pl.col("ppm").max())
        )

    def put(self, merged: pl.DataFrame) -> None:
        at = merged["at"].to_numpy()
        events, levels = self.events.reshape(-1), self.levels.reshape(-1)
        events[at] = np.minimum(events[at] + merged["events"].to_numpy(), EVENTS_MAX)
        counted = np.minimum(levels[at] + merged["active"].to_numpy(), LEVEL_MAX)
        highest = np.maximum(levels[at], merged["ppm"].to_numpy())
        levels[at] = np.where(IS_MEASURED[at % len(KINDS)], highest, counted)

    def some(self, home: int, kind: int, steps: int) -> bool:
        """Whether a sensor noticed anything in the last steps, or in those ahead of our clock."""
        assert self.head is not None
        slots = np.arange(self.head - steps + 1, self.head + self.ahead + 1) % self.slots
        return bool(self.levels[home, slots, kind].any())

    def series(self, home: int | None, steps: int) -> Series:
        assert self.head is not None
        first = self.head - steps + 1
        if home is None:
            return Series(first * self.step, self.step, {kind: [None] * steps for kind in KINDS})
        slots = np.arange(first, self.head + 1) % self.slots
        events, levels = self.events[home, slots].T.tolist(), self.levels[home, slots].T.tolist()
        for kind in MEASURED:
            levels[kind] = [level / PER_UNIT for level in levels[kind]]
        found = {
            kind: [level if some else None for level, some in zip(*both, strict=True)]
            for kind, *both in zip(KINDS, levels, events, strict=True)
        }
        return Series(first * self.step, self.step, found)


class Window:
    """One thread writes; any may read."""

    def __init__(self, now_minute: int, *, homes: int = 1024) -> None:
        self._places = np.full(homes, -1, np.int32)
        """By the number in a home's id; -1: it has none yet."""
        self._count = 0
        self._room = homes
        self._minutes = _Ring(1, HOUR_MINUTES, AHEAD_MINUTES, homes)
        self._buckets = _Ring(BUCKET_MINUTES, DAY_BUCKETS, 1, homes)
        self._last_ts: Ints = np.zeros((len(KINDS), homes), np.int64)
        self._last_value = np.zeros((len(KINDS), homes), np.float64)
        self._battery = np.full((len(KINDS), homes), np.nan, np.float32)
        self._lock = threading.Lock()
        self.now_minute = now_minute
        self.rejected: Counter[str] = Counter()
        """Readings that were not believed, by reason, since the window was made."""
        self.advance(now_minute)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        rings = (self._minutes, self._buckets)
        lasts = (self._last_ts, self._last_value, self._battery)
        return sum(r.events.nbytes + r.levels.nbytes for r in rings) + sum(a.nbytes for a in lasts)

    @property
    def since_minute(self) -> int:
        """Everything from here on has a place."""
        return (self.now_minute // BUCKET_MINUTES - DAY_BUCKETS) * BUCKET_MINUTES

    def advance(self, now_minute: int) -> None:
        if now_minute < self.now_minute:
            return  # a clock that was set back; the rings do not turn back
        with self._lock:
            self.now_minute = now_minute
            self._minutes.advance(now_minute)
            self._buckets.advance(now_minute)

    def add(self, rows: pl.DataFrame) -> None:
        """Merge rows of the activity table."""
        homeless = rows.filter(pl.col("home_id").is_null())
        for reason, events in homeless.select("kind", "events").iter_rows():
            self.rejected[reason] += events
        found = self._prepared(rows)
        if not len(found.home):
            return
        minutes, buckets = self._minutes.merged(found), self._buckets.merged(found)
        with self._lock:  # readers wait for this only
            self._grow()
            self._minutes.put(minutes)
            self._buckets.put(buckets)
            self._note(found)

    def _prepared(self, rows: pl.DataFrame) -> _Rows:
        """Numbers for homes and kinds; without what has no place."""
        ppm = (pl.col("highest") * PER_UNIT).round().clip(0, LEVEL_MAX).fill_null(0)
        rows = rows.filter(pl.col("minute") >= self.since_minute).select(
            pl.col("home_id").str.slice(1).cast(pl.Int64, strict=False).alias("number"),
            pl.col("kind").replace_strict(
                KINDS, range(len(KINDS)), default=None, return_dtype=pl.Int64
            ),
            "minute",
            "events",
            "active",
            ppm.cast(pl.Int64).alias("ppm"),
            "last_ts",
            "last_value",
            pl.col("battery").clip(0, 100).cast(pl.Float32).fill_null(float("nan")),
        )
        rows = rows.filter(
            pl.col("number").is_between(0, HOMES_MAX - 1) & pl.col("kind").is_not_null()
        )
        near = rows.filter(pl.col("minute") <= self.now_minute + AHEAD_MINUTES)
        numbers = near["number"].to_numpy()
        if len(numbers) and (most := int(numbers.max())) >= len(self._places):
            more = min(HOMES_MAX, 2 * (most + 1)) - len(self._places)
            self._places = np.pad(self._places, (0, more), constant_values=-1)
        new = np.unique(numbers[self._places[numbers] < 0])
        self._places[new] = np.arange(len(self), len(self) + len(new))
        self._count += len(new)
        columns = (near[name].to_numpy() for name in near.columns[1:])
        return _Rows(self._places[numbers].astype(np.int64), *columns)

    def _grow(self) -> None:
        if len(self) <= self._room:
            return
        room = max(len(self), self._room * 2)
        more = room - self._room
        self._minutes.grow(room)
        self._buckets.grow(room)
        self._last_ts = np.pad(self._last_ts, ((0, 0), (0, more)))
        self._last_value = np.pad(self._last_value, ((0, 0), (0, more)))
        self._battery = np.pad(self._battery, ((0, 0), (0, more)), constant_values=np.nan)
        self._room = room

    def _note(self, rows: _Rows) -> None:
        newer = np.flatnonzero(rows.last_ts >= self._last_ts[rows.kind, rows.home])
        order = newer[np.argsort(rows.last_ts[newer], kind="stable")]
        at = (rows.kind[order], rows.home[order])  # where one is twice, the last is kept
        self._last_ts[at] = rows.last_ts[order]
        self._last_value[at] = rows.last_value[order]
        self._battery[at] = rows.battery[order]

    def save(self, path: Path, **marks: Any) -> None:
        """Keep it for a quick start, whole or not at all; for the thread that adds. ``marks`` come
        back with ``load``."""
        state: dict[str, Any] = {
            "now_minute": self.now_minute,
            "count": self._count,
        }
        state |= {"rejected": dict(self.rejected), "marks": marks}
        arrays: dict[str, Any] = {"state": np.array(json.dumps(state)), **self._arrays()}
        with whole_file(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> tuple[Window, dict[str, Any]]:
        """``ValueError``: it is damaged, or was kept by a version that had it otherwise."""
        try:
            with np.load(path, allow_pickle=False) as kept:
                state = strict_json.loads(str(kept["state"]))
                arrays = {name: kept[name] for name in kept.files if name != "state"}
            window = cls(state["now_minute"], homes=arrays["last_ts"].shape[1])
            window._places = arrays["places"]
            wanted = {name: (a.shape, a.dtype) for name, a in window._arrays().items()}
            if {name: (a.shape, a.dtype) for name, a in arrays.items()} != wanted:
                raise ValueError("its arrays have other shapes")
            window._restore(arrays)
            window._count = int(state["count"])
            window.rejected = Counter(state["rejected"])
            return window, dict(state["marks"])
        except (OSError, KeyError, TypeError, zipfile.BadZipFile, EOFError) as error:
            raise ValueError(str(error)) from error

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "places": self._places,
            "last_ts": self._last_ts,
            "last_value": self._last_value,
            "battery": self._battery,
            "minute_events": self._minutes.events,
            "minute_levels": self._minutes.levels,
            "bucket_events": self._buckets.events,
            "bucket_levels": self._buckets.levels,
        }

    def _restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self._last_ts = arrays["last_ts"]
        self._last_value, self._battery = arrays["last_value"], arrays["battery"]
        self._minutes.events = arrays["minute_events"]
        self._minutes.levels = arrays["minute_levels"]
        self._buckets.events = arrays["bucket_events"]
        self._buckets.levels = arrays["bucket_levels"]

    def readings(self, home_id: str) -> list[LastReading]:
        """The last one of each sensor that has sent any."""
        with self._lock:
            home = self._place(home_id)
            if home is None:
                return []
            ts, values = self._last_ts[:, home].tolist(), self._last_value[:, home].tolist()
            batteries: npt.NDArray[np.float32] = self._battery[:, home]
            return [
                LastReading(kind, value, at, None if np.isnan(battery) else float(battery))
                for kind, at, value, battery in zip(KINDS, ts, values, batteries, strict=True)
                if at
            ]

    def last_hour(self, home_id: str) -> Series:
        """By minute."""
        with self._lock:
            return self._minutes.series(self._place(home_id), HOUR_MINUTES)

    def noticed_alarms(self, home_id: str, minutes: int) -> tuple[str, ...]:
        """Kinds that gave alarm within the last minutes, by the sensor's clock, which may be a
        little ahead."""
        with self._lock:
            home = self._place(home_id)
            if home is None:
                return ()
            found = (kind for kind in NOTICED_ALARMS if self._minutes.some(home, kind, minutes))
            return tuple(KINDS[kind] for kind in found)

    def last_day(self, home_id: str) -> Series:
        """By half hour; the last one is still going on."""
        with self._lock:
            return self._buckets.series(self._place(home_id), DAY_BUCKETS)

    def _place(self, home_id: str) -> int | None:
        if not HOME_ID.fullmatch(home_id):
            return None
        places, number = self._places, int(home_id[1:])
        home = int(places[number]) if number < len(places) else -1
        return home if 0 <= home < self._room else None
