"""What can be seen of the application from outside while it runs: lag, rate, owners, and how new
its page is. Nothing here takes part in any group; a server that is away ends nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.plot import Line
from homes.domain.reading import home_id
from homes.local.places import ACTIVITY
from homes.web.secrets import Secrets
from homes.web.sessions import Sessions
from leasehold import Estimator, Feed, LeaseholdError, open_store

WATCHED = 40
ASK_S = 0.25
READY_S = 180.0

Series = list[tuple[float, float]]


@dataclass(slots=True)
class Seen:
    """Each series holds seconds since the begin, and the value there."""

    began: float = field(default_factory=time.monotonic)
    lag: Series = field(default_factory=list)
    rate: Series = field(default_factory=list)
    fresh: Series = field(default_factory=list)
    owned: list[tuple[float, Counter[str]]] = field(default_factory=list)

    def now(self) -> float:
        return time.monotonic() - self.began


def between(values: Series, first: float, end: float) -> list[float]:
    return [value for at, value in values if first <= at < end]


def watch_group(
    seen: Seen, feed: Feed, store: str, over: threading.Event, look_s: float = 5.0
) -> None:
    estimator = Estimator(feed, group=ACTIVITY, store=open_store(store))
    before: tuple[float, int] | None = None
    while not over.wait(look_s):
        with suppress(LeaseholdError):
            found, sent, at = estimator.lag(), sent_to(feed), seen.now()
            if before is not None:
                seen.rate.append((at, (sent - before[1]) / (at - before[0])))
            before = at, sent
            seen.lag.append((at, found.lag_events))
            seen.owned.append((at, Counter(e.owner for e in found.partitions if e.owner)))
    estimator.close()


def sent_to(feed: Feed) -> int:
    return sum(each.end for each in asyncio.run(feed.extents()))


def watch_pages(seen: Seen, url: str, secrets: Path, homes: int, over: threading.Event) -> None:
    """How old a reading is when the page of its home first shows it."""
    sessions = Sessions(Secrets.load(secrets))
    chance, cookies, newest = random.Random(7), dict[str, str](), dict[tuple[str, str], int]()
    for number in chance.sample(range(homes), min(WATCHED, homes)):
        home = home_id(number)
        session = sessions.resident(home, sessions.access_code(home))
        assert session is not None
        cookies[home] = sessions.sign(session)
    while not over.wait(ASK_S / 4):
        for home, cookie in cookies.items():
            with suppress(OSError):
                _look_at_page(seen, url, home, cookie, newest)
            if over.wait(ASK_S / len(cookies)):
                return


def _look_at_page(
    seen: Seen, url: str, home: str, cookie: str, newest: dict[tuple[str, str], int]
) -> None:
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


def even(estimator: Estimator, instances: int, partitions: int = 16) -> bool:
    owners = Counter(e.owner for e in estimator.lag().partitions if e.owner and e.owner_live)
    counts = owners.values()
    return len(owners) == instances and sum(counts) == partitions and max(counts) - min(counts) <= 1


def wait(holds: Callable[[], bool], what: str, bound_s: float = READY_S) -> None:
    deadline = time.monotonic() + bound_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {bound_s:g} s: {what}")
        time.sleep(0.5)


def median_and_p95(values: Series, step_s: float = 20.0) -> list[Line]:
    """Of each step."""
    steps: dict[int, list[float]] = {}
    for at, value in values:
        steps.setdefault(int(at // step_s), []).append(value)
    cuts: list[tuple[float, Any]] = [
        ((step + 0.5) * step_s, quantiles(found, n=20))
        for step, found in sorted(steps.items())
        if len(found) > 1
    ]
    return [
        Line("p95", [(at, cut[18]) for at, cut in cuts]),
        Line("median", [(at, cut[9]) for at, cut in cuts]),
    ]


def owners(seen: Seen) -> list[Line]:
    """A line for each instance that ever owned a partition."""
    names = sorted({name for _, owned in seen.owned for name in owned})
    return [
        Line(f"instance {place}", [(at, owned[name]) for at, owned in seen.owned])
        for place, name in enumerate(names, 1)
    ]
