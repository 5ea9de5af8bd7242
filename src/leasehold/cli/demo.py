"""``leasehold demo``: the home-security company, all of it, on this machine."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rich.console import Group as Lines
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Exit, Option, echo

from leasehold.cli.options import console, counted, duration
from leasehold.cli.stopping import stopping
from leasehold.errors import BadInput, LeaseholdError
from leasehold.feeds.hub import Hub
from leasehold.homes.alerts import GROUP as ALERTS
from leasehold.homes.places import ACTIVITY, Places
from leasehold.processor.estimator import Estimate, Estimator
from leasehold.stores import open_store

log = logging.getLogger("leasehold")
COMPACT_S = 120.0
SETTLE_S = 300.0
HISTORY_HOURS = 2.0
HOME_HOURS = 20_000
"""Hours of history times homes: about half a minute's work, for the first page waits for it."""
HOMES = 100_000
NEWS = 6


def demo(
    *,
    homes: Annotated[int, Option(help="How many homes.", min=1, max=1_000_000)] = HOMES,
    instances: Annotated[int, Option(help="Spark applications to begin with.", min=1, max=8)] = 2,
    speed: Annotated[
        str, Option(metavar="X|max", help="1 is real time, 10 ten times faster, or max.")
    ] = "1",
    minutes: Annotated[
        float | None, Option(help="Stop by itself after so many minutes; else at Ctrl-C.", min=0)
    ] = None,
    history_hours: Annotated[
        float | None,
        Option(
            help="Hours of history to begin with, the first time; else 2, or less for many homes.",
            min=0,
        ),
    ] = None,
    headless: Annotated[
        bool, Option("--headless", help="No page; a summary, and exit code 1 if anything is lost.")
    ] = False,
    folder: Annotated[Path, Option(help="Where everything is kept, for the next start.")] = Path(
        "data/demo"
    ),
    port: Annotated[int, Option(help="Of the page; 0 takes any that is free.")] = 8080,
    malformed: Annotated[float, Option(help="The share of malformed readings.")] = 0.0,
    unknown: Annotated[float, Option(help="The share of readings of unknown homes.")] = 0.0,
    wrong_time: Annotated[float, Option(help="The share of readings years off.")] = 0.0,
) -> None:
    """Run the home-security company: homes, hub, Spark pipeline, alerts, web page.

    Prints the addresses and logins, then shows what is going on. Ctrl-C stops everything in order;
    the next start goes on where it was.
    """
    from leasehold.homes.crew import Crew  # noqa: PLC0415  # Spark and the web take time to load
    from leasehold.homes.flaws import Flaws  # noqa: PLC0415
    from leasehold.homes.lock import Lock  # noqa: PLC0415
    from leasehold.homes.parts import Said, prepare  # noqa: PLC0415
    from leasehold.homes.receiver import Receiver  # noqa: PLC0415
    from leasehold.homes.sensors import (  # noqa: PLC0415
        HOURS_MAX,
        MINUTES_MAX,
        parse_speed,
        require_length,
    )

    parse_speed(speed)
    if minutes is not None:
        require_length("--minutes", minutes, MINUTES_MAX)
    if history_hours:
        require_length("--history-hours", history_hours, HOURS_MAX)
    Flaws(malformed=malformed, unknown=unknown, wrong_time=wrong_time)  # refuses what cannot be
    places, news = Places(folder), deque[str](maxlen=NEWS)

    def told(text: str) -> None:
        news.append(f"{time.strftime('%H:%M:%S')} {text}")
        if not console.is_terminal:
            echo(text)

    prepare(places)
    with ExitStack() as stack:
        stack.enter_context(Lock(places.lock, "another demo runs in this folder"))
        receiver = stack.enter_context(Receiver())
        said = Said(
            part="",
            instance="",
            folder=str(folder),
            homes=homes,
            speed=speed,
            history_hours=(
                min(HISTORY_HOURS, HOME_HOURS / homes) if history_hours is None else history_hours
            ),
            webhook=receiver.url,
            malformed=malformed,
            unknown=unknown,
            wrong_time=wrong_time,
        )
        stop = stack.enter_context(stopping())
        crew = Crew(said, told=told)
        stack.callback(crew.close)
        for part in ("sensors", "alerts"):
            crew.start_part(part)
        for _ in range(instances):
            crew.add()
        look = _Look(places)
        stack.callback(look.close)
        head = [] if headless else stack.enter_context(_page(places, crew, port, homes))
        _tidy(places, stop)
        _show(_Scene(look, crew, receiver, news, head), stop, minutes)
        if headless:
            crew.stop_part("sensors")
            summary = _settle(look)
    if headless:
        echo(json.dumps(summary))
        if summary["missing"]:
            raise Exit(1)
    else:
        console.print(f"stopped; the next start goes on where it was, in {folder}")


@contextmanager
def _page(places: Places, crew: Any, port: int, homes: int) -> Iterator[list[str]]:
    from leasehold.homes.readings import home_id  # noqa: PLC0415
    from leasehold.homes.web import Secrets, open_web  # noqa: PLC0415
    from leasehold.homes.web.sessions import Sessions  # noqa: PLC0415

    secrets = Secrets.load(places.secrets)
    home = home_id(min(123, homes - 1))
    try:
        opened = open_web(places, secrets, port=port, fleet=crew)
        server = opened.__enter__()
    except BadInput:
        opened = open_web(places, secrets, port=0, fleet=crew)
        server = opened.__enter__()
    try:
        yield [
            f"[bold]{server.url}[/]",
            f"a resident:  home [bold]{home}[/], access code "
            f"[bold]{Sessions(secrets).access_code(home)}[/]",
            f"an operator: password [bold]{escape(secrets.operator_password)}[/]",
        ]
    finally:
        opened.__exit__(None, None, None)


class _Look:
    """What there is to see, from outside: nothing here takes part in any group."""

    def __init__(self, places: Places) -> None:
        self.hub = Hub.open(places.hub)
        self._places = places
        self._estimators = {
            group: Estimator(self.hub, group=group, store=open_store(places.store))
            for group in (ACTIVITY, ALERTS)
        }
        self._before = (time.monotonic(), self.sent())

    def sent(self) -> int:
        return sum(each.end for each in self.hub.kept())

    def rate(self) -> float:
        """Readings per second since the last time."""
        then, before = self._before
        self._before = time.monotonic(), self.sent()
        return (self._before[1] - before) / max(self._before[0] - then, 1e-9)

    def estimate(self, group: str) -> Estimate | None:
        """None: nobody has begun yet, or the store does not answer now."""
        try:
            found = self._estimators[group].lag()
        except LeaseholdError:
            return None
        return found if found.started else None

    def dead(self) -> int:
        from leasehold.homes.accounts import dead  # noqa: PLC0415  # it takes its time to load

        return dead(self._places, ACTIVITY)

    def accounts(self) -> dict[str, int]:
        from leasehold.homes.accounts import aggregated  # noqa: PLC0415

        sent, counted, dead = self.sent(), aggregated(self._places), self.dead()
        return {
            "sent": sent,
            "aggregated": counted,
            "dead_letters": dead,
            "missing": sent - counted - dead,
        }

    def close(self) -> None:
        for estimator in self._estimators.values():
            estimator.close()
        self.hub.close()


class _Scene(NamedTuple):
    look: _Look
    crew: Any
    receiver: Any
    news: deque[str]
    head: list[str]

    def drawn(self) -> Lines:
        try:
            status: Table | Text = _status(self)
        except LeaseholdError as error:  # it passes, and must not end what is being watched
            status = Text(str(error))
        news = list(self.news)  # others add to it
        return Lines(*self.head, "", status, "", *map(Text, news))


def _show(scene: _Scene, stop: threading.Event, minutes: float | None) -> None:
    end = None if minutes is None else time.monotonic() + 60 * minutes
    if not console.is_terminal:
        for line in scene.head:
            console.print(line, highlight=False)
        while not stop.wait(10.0) and (end is None or time.monotonic() < end):
            echo(_line(scene.look))
        return
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while not stop.wait(1.0) and (end is None or time.monotonic() < end):
            live.update(scene.drawn())


def _line(look: _Look) -> str:
    lag = look.estimate(ACTIVITY)
    behind = "not begun" if lag is None else f"{lag.lag_events:,} behind"
    try:
        return f"{look.sent():,} readings, {look.rate():,.0f}/s; pipeline: {behind}"
    except LeaseholdError as error:
        return str(error)


def _status(scene: _Scene) -> Table:
    look = scene.look
    table = Table(box=None, show_header=False)
    table.add_row("readings", f"{look.sent():,}, {look.rate():,.0f}/s")
    activity, alerts = look.estimate(ACTIVITY), look.estimate(ALERTS)
    owned: dict[str, int] = {}
    for each in activity.partitions if activity else ():
        if each.owner:
            owned[each.owner] = owned.get(each.owner, 0) + 1
    for name, state in scene.crew.instances():
        table.add_row(name, f"{state}, {counted(owned.get(name, 0), 'partition')}")
    for group, lag in ((ACTIVITY, activity), (ALERTS, alerts)):
        if lag is None:
            table.add_row(group, "not begun")
            continue
        table.add_row(group, f"{counted(lag.lag_events, 'event')} behind, {duration(lag.lag_s)}")
    table.add_row("webhook", counted(scene.receiver.count, "alert"))
    table.add_row("dead letters", f"{look.dead():,}")
    return table


def _settle(look: _Look) -> dict[str, int]:
    """Wait until all is done, then account for every event. Ctrl-C ends it."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        over = time.monotonic() >= deadline
        lags = [look.estimate(group) for group in (ACTIVITY, ALERTS)]
        if over or all(lag is not None and lag.lag_events == 0 for lag in lags):
            try:
                return look.accounts()
            except LeaseholdError:
                if over:
                    raise
        time.sleep(0.5)


def _tidy(places: Places, stop: threading.Event) -> None:
    """Keep the table quick to read for as long as this runs."""

    def run() -> None:
        from leasehold.spark.delta_compact import compact  # noqa: PLC0415

        while not stop.wait(COMPACT_S):
            try:
                compact(str(places.activity), keep_hours=1)
            except LeaseholdError:  # there is no table yet, or it is busy
                continue
            except Exception:  # the table grows slow to read, but nothing else depends on it
                log.exception("compacting %s failed; it is tried again", places.activity)

    threading.Thread(target=run, daemon=True).start()
