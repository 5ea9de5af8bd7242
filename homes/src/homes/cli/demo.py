"""``homes demo``: the home-security company, all of it, on this machine."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rich.console import Group as Lines
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Exit, Option, echo

from homes.cli.stopping import stopping
from homes.cli.text import console, counted
from homes.cli.url_options import (
    AlertsUrl,
    ArchiveUrl,
    ConfigFile,
    DeadLettersUrl,
    FeedUrl,
    SparkUrl,
    StoreUrl,
    TableUrl,
    urls_of,
)
from homes.domain.reading import home_id
from homes.domain.waiting import waiting_for
from homes.local.places import ACTIVITY, Places, history_share
from homes.local.startup import startup_of
from homes.pipelines.alerts import GROUP as ALERTS
from leasehold import (
    BadInput,
    Estimate,
    Estimator,
    LeaseholdError,
    open_feed,
    open_sender,
    open_store,
)

log = logging.getLogger("leasehold")
COMPACT_S = 120.0
SETTLE_S = 300.0
HISTORY_HOURS = 2.0
HOME_HOURS = 1_700
"""Hours of history times homes: a minute for 100,000 homes, for the first page waits for it."""
FIRST_S = 30.0
"""The other instances start when readings are live, or else after so long."""
HOMES = 100_000
NEWS = 6


def demo(
    *,
    homes: Annotated[
        int | None,
        Option(
            help=f"How many homes; else {HOMES:,}, or as many as the folder has.",
            min=1,
            max=1_000_000,
        ),
    ] = None,
    instances: Annotated[int, Option(help="Spark applications to begin with.", min=1, max=8)] = 2,
    speed: Annotated[
        str, Option(metavar="X|max", help="1 is real time, 10 ten times faster, or max.")
    ] = "1",
    minutes: Annotated[
        float | None, Option(help="Stop after this many minutes; if not given, at Ctrl-C.", min=0)
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
    story: Annotated[
        bool, Option("--story/--no-story", help="Let something happen in the resident's home.")
    ] = True,
    folder: Annotated[Path, Option(help="Where everything is kept, for the next start.")] = Path(
        "data/demo"
    ),
    port: Annotated[
        int, Option(help="Of the page; 0 takes any that is free.", min=0, max=65535)
    ] = 8080,
    config: ConfigFile = None,
    feed: FeedUrl = None,
    store: StoreUrl = None,
    dead_letters: DeadLettersUrl = None,
    alerts: AlertsUrl = None,
    table: TableUrl = None,
    archive: ArchiveUrl = None,
    spark: SparkUrl = None,
    malformed: Annotated[float, Option(help="The share of malformed readings.")] = 0.0,
    unknown: Annotated[float, Option(help="The share of readings of unknown homes.")] = 0.0,
    wrong_time: Annotated[float, Option(help="The share of readings years off.")] = 0.0,
) -> None:
    """Run the home-security company: homes, hub, Spark pipeline, alerts, web page.

    Prints the addresses and logins, then shows what is going on. Ctrl-C stops everything in order;
    the next start goes on where it was.
    """
    from homes.local.app_log import start_log  # noqa: PLC0415
    from homes.local.lock import Lock  # noqa: PLC0415
    from homes.local.private_folder import keep_private  # noqa: PLC0415
    from homes.pipelines.webhook_receiver import Receiver  # noqa: PLC0415
    from homes.supervisor.data_folder import count_of_homes, prepare  # noqa: PLC0415
    from homes.supervisor.fleet import Fleet  # noqa: PLC0415  # Spark and the web take time to load
    from homes.supervisor.part_config import PartConfig  # noqa: PLC0415
    from homes.supervisor.preflight import require_parts  # noqa: PLC0415

    flaws: dict[str, Any] = {"malformed": malformed, "unknown": unknown, "wrong_time": wrong_time}
    _require(speed, minutes, history_hours, flaws, None if headless else port)
    urls = urls_of(
        config,
        feed=feed,
        store=store,
        dead_letters=dead_letters,
        alerts=alerts,
        table=table,
        archive=archive,
        spark=spark,
    )
    require_parts(urls)
    places, news = Places(folder, urls), deque[str](maxlen=NEWS)

    def on_news(text: str) -> None:
        news.append(f"{time.strftime('%H:%M:%S')} {text}")
        if not console.is_terminal:
            echo(text)

    keep_private()
    start_log(logging.StreamHandler(), logging.WARNING)
    prepare(places)
    with ExitStack() as stack:
        stack.enter_context(Lock(places.lock, "another demo runs in this folder"))
        homes = count_of_homes(places, homes, HOMES)
        receiver = stack.enter_context(Receiver())
        parts = PartConfig(
            part="",
            instance="",
            folder=str(folder),
            urls=urls,
            homes=homes,
            speed=speed,
            history_hours=(
                min(HISTORY_HOURS, HOME_HOURS / homes) if history_hours is None else history_hours
            ),
            webhook=receiver.url,
            webhook_secret=receiver.secret,
            **flaws,
        )
        stop = stack.enter_context(stopping())
        look = stack.enter_context(closing(_Look(places)))
        look.require_servers()
        fleet = Fleet(parts, on_news=on_news)
        stack.callback(fleet.close)
        # What takes longest first, and alone: several Javas at once would start no sooner.
        fleet.add()
        for part in ("sensors", "alerts"):
            fleet.start_part(part)
        head = [] if headless else stack.enter_context(_page(places, fleet, port, homes))
        stack.callback(stop.set)  # for what runs beside it
        scene = _Scene(look, fleet, receiver, news, head)
        _tidy(places, stop)
        _add_others(scene, instances - 1, stop)
        _tell_story(scene, _resident(homes) if story and not headless else None, stop)
        _show(scene, stop, minutes)
        if fleet.failed:
            raise BadInput(fleet.failed)
        ending = _settled(look, fleet) if headless else _ending(look, receiver.count)
    if headless:
        echo(json.dumps(ending))
        if ending["missing"]:
            raise Exit(1)
    else:
        console.print(ending["text"], highlight=False)
        console.print(f"stopped; the next start goes on where it was, in {folder}")


def _require(
    speed: str,
    minutes: float | None,
    history_hours: float | None,
    flaws: dict[str, Any],
    port: int | None,
) -> None:
    """Refuse what cannot be before anything starts."""
    from homes.simulator.flaws import Flaws  # noqa: PLC0415
    from homes.simulator.sensors import (  # noqa: PLC0415
        HOURS_MAX,
        MINUTES_MAX,
        parse_speed,
        require_length,
    )
    from homes.supervisor.preflight import require_java, require_port  # noqa: PLC0415

    parse_speed(speed)
    if minutes is not None:
        require_length("--minutes", minutes, MINUTES_MAX)
    if history_hours:
        require_length("--history-hours", history_hours, HOURS_MAX)
    Flaws(**flaws)
    require_java()
    if port is not None:
        require_port(port)


def _resident(homes: int) -> str:
    """The home whose login is printed."""
    return home_id(min(123, homes - 1))


@contextmanager
def _page(places: Places, fleet: Any, port: int, homes: int) -> Iterator[list[str]]:
    from homes.web.secrets import Secrets  # noqa: PLC0415
    from homes.web.serve import open_web  # noqa: PLC0415
    from homes.web.sessions import Sessions  # noqa: PLC0415

    secrets = Secrets.load(places.secrets)
    home = _resident(homes)
    sessions = Sessions(secrets, codes=places.codes)
    revoked = sessions.codes.state(home).revoked
    code = "revoked" if revoked else sessions.access_code(home)
    with open_web(places, secrets, port=port, fleet=fleet, drills=True) as server:
        yield [
            f"[bold]{server.url}[/]",
            f"a resident:  home [bold]{home}[/], access code [bold]{code}[/]",
            f"an operator: password [bold]{escape(secrets.operator_password)}[/]",
            "Ctrl-C stops everything in order",
        ]


class _Look:
    """What there is to see, from outside: nothing here takes part in any group."""

    def __init__(self, places: Places) -> None:
        self.feed, self.sender = open_feed(places.feed), open_sender(places.feed)
        self._places = places
        self._estimators = {
            group: Estimator(self.feed, group=group, store=open_store(places.store))
            for group in (ACTIVITY, ALERTS)
        }
        self._before = (time.monotonic(), self.sent())

    def require_servers(self) -> None:
        """They answer now, or their errors end the command; later, errors pass."""
        if self._places.urls.store:
            self._estimators[ACTIVITY].lag()
        if self._places.urls.dead_letters:
            self.dead()

    def sent(self) -> int:
        return sum(each.end for each in asyncio.run(self.feed.extents()))

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

    def history(self) -> float | None:
        return history_share(self._places.hub)

    def dead(self) -> int:
        from homes.view.reconcile import dead  # noqa: PLC0415  # it takes its time to load

        return dead(self._places, ACTIVITY)

    def accounts(self) -> dict[str, int]:
        from homes.view.reconcile import aggregated  # noqa: PLC0415

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
        self.feed.close()
        self.sender.close()


class _Scene(NamedTuple):
    look: _Look
    fleet: Any
    receiver: Any
    news: deque[str]
    head: list[str]

    def over(self, stop: threading.Event, wait_s: float) -> bool:
        """After a pause: whether to end, because somebody said so or because it cannot work."""
        until = time.monotonic() + wait_s
        while not self.fleet.failed and (left_s := until - time.monotonic()) > 0:
            if stop.wait(min(left_s, 1.0)):
                return True
        return bool(self.fleet.failed)

    def waiting(self, lag: Estimate | None) -> str:
        states = [state for _, state in self.fleet.instances()]
        return waiting_for(startup_of(lag, history=self.look.history(), instances=states))

    def wait_until_live(self, stop: threading.Event, most_s: float = inf) -> bool:
        """False: it was stopped before."""
        deadline = time.monotonic() + most_s
        while self.waiting(self.look.estimate(ACTIVITY)) and time.monotonic() < deadline:
            if stop.wait(1.0):
                return False
        return not stop.is_set()

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
        while not scene.over(stop, 10.0) and (end is None or time.monotonic() < end):
            echo(_line(scene))
        return
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while not scene.over(stop, 1.0) and (end is None or time.monotonic() < end):
            live.update(scene.drawn())


def _line(scene: _Scene) -> str:
    look, lag = scene.look, scene.look.estimate(ACTIVITY)
    behind = "not begun" if lag is None else f"{lag.lag_events:,} behind"
    try:
        text = f"{look.sent():,} readings, {look.rate():,.0f}/s; pipeline: {behind}"
        waiting = scene.waiting(lag)
        return f"{text}; starting: {waiting}" if waiting else text
    except LeaseholdError as error:
        return str(error)


def _status(scene: _Scene) -> Table:
    look = scene.look
    table = Table(box=None, show_header=False)
    table.add_row("readings", f"{look.sent():,}, {look.rate():,.0f}/s")
    activity, alerts = look.estimate(ACTIVITY), look.estimate(ALERTS)
    if waiting := scene.waiting(activity):
        table.add_row("starting", waiting)
    owned: dict[str, int] = {}
    for each in activity.partitions if activity else ():
        if each.owner:
            owned[each.owner] = owned.get(each.owner, 0) + 1
    for name, state in scene.fleet.instances():
        table.add_row(name, f"{state}, {counted(owned.get(name, 0), 'partition')}")
    for group, lag in ((ACTIVITY, activity), (ALERTS, alerts)):
        if lag is None:
            table.add_row(group, "not begun")
            continue
        table.add_row(group, f"{counted(lag.lag_events, 'event')} behind, {_seconds(lag.lag_s)}")
    table.add_row("webhook", counted(scene.receiver.count, "alert"))
    table.add_row("dead letters", f"{look.dead():,}")
    return table


def _ending(look: _Look, webhook_calls: int) -> dict[str, Any]:
    """What there was, in words for whoever stops it."""
    try:
        lag = look.estimate(ACTIVITY)
        behind = "" if lag is None else f", {lag.lag_events:,} of them not aggregated yet"
        text = (
            f"{counted(look.sent(), 'reading')}{behind}; {counted(look.dead(), 'dead letter')}; "
            f"{counted(webhook_calls, 'alert')} sent to the webhook in this run"
        )
    except LeaseholdError as error:
        text = str(error)
    return {"text": text}


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:,.1f} s"


def _settled(look: _Look, fleet: Any) -> dict[str, Any]:
    """Wait until all is done, then account for every event. Ctrl-C ends it."""
    fleet.stop_part("sensors")
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


def _tell_story(scene: _Scene, home: str | None, stop: threading.Event) -> None:
    """In the resident's home, once its page is live."""
    from homes.simulator.days import STORY  # noqa: PLC0415
    from homes.simulator.sensors import send_reading  # noqa: PLC0415
    from homes.simulator.story import play  # noqa: PLC0415

    if home is None:
        return

    def send(kind: str, value: float) -> None:
        try:
            send_reading(scene.look.sender, home, kind, value)
        except LeaseholdError as error:
            log.warning("the story of %s: %s", home, error)

    def run() -> None:
        if scene.wait_until_live(stop):
            play(send, stop, STORY)

    threading.Thread(target=run, daemon=True).start()


def _add_others(scene: _Scene, count: int, stop: threading.Event) -> None:
    """More instances, once readings are live: until then another Java would only delay that."""

    def run() -> None:
        scene.wait_until_live(stop, FIRST_S)
        for _ in range(count):
            if stop.is_set():
                return
            try:
                scene.fleet.add()
            except BadInput as error:
                log.warning("%s", error)

    threading.Thread(target=run, daemon=True).start()


def _tidy(places: Places, stop: threading.Event) -> None:
    """Keep the table quick to read for as long as this runs."""

    def run() -> None:
        from leasehold.spark import compact  # noqa: PLC0415

        while not stop.wait(COMPACT_S):
            try:
                compact(places.table, keep_hours=1)
            except LeaseholdError:  # there is no table yet, or it is busy
                continue
            except Exception:  # the table grows slow to read, but nothing else depends on it
                log.exception("compacting %s failed; it is tried again", places.table)

    threading.Thread(target=run, daemon=True).start()
