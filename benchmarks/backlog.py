"""A large backlog and what happens meanwhile: an instance that joins, one that is killed, a handler
that becomes ten times slower. Each instance is a Spark application of its own.

Every event counts once in the end, or the measurement fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.plot import Line, plot, steps
from benchmarks.row import Row
from benchmarks.spark import _require_count, _table, make

EVENTS = 20_000_000
WARM_EVENTS = 20_000
"""An instance joins when its Spark is warm."""
PATIENCE_S = 1800.0
CYCLE_S = 2.0
SLOW_S = 10.0
"""By the clock: a number of events may be done at once, by jobs that began before."""


def run(
    *,
    events: int = EVENTS,
    report: Path | None = None,
    folder: Path | None = None,
    **settings: Any,
) -> Iterator[Row]:
    """``settings``: further ones of the processors."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        make(place / "hub.db", events).close()
        yield from _joining(place, events, settings)
        yield from _eventful(place, events, report, settings)


class Application:
    """One instance, and what it has told so far."""

    def __init__(self, folder: Path, hub: Path, instance: str, **more: Any) -> None:
        folder.mkdir(exist_ok=True)
        said = {
            "folder": str(folder),
            "hub": str(hub),
            "instance": instance,
            "cores": 1,
            "warm": 0,
            "until_drained": True,
            **more,
            "settings": {"cycle_s": CYCLE_S, **more.get("settings", {})},
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.backlog_app", json.dumps(said)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.told: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # the rest is Spark's own
                self.told.append(json.loads(line))

    def all(self, what: str) -> list[dict[str, Any]]:
        return [each for each in list(self.told) if each["what"] == what]

    def ready(self) -> Application:
        self.wait(lambda: bool(self.all("ready")))
        return self

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            code = self._process.poll()
            if code is not None:
                self._reader.join()
                if done():
                    return
                raise AssertionError(f"an application ended too early, with {code}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not done within {PATIENCE_S:g} s")
            time.sleep(0.05)

    def stop(self) -> None:
        """In order, as Ctrl-C does."""
        self._process.terminate()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()


def _joining(folder: Path, events: int, settings: Mapping[str, Any]) -> Iterator[Row]:
    place = folder / "joining"
    one, two = (
        Application(place, folder / "hub.db", name, warm=WARM_EVENTS, settings=settings)
        for name in ("one", "two")
    )
    try:
        one.ready()
        two.ready()  # or the backlog may be gone before it is
        one.go()
        one.wait(lambda: len(one.all("done")) >= 4)
        two.go()
        joined = time.time()
        two.wait(lambda: len(two.all("open")) >= 8)
        even_s = two.all("open")[7]["at"] - joined
        two.wait(lambda: len(two.all("done")) >= 4)
        asked = time.time()
        two.stop()
        two.wait(lambda: bool(two.all("end")))
        stop_s = two.all("end")[0]["at"] - asked
        one.wait(lambda: bool(one.all("end")))
        begun = _events((one, two), "begin")
        rows = _table(place)
        _require_count(rows, events)
    finally:
        one.kill()
        two.kill()
    jobs = [each for app in (one, two) for each in app.all("done")]
    what = f"joining in a backlog of {events:,}"
    yield Row(what=f"{what}: until even", value=even_s, unit="s")
    yield Row(
        what=f"{what}: until one that is stopped has left",
        value=stop_s,
        unit="s",
        target=2 * CYCLE_S + 3,
    )
    yield Row(what=f"{what}: events computed twice", value=begun - events, unit="events", target=0)
    yield Row(
        what=f"{what}: events counted twice", value=counted_twice(rows), unit="events", target=0
    )
    worst = sorted(each["seconds"] for each in jobs)[int(0.95 * (len(jobs) - 1))]
    yield Row(what=f"{what}: p95 of {len(jobs)} cycles", value=worst, unit="s")


def _eventful(
    folder: Path, events: int, report: Path | None, settings: Mapping[str, Any]
) -> Iterator[Row]:
    place = folder / "eventful"
    hub = folder / "hub.db"
    apps = [
        Application(place, hub, name, warm=WARM_EVENTS, settings=settings)
        for name in ("one", "two")
    ]
    marks: list[tuple[float, str]] = []
    try:
        apps[0].ready()
        apps[1].ready()
        apps[0].go()
        began = time.time()

        def mark(text: str) -> None:
            marks.append((time.time() - began, text))

        _until_done(apps, events * 0.1)
        mark("a second joins")
        apps[1].go()
        _until_done(apps, events * 0.35)
        mark("handler 10 × slower")
        (place / "slow").touch()
        time.sleep(SLOW_S)
        mark("quick again")
        (place / "slow").unlink()
        _until_done(apps, events * 0.65)
        mark("one is killed")
        apps[0].kill()
        apps[1].wait(lambda: bool(apps[1].all("end")))
        rows = _table(place)
        _require_count(rows, events)
    finally:
        for each in apps:
            each.kill()
    jobs = sorted(
        (each for app in apps for each in (*app.all("done"), *app.all("void"))),
        key=lambda each: float(each["at"]),
    )
    if report is not None:
        _plots(report, jobs, events, began, marks)
    void = [each for each in jobs if each["what"] == "void"]
    again = _events(apps, "begin") - events
    seconds = [each["seconds"] for each in jobs]
    what = f"{events:,} with a join, a kill and a slow handler"
    yield Row(what=f"{what}: until all is done", value=jobs[-1]["at"] - began, unit="s")
    yield Row(what=f"{what}: jobs that came to nothing", value=len(void), unit="jobs")
    yield Row(what=f"{what}: events computed again", value=again, unit="events")
    yield Row(
        what=f"{what}: events counted twice", value=counted_twice(rows), unit="events", target=0
    )
    yield Row(what=f"{what}: median of {len(seconds)} cycles", value=_at(seconds, 0.5), unit="s")
    yield Row(what=f"{what}: p95", value=_at(seconds, 0.95), unit="s")
    yield Row(what=f"{what}: longest", value=max(seconds), unit="s")


def _until_done(apps: Sequence[Application], events: float) -> None:
    apps[0].wait(lambda: _events(apps, "done") >= events)


def _events(apps: Sequence[Application], what: str) -> int:
    return sum(each["events"] for app in apps for each in app.all(what))


def counted_twice(rows: pl.DataFrame) -> int:
    """How many events the rows hold more than the ranges that they were computed from."""
    told = pl.col("end_sequence").cum_max().shift(1, fill_value=0).over("partition")
    new = pl.col("end_sequence") - pl.max_horizontal("first_sequence", told)
    ranges = rows.select("partition", "first_sequence", "end_sequence").unique()
    seen = ranges.sort("partition", "first_sequence").select(new.clip(0).sum()).item()
    return int(rows["count"].sum()) - int(seen)


def _at(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))]


def _plots(
    folder: Path,
    jobs: Sequence[dict[str, Any]],
    events: int,
    began: float,
    marks: Sequence[tuple[float, str]],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    left, lag = events, [(0.0, float(events))]
    for each in jobs:
        left -= each["events"] if each["what"] == "done" else 0
        lag.append((each["at"] - began, max(0.0, float(left))))
    plot(folder / "backlog-lag.svg", "Events behind", [Line("", steps(lag))], marks=marks)
    cycles: dict[str, list[tuple[float, float]]] = {"done": [], "void": []}
    for each in jobs:
        at, seconds = each["at"] - began, float(each["seconds"])
        cycles[each["what"]] += [(at - seconds, seconds), (at, seconds)]
    target = [(0.0, CYCLE_S), (lag[-1][0], CYCLE_S)]
    plot(
        folder / "backlog-cycles.svg",
        "Seconds of each cycle",
        [
            Line("cycle", cycles["done"], in_pairs=True),
            Line("target", target),
            Line("cancelled", cycles["void"], in_pairs=True),
        ],
        marks=marks,
    )
