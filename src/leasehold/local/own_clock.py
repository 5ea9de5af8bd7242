"""A file's own clock, because nobody's wall clock may decide what is old enough to be removed.

Its *own time* counts seconds of the machine's boot-time clock, which nobody can set: ages by it are
never more than true ages. Where the machine was off, or the file went to another one, it stands
still instead of guessing. The *wall time* for stamps follows the wall clock, but no single step of
it: a step counts once no writer has contradicted it for a while.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from leasehold.local.sql import load_queries

SQL = load_queries(__package__, "own_clock.sql")
STEP_US = 2_000_000
"""A wall clock that differs by more from what is expected was set, or is another machine's."""
BELIEVE_AFTER_US = 300_000_000
SEE_EVERY_US = 10_000_000
"""So much own time may be lost when a machine goes down."""
BOOTS_KEPT = 16


class ClockReading(NamedTuple):
    """What a machine's clocks say at one moment."""

    wall_us: int
    boot_us: int
    boot_id: str
    """Boot times of different ids have nothing to do with each other."""


Clocks = Callable[[], ClockReading]


class ClockSight(NamedTuple):
    """What a file remembers of the clocks of one machine since it was started."""

    boot_us: int
    own_us: int
    wall_us: int
    doubted_us: int | None = None
    """Boot time since which every wall clock seen was another than expected."""


class Now(NamedTuple):
    own_us: int
    wall_us: int


def read_clocks() -> ClockReading:
    boot_ns = time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    return ClockReading(time.time_ns() // 1000, boot_ns // 1000, _boot_id())


def tell(latest_us: int, seen: ClockSight | None, reading: ClockReading) -> tuple[Now, ClockSight]:
    """The time, and what to remember. ``latest_us`` is the latest own time of any machine."""
    boot_us, wall_us = reading.boot_us, reading.wall_us
    if seen is None or boot_us < seen.boot_us:
        return Now(latest_us, wall_us), ClockSight(boot_us, latest_us, wall_us)
    elapsed_us = boot_us - seen.boot_us
    # The same moment may have been reached by way of another machine: the longest way is the
    # closest to the truth, and none is too long.
    own_us = max(latest_us, seen.own_us + elapsed_us)
    expected_us, doubted_us = seen.wall_us + elapsed_us, seen.doubted_us
    if abs(wall_us - expected_us) <= STEP_US or (
        doubted_us is not None and boot_us - doubted_us >= BELIEVE_AFTER_US
    ):
        doubted_us = None
    else:
        doubted_us = boot_us if doubted_us is None else doubted_us
        wall_us = expected_us
    return Now(own_us, wall_us), ClockSight(boot_us, own_us, wall_us, doubted_us)


def look(db: sqlite3.Connection, reading: ClockReading) -> Now:
    """For readers: what a writer would be told."""
    return tell(*_seen(db, reading), reading)[0]


def keep(db: sqlite3.Connection, reading: ClockReading) -> Now:
    """For writers, within their transaction: remembers what it saw, where that is news."""
    latest_us, seen = _seen(db, reading)
    now, sight = tell(latest_us, seen, reading)
    news = seen is None or (
        sight.boot_us - seen.boot_us >= SEE_EVERY_US
        or sight.own_us - seen.own_us > sight.boot_us - seen.boot_us  # by way of another machine
        or (sight.doubted_us is None) != (seen.doubted_us is None)
    )
    if news:
        db.execute(SQL["see"], (*sight, reading.boot_id))
        db.execute(SQL["forget"], (BOOTS_KEPT,))
    return now


def with_clock(queries: Mapping[str, str]) -> dict[str, str]:
    """A file's statements, with those that make the table of its clock."""
    made = {name: f"{queries[name]};\n{SQL['create']}" for name in ("create", "to_2")}
    return {**queries, **made}


def _seen(db: sqlite3.Connection, reading: ClockReading) -> tuple[int, ClockSight | None]:
    latest_us, seen = 0, None
    for boot_id, *row in db.execute(SQL["sights"]):
        sight = ClockSight(*row)
        latest_us = max(latest_us, sight.own_us)
        if boot_id == reading.boot_id:
            seen = sight
    return latest_us, seen


@cache
def _boot_id() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # A time namespace of its own may count from another moment.
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        # The machine has to do; ``tell`` notices a boot time that fell, and one that has risen
        # since is not more than what has passed.
        return f"machine-{uuid.getnode():012x}"
