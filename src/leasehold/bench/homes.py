"""The application at full scale on this machine: lag, freshness, and nothing lost.

In real time, as the demo runs it: sensors, hub, Spark applications, alerts and the web page, whose
own API is asked how new it is. Then every home gets another detector and an instance is added.
Writes a series of what was seen to ``report`` if a folder is given.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from leasehold.bench.plot import Line, plot
from leasehold.bench.row import Row
from leasehold.feeds.hub import Hub
from leasehold.homes import accounts
from leasehold.homes.crew import Crew
from leasehold.homes.parts import Said, prepare
from leasehold.homes.places import ACTIVITY, Places
from leasehold.homes.readings import home_id
from leasehold.homes.receiver import Receiver
from leasehold.homes.sensors import add_co_detectors
from leasehold.homes.web import Secrets, open_web
from leasehold.homes.web.sessions import Sessions
from leasehold.processor.estimator import Estimator
from leasehold.stores import open_store

HOMES = 100_000
WATCHED = 40
LOOK_S = 5.0
ASK_S = 0.25
READY_S = 180.0
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
        said = Said(
            part="", instance="", folder=name, homes=homes, webhook=receiver.url, malformed=1e-5
        )
        prepare(said.places)
        crew = Crew(said)
        try:
            with open_web(said.places, Secrets.load(said.places.secrets), fleet=crew) as server:
                yield from _measured(
                    said,
                    crew,
                    server.url,
                    minutes=minutes,
                    more_minutes=more_minutes,
                    report=report,
                )
        finally:
            crew.close()


@dataclass(slots=True)
class _Seen:
    began: float = field(default_factory=time.monotonic)
    lag: list[tuple[float, float]] = field(default_factory=list)
    lag_s: list[tuple[float, float]] = field(default_factory=list)
    rate: list[tuple[float, float]] = field(default_factory=list)
    fresh: list[tuple[float, float]] = field(default_factory=list)
    owned: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def now(self) -> float:
        return time.monotonic() - self.began

    def between(self, values: list[tuple[float, float]], first: float, end: float) -> list[float]:
        return [value for at, value in values if first <= at < end]


def _measured(
    said: Said,
    crew: Crew,
    url: str,
    *,
    minutes: float,
    more_minutes: float,
    report: Path | None,
) -> Iterator[Row]:
    for _ in range(2):
        crew.add()
    crew.start_part("alerts")
    places, over = said.places, threading.Event()
    with Hub.open(places.hub) as hub:
        estimator = Estimator(hub, group=ACTIVITY, store=open_store(places.store))
        wait(lambda: even(estimator, 2), "both instances have partitions")
        crew.start_part("sensors")
        seen = _Seen()
        watchers = [
            threading.Thread(target=_watch_group, args=(seen, hub, places, over)),
            threading.Thread(target=_watch_pages, args=(seen, url, said, over)),
        ]
        for each in watchers:
            each.start()
        time.sleep(60 * minutes)
        changed_at = seen.now()
        add_co_detectors(places.hub)
        crew.add()
        wait(lambda: even(estimator, 3), "three instances share the partitions evenly")
        even_s = seen.now() - changed_at
        time.sleep(max(0.0, 60 * more_minutes - even_s))
        over.set()
        for each in watchers:
            each.join()
        crew.stop_part("sensors")
        wait(lambda: estimator.lag().lag_events == 0, "all is aggregated", SETTLE_S)
        sent = sum(each.end for each in hub.kept())
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
        yield Row(what=f"{what}: readings in", value=_mean(seen, seen.rate, first, end), unit="/s")
        lag = seen.between(seen.lag, first, end)
        yield Row(what=f"{what}: lag, greatest", value=max(lag, default=0), unit="events")
        ages = seen.between(seen.fresh, first, end)
        if len(ages) > 1:
            cuts = quantiles(ages, n=20)
            yield Row(what=f"{what}: visible on the API, median", value=cuts[9], unit="s")
            yield Row(what=f"{what}: visible on the API, 95 of 100", value=cuts[18], unit="s")
    yield Row(what="even after the third instance was started", value=even_s, unit="s")


def _watch_group(seen: _Seen, hub: Hub, places: Places, over: threading.Event) -> None:
    estimator = Estimator(hub, group=ACTIVITY, store=open_store(places.store))
    before, then = sum(each.end for each in hub.kept()), seen.now()
    while not over.wait(LOOK_S):
        found, at = estimator.lag(), seen.now()
        sent = sum(each.end for each in hub.kept())
        seen.rate.append((at, (sent - before) / (at - then)))
        before, then = sent, at
        seen.lag.append((at, found.lag_events))
        seen.lag_s.append((at, found.lag_s or 0.0))
        owned: dict[str, int] = {}
        for each in found.partitions:
            if each.owner:
                owned[each.owner] = owned.get(each.owner, 0) + 1
        seen.owned.append((at, owned))
    estimator.close()


def _watch_pages(seen: _Seen, url: str, said: Said, over: threading.Event) -> None:
    """How old a reading is when the page of its home first shows it."""
    secrets = Secrets.load(said.places.secrets)
    sessions = Sessions(secrets)
    chance, cookies, newest = random.Random(7), dict[str, str](), dict[tuple[str, str], int]()
    for number in chance.sample(range(said.homes), min(WATCHED, said.homes)):
        home = home_id(number)
        session = sessions.resident(home, sessions.access_code(home))
        assert session is not None
        cookies[home] = sessions.sign(session)
    while not over.wait(ASK_S / 4):
        for home, cookie in cookies.items():
            asked = urllib.request.Request(
                f"{url}/api/home", headers={"Cookie": f"leasehold_session={cookie}"}
            )
            with urllib.request.urlopen(asked, timeout=30) as answer:
                found = json.load(answer)
            now_ms = time.time() * 1000
            for sensor in found["sensors"]:
                key = (home, sensor["kind"])
                if sensor["ts_ms"] > newest.get(key, 0):
                    if key in newest:
                        seen.fresh.append((seen.now(), (now_ms - sensor["ts_ms"]) / 1000))
                    newest[key] = sensor["ts_ms"]
            if over.wait(ASK_S / len(cookies)):
                return


def even(estimator: Estimator, instances: int) -> bool:
    owners: dict[str, int] = {}
    for each in estimator.lag().partitions:
        if each.owner and each.owner_live:
            owners[each.owner] = owners.get(each.owner, 0) + 1
    counts = owners.values()
    return len(owners) == instances and sum(counts) == 16 and max(counts) - min(counts) <= 1


def wait(holds: Callable[[], bool], what: str, bound_s: float = READY_S) -> None:
    deadline = time.monotonic() + bound_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {bound_s:g} s: {what}")
        time.sleep(0.5)


def _mean(seen: _Seen, values: list[tuple[float, float]], first: float, end: float) -> float:
    found = seen.between(values, first, end)
    return sum(found) / max(1, len(found))


def _draw(seen: _Seen, changed_at: float, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mark = (changed_at, "CO detectors, third instance")
    plot(
        folder / "rate.svg", "readings sent per second", [Line("", seen.rate)], mark=mark
    )  # fmt: skip
    plot(folder / "lag.svg", "events behind the end", [Line("", seen.lag)], mark=mark)
    plot(
        folder / "fresh.svg",
        "seconds from reading to visible on the home's API",
        _by_time(seen.fresh),
        mark=mark,
    )
    names = sorted({name for _, owned in seen.owned for name in owned})
    lines = [
        Line(f"instance {place}", [(at, owned.get(name, 0)) for at, owned in seen.owned])
        for place, name in enumerate(names, 1)
    ]
    plot(folder / "owned.svg", "partitions owned", lines, mark=mark)


def _by_time(values: list[tuple[float, float]], step_s: float = 20.0) -> list[Line]:
    """The median and what 95 of 100 stay below, of each step."""
    steps: dict[int, list[float]] = {}
    for at, value in values:
        steps.setdefault(int(at // step_s), []).append(value)
    cuts: list[tuple[float, Any]] = [
        ((step + 0.5) * step_s, quantiles(found, n=20))
        for step, found in sorted(steps.items())
        if len(found) > 1
    ]
    return [
        Line("95 of 100", [(at, cut[18]) for at, cut in cuts]),
        Line("median", [(at, cut[9]) for at, cut in cuts]),
    ]
