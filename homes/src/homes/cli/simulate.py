"""``homes simulate``: the sensors of many homes, sending to a hub."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typer import Argument, Exit, Option, echo

from homes.cli.stopping import stopping
from homes.cli.text import AsJson, console, counted
from homes.domain.reading import MINUTE_MS
from homes.local.lock import Busy
from homes.local.private_folder import keep_private
from homes.simulator.days import IncidentRates
from homes.simulator.flaws import Flaws
from homes.simulator.sensors import (
    HOMES,
    HOURS_MAX,
    MINUTES_MAX,
    Sensors,
    add_co_detectors,
    parse_speed,
    require_length,
)
from leasehold import BadInput, Sender, open_sender


def simulate(
    hub: Annotated[
        Path | None, Argument(metavar="[HUB]", help="The hub's file, such as data/sensors.db")
    ] = None,
    *,
    feed: Annotated[
        str | None,
        Option(metavar="URL", help="Instead of a hub: a topic, such as kafka://b1:9092/readings"),
    ] = None,
    state: Annotated[
        Path | None,
        Option(metavar="PATH", help="With --feed: beside which path to keep how far it is."),
    ] = None,
    homes: Annotated[int, Option(help="How many homes.")] = HOMES,
    seed: Annotated[int, Option(help="What happens in them; the same seed, the same days.")] = 1,
    speed: Annotated[
        str, Option(metavar="X|max", help="1 is real time, 10 ten times faster, or max.")
    ] = "1",
    minutes: Annotated[
        float | None, Option(help="Stop after this many minutes of the sensors' clock.")
    ] = None,
    backfill_hours: Annotated[
        float, Option(help="First send this many hours of history, as fast as possible.", min=0)
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
    """Send the readings of many homes to a hub or topic, until Ctrl-C or for some minutes.

    When restarted, it continues where it stopped. With --add-co, a running simulator is
    notified, and nothing else is done.
    """
    keep_private()
    pace = parse_speed(speed)
    if minutes is not None:
        require_length("--minutes", minutes, MINUTES_MAX)
    if backfill_hours:
        require_length("--backfill-hours", backfill_hours, HOURS_MAX)
    rates = IncidentRates(break_ins_per_year=break_ins, leaks_per_year=leaks)
    flaws = Flaws(malformed=malformed, unknown=unknown, wrong_time=wrong_time)
    with _opened(hub, feed) as opened:
        beside = hub or state or Path("data") / opened.name
        try:
            sensors = Sensors(
                opened,
                beside=None if hub else beside,
                homes=homes,
                seed=seed,
                speed=pace,
                rates=rates,
                flaws=flaws,
            )
        except Busy:
            if not add_co:
                raise
            _tell_the_running_one(opened, beside, as_json)
            return
        if add_co:
            add_co_detectors(beside, opened.identity)
        with sensors, stopping() as stop:
            began = time.perf_counter()
            counts = _send(sensors, stop, backfill_hours, minutes)
            _report(sensors, counts, time.perf_counter() - began, as_json)
            if stop.is_set():
                raise Exit(130)


@contextmanager
def _opened(path: Path | None, url: str | None) -> Iterator[Sender]:
    if (path is None) == (url is None):
        raise BadInput("give the file of a hub, or --feed and the URL of a topic")
    try:
        if path is not None and not path.exists():
            raise BadInput(f"there is no hub at {path}; make one with: leasehold hub create {path}")
        opened = open_sender(url or str(path))
    except OSError as error:
        raise BadInput(f"{path} cannot be opened: {error.strerror}") from error
    try:
        yield opened
    finally:
        opened.close()


def _tell_the_running_one(hub: Sender, beside: Path, as_json: bool) -> None:
    add_co_detectors(beside, hub.identity)
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
        TimeElapsedColumn() if minutes is None else TimeRemainingColumn(),
    )
    began, before = time.perf_counter(), sensors.sent
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
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
