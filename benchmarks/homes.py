"""The application at full scale on this machine: lag, freshness, and nothing lost.

In real time, as the demo runs it: sensors, hub, Spark applications, alerts and the web page, whose
own API is asked how new it is. Then every home gets another detector and an instance is added.
Writes a series of what was seen to ``report`` if a folder is given.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

from benchmarks.plot import Line, plot
from benchmarks.row import Row
from benchmarks.watch import (
    Seen,
    Series,
    between,
    even,
    median_and_p95,
    owners,
    wait,
    watch_group,
    watch_pages,
)
from homes.local.places import ACTIVITY
from homes.pipelines.webhook_receiver import Receiver
from homes.simulator.sensors import add_co_detectors
from homes.supervisor.data_folder import prepare
from homes.supervisor.fleet import Fleet
from homes.supervisor.part_config import PartConfig
from homes.view import reconcile as accounts
from homes.web.secrets import Secrets
from homes.web.serve import open_web
from leasehold.feeds.hub import Hub
from leasehold.operations.estimator import Estimator
from leasehold.stores import open_store

HOMES = 100_000
SETTLE_S = 300.0


def run(
    *,
    homes: int = HOMES,
    minutes: float = 10.0,
    more_minutes: float = 4.0,
    folder: Path | None = None,
    report: Path | None = None,
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=folder) as name, Receiver() as receiver:
        config = PartConfig(
            part="",
            instance="",
            folder=name,
            homes=homes,
            webhook=receiver.url,
            webhook_secret=receiver.secret,
            malformed=1e-5,
        )
        prepare(config.places)
        fleet = Fleet(config)
        try:
            with open_web(
                config.places, Secrets.load(config.places.secrets), fleet=fleet
            ) as server:
                yield from _measured(
                    config,
                    fleet,
                    server.url,
                    minutes=minutes,
                    more_minutes=more_minutes,
                    report=report,
                )
        finally:
            fleet.close()


def _measured(
    config: PartConfig,
    fleet: Fleet,
    url: str,
    *,
    minutes: float,
    more_minutes: float,
    report: Path | None,
) -> Iterator[Row]:
    for _ in range(2):
        fleet.add()
    fleet.start_part("alerts")
    places, over = config.places, threading.Event()
    with Hub.open(places.hub) as hub:
        estimator = Estimator(hub, group=ACTIVITY, store=open_store(places.store))
        wait(lambda: even(estimator, 2), "both instances have partitions")
        fleet.start_part("sensors")
        seen = Seen()
        pages = (seen, url, places.secrets, config.homes, over)
        watchers = [
            threading.Thread(target=watch_group, args=(seen, hub, places.store, over)),
            threading.Thread(target=watch_pages, args=pages),
        ]
        for each in watchers:
            each.start()
        time.sleep(60 * minutes)
        changed_at = seen.now()
        add_co_detectors(places.hub)
        fleet.add()
        wait(lambda: even(estimator, 3), "three instances share the partitions evenly")
        even_s = seen.now() - changed_at
        time.sleep(max(0.0, 60 * more_minutes - even_s))
        over.set()
        for each in watchers:
            each.join()
        fleet.stop_part("sensors")
        wait(lambda: estimator.lag().lag_events == 0, "all is aggregated", SETTLE_S)
        sent = sum(each.next_sequence for each in hub.properties().partitions)
        estimator.close()
    counted, dead = accounts.aggregated(places), accounts.dead(places, ACTIVITY)
    if sent != counted + dead:
        raise AssertionError(f"{sent} sent, {counted} aggregated, {dead} dead letters")
    if report is not None:
        _draw(seen, changed_at, report)
    settled = 60.0
    yield Row(what="readings sent, all of them aggregated or dead letters", value=sent, unit="")
    yield Row(what="of which dead letters", value=dead, unit="")
    for what, first, end in (
        ("4 sensors a home, 2 instances", settled, changed_at),
        ("5 sensors a home, 3 instances", changed_at + settled, seen.now()),
    ):
        yield Row(what=f"{what}: readings in", value=_mean(seen.rate, first, end), unit="/s")
        lag = between(seen.lag, first, end)
        yield Row(what=f"{what}: lag, greatest", value=max(lag, default=0), unit="events")
        ages = between(seen.fresh, first, end)
        if len(ages) > 1:
            cuts = quantiles(ages, n=20)
            yield Row(what=f"{what}: visible on the API, median", value=cuts[9], unit="s")
            yield Row(what=f"{what}: visible on the API, p95", value=cuts[18], unit="s")
    yield Row(what="even after the third instance was started", value=even_s, unit="s")


def _mean(values: Series, first: float, end: float) -> float:
    found = between(values, first, end)
    return sum(found) / max(1, len(found))


def _draw(seen: Seen, changed_at: float, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mark = (changed_at, "CO detectors, third instance")
    for name, title, lines in (
        ("rate", "readings sent per second", [Line("", seen.rate)]),
        ("lag", "events behind the end", [Line("", seen.lag)]),
        ("fresh", "seconds from reading to visible on the home's API", median_and_p95(seen.fresh)),
        ("owned", "partitions owned", owners(seen)),
    ):
        plot(folder / f"{name}.svg", title, lines, mark=mark)
