"""``leasehold simulate``: the sensors of many homes, sending to a hub."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer import Exit, Option, echo

from leasehold.cli.options import AsJson, HubPath, console, counted, open_hub
from leasehold.cli.stopping import stopping
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub
from leasehold.homes.days import MINUTE_MS, Rates
from leasehold.homes.flaws import Flaws
from leasehold.homes.lock import Busy
from leasehold.homes.sensors import (
    HOMES,
    HOURS_MAX,
    MINUTES_MAX,
    Sensors,
    add_co_detectors,
    parse_speed,
    require_length,
)


def simulate(
    hub: HubPath,
    *,
    homes: Annotated[int, Option(help="How many homes.")] = HOMES,
    seed: Annotated[int, Option(help="What happens in them; the same seed, the same days.")] = 1,
    speed: Annotated[
        str, Option(metavar="X|max", help="1 is real time, 10 ten times faster, or max.")
    ] = "1",
    minutes: Annotated[
        float | None, Option(help="Stop after so many minutes of the sensors' clock.")
    ] = None,
    backfill_hours: Annotated[
        float, Option(help="First send so many hours of history, as fast as it goes.", min=0)
    ] = 0.0,
    add_co: Annotated[
        bool,
        Option("--add-co", help="Add a carbon monoxide detector to every home, for good."),
    ] = False,
    break_ins: Annotated[float, Option(help="Break-ins per home and year.")] = 1.0,
    leaks: Annotated[float, Option(help="Leaks of carbon monoxide per home and year.")] = 0.2,
    malformed: Annotated[float, Option(help="The share of malformed readings.")] = 0.0,
    unknown: Annotated[float, Option(help="The share of readings of unknown homes.")] = 0.0,
    wrong_time: Annotated[
        float, Option(help="The share of readings that are ten years early or late.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Send the readings of many homes to a hub, until Ctrl-C or for some minutes.

    Started again it goes on where it was. With --add-co, a simulator that runs already is told, and
    nothing else is done.
    """
    pace = parse_speed(speed)
    if minutes is not None:
        require_length("--minutes", minutes, MINUTES_MAX)
    if backfill_hours:
        require_length("--backfill-hours", backfill_hours, HOURS_MAX)
    rates = Rates(break_ins_per_year=break_ins, leaks_per_year=leaks)
    flaws = Flaws(malformed=malformed, unknown=unknown, wrong_time=wrong_time)
    with _opened(hub) as opened:
        try:
            sensors = Sensors(opened, homes=homes, seed=seed, speed=pace, rates=rates, flaws=flaws)
        except Busy:
            if not add_co:
                raise
            _tell_the_running_one(opened, as_json)
            return
        if add_co:
            add_co_detectors(hub)
        with sensors, stopping() as stop:
            began = time.perf_counter()
            counts = _send(sensors, stop, backfill_hours, minutes)
            _report(sensors, counts, time.perf_counter() - began, as_json)
            if stop.is_set():
                raise Exit(130)


def _opened(path: Path) -> Hub:
    try:
        return open_hub(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be opened: {error.strerror}") from error


def _tell_the_running_one(hub: Hub, as_json: bool) -> None:
    add_co_detectors(hub.path)
    if as_json:
        echo(json.dumps({"told": True}))
    else:
        echo("the simulator that runs adds a carbon monoxide detector to every home")


def _send(
    sensors: Sensors, stop: threading.Event, backfill_hours: float, minutes: float | None
) -> dict[str, int]:
    counts = {"history": 0, "readings": 0}
    until_ms = sensors.history_until_ms
    if until_ms is not None:  # an earlier run was stopped before its end
        missing = (until_ms - (sensors.next_ms or until_ms)) / MINUTE_MS
        with _progress(sensors, "history", missing, until_ms):
            counts["history"] += sensors.finish_backfill(stop)
    if backfill_hours and not stop.is_set():
        with _progress(sensors, "history", backfill_hours * 60, time.time() * 1000):
            counts["history"] += sensors.backfill(backfill_hours, stop=stop)
    if not stop.is_set():
        with _progress(sensors, "sending", minutes):
            counts["readings"] = sensors.run(stop, minutes=minutes)
    return counts


@contextmanager
def _progress(
    sensors: Sensors, what: str, minutes: float | None, end_ms: float | None = None
) -> Iterator[None]:
    """A bar of minutes if it is known how many there are; else only what is sent."""
    columns = (
        SpinnerColumn() if minutes is None else BarColumn(),
        TextColumn("{task.description} {task.fields[said]}"),
        TimeElapsedColumn(),
    )
    began, before = time.perf_counter(), sensors.sent
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=minutes, said="")
        first_ms = None if end_ms is None else end_ms - (minutes or 0) * MINUTE_MS

        def show(sensors: Sensors) -> None:
            nonlocal first_ms
            at_ms = sensors.next_ms or 0
            first_ms = at_ms if first_ms is None else first_ms
            sent = sensors.sent - before
            rate = sent / (time.perf_counter() - began)
            said = f"up to {_time(at_ms)}: {counted(sent, 'reading')}, {rate:,.0f}/s"
            progress.update(task, completed=(at_ms - first_ms) / MINUTE_MS, said=said)

        sensors.on_sent = show
        try:
            yield
        finally:
            sensors.on_sent = None


def _report(sensors: Sensors, counts: dict[str, int], seconds: float, as_json: bool) -> None:
    if as_json:
        end = {"next_ms": sensors.next_ms, "sent": sensors.sent, "co_since_ms": sensors.co_since_ms}
        echo(json.dumps(counts | end | {"seconds": round(seconds, 3)}))
        return
    sent = sum(counts.values())
    history = f", {counts['history']:,} of them history" if counts["history"] else ""
    echo(
        f"sent {counted(sent, 'reading')}{history} in {seconds:.1f} s ({sent / seconds:,.0f}/s), "
        f"up to {_time(sensors.next_ms)}; {sensors.sent:,} so far"
    )


def _time(unix_ms: float | None) -> str:
    if unix_ms is None:
        return "-"
    return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
