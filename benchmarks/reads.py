"""A home's page at full scale: a day of history, many readers, new readings all the time.

The web page runs as users run it, as a process of its own, beside two Spark applications that take
in the readings of all homes in real time. What it answers is compared with the table itself.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import polars as pl

from benchmarks.history import SENSORS, write_history
from benchmarks.homes import HOMES
from benchmarks.row import Row
from benchmarks.watch import even, wait
from homes.domain.kinds import KINDS
from homes.domain.reading import home_id
from homes.local.places import ACTIVITY, Places
from homes.simulator.days import Town
from homes.supervisor.data_folder import PARTITIONS, prepare
from homes.supervisor.fleet import Fleet
from homes.supervisor.part_config import PartConfig
from homes.view.window import BUCKET_MINUTES
from homes.web.secrets import Secrets
from homes.web.sessions import Sessions
from leasehold.feeds.hub import Hub
from leasehold.operations.estimator import Estimator
from leasehold.stores import open_store

HOURS = 24
READERS = 50
ASKED_HOMES = 5_000
COMPARED = 3
LOADED_S = 1_800.0
DAY_SHARE = 0.2
"""Of the requests; the others are for the page's first view."""
TARGET_MS = 50.0


def run(
    *,
    homes: int = HOMES,
    hours: int = HOURS,
    readers: int = READERS,
    seconds: float = 60.0,
    folder: Path | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """``said`` hears how far it is; with the whole day that is a quarter of an hour."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        places = Places(Path(name))
        prepare(places)
        town, until = Town(homes), int(time.time() // 60)
        written = write_history(
            places.activity,
            town=town,
            partitions=PARTITIONS,
            until_minute=until,
            hours=hours,
            on_hour=lambda hour: said(f"writing history, hour {hour} of {hours}"),
        )
        yield Row(what=f"readings in {hours} hours of history", value=written, unit="")
        # What passed meanwhile goes through the pipeline.
        gap_hours = time.time() / 3600 - until / 60
        fleet = Fleet(
            PartConfig(part="", instance="", folder=name, homes=homes, history_hours=gap_hours),
        )
        try:
            yield from _measured(
                places,
                fleet,
                _Asking(places, homes),
                until=until,
                readers=readers,
                seconds=seconds,
                said=said,
            )
        finally:
            fleet.close()


def _measured(
    places: Places,
    fleet: Fleet,
    asking: _Asking,
    *,
    until: int,
    readers: int,
    seconds: float,
    said: Callable[[str], None],
) -> Iterator[Row]:
    for _ in range(2):
        fleet.add()
    with Hub.open(places.hub) as hub:
        estimator = Estimator(hub, group=ACTIVITY, store=open_store(places.store))
        wait(lambda: even(estimator, 2), "both instances have partitions")
        fleet.start_part("sensors")
        wait(lambda: hub.properties().events > 0, "the sensors send")
        said("the page reads the day for the first time")
        with _page(places) as url:
            began = time.monotonic()
            wait(lambda: asking.shows(url), "the page shows a home", LOADED_S)
            yield Row(what="first start: a home is shown", value=_since(began), unit="s")
            wait(lambda: asking.table(url)["loaded"], "the day is in memory", LOADED_S)
            yield Row(what="first start: the whole day in memory", value=_since(began), unit="s")
            wait(
                lambda: estimator.lag().lag_events < 3 * asking.homes,
                "the pipeline is up to date",
                600,
            )
            for pause_s, how in ((1.0, "each asking once a second"), (0.0, "without any pause")):
                said(f"{readers} readers, {how}")
                lag = estimator.lag().lag_events
                times = asyncio.run(asking.read(url, readers, pause_s, seconds))
                yield from _told(f"{readers} readers, {how}", times, seconds)
                lag = max(lag, estimator.lag().lag_events)
                yield Row(
                    what="… the pipeline is behind by, before or after", value=lag, unit="events"
                )
            said("comparing with the table itself")
            plain_s = asking.compare(url, until)
            fast_s = median(times) / 1000
            yield Row(
                what="a home's day out of the table as it is, one reader",
                value=1000 * plain_s,
                unit="ms",
                ratio=plain_s / fast_s,
            )
        said("the page is started again")
        with _page(places) as url:
            began = time.monotonic()
            wait(lambda: asking.table(url)["loaded"], "the day is in memory", LOADED_S)
            yield Row(what="next start: the whole day in memory", value=_since(began), unit="s")
        estimator.close()


def _told(what: str, times: Sequence[float], seconds: float) -> Iterator[Row]:
    cuts = quantiles(times, n=100)
    yield Row(what=f"{what}: answers", value=len(times) / seconds, unit="/s")
    yield Row(what=f"{what}: median", value=cuts[49], unit="ms")
    yield Row(what=f"{what}: p95", value=cuts[94], unit="ms", target=TARGET_MS)
    yield Row(what=f"{what}: p99", value=cuts[98], unit="ms")


@contextmanager
def _page(places: Places) -> Iterator[str]:
    log = (places.folder / "logs" / "web.log").open("ab")
    with log:
        popen = subprocess.Popen(
            [sys.executable, "-m", "homes", "web", str(places.folder), "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert popen.stdout is not None
        yield str(json.loads(popen.stdout.readline())["url"])
    finally:
        popen.terminate()
        popen.wait(120)


@dataclass(slots=True)
class _Asking:
    """Residents of many homes, and an operator."""

    places: Places
    homes: int

    def _cookie(self, home: str | None) -> str:
        secrets = Secrets.load(self.places.secrets)
        sessions = Sessions(secrets)
        session = (
            sessions.operator(secrets.operator_password)
            if home is None
            else sessions.resident(home, sessions.access_code(home))
        )
        assert session is not None
        return f"leasehold_session={sessions.sign(session)}"

    def get(self, url: str, path: str, home: str | None = None) -> dict[str, Any]:
        asked = urllib.request.Request(url + path, headers={"Cookie": self._cookie(home)})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return dict(json.load(answer))

    def table(self, url: str) -> dict[str, Any]:
        return dict(self.get(url, "/api/operations")["table"])

    def shows(self, url: str) -> bool:
        return bool(self.get(url, "/api/home", home_id(self.homes // 2))["sensors"])

    async def read(self, url: str, readers: int, pause_s: float, seconds: float) -> list[float]:
        """Milliseconds that each answer took."""
        chance = random.Random(11)
        numbers = [chance.randrange(self.homes) for _ in range(min(ASKED_HOMES, self.homes))]
        cookies = [self._cookie(home_id(number)).encode() for number in numbers]
        host, port = url.removeprefix("http://").split(":")
        times: list[float] = []
        deadline = time.perf_counter() + seconds

        async def one() -> None:
            reader, writer = await asyncio.open_connection(host, int(port))
            await asyncio.sleep(chance.random() * pause_s)
            while (began := time.perf_counter()) < deadline:
                path = b"/api/home/day" if chance.random() < DAY_SHARE else b"/api/home"
                writer.write(
                    b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: %s\r\n\r\n"
                    % (path, chance.choice(cookies))
                )
                await _answered(reader)
                times.append(1000 * (time.perf_counter() - began))
                if pause_s:
                    await asyncio.sleep(pause_s)
            writer.close()

        await asyncio.gather(*(one() for _ in range(readers)))
        return times

    def compare(self, url: str, until: int) -> float:
        """The page's day of some homes and that of the table, which must be the same; how long the
        table takes. Only half hours that were over before ``until``."""
        took = []
        for number in random.Random(5).sample(range(self.homes), COMPARED):
            home = home_id(number)
            shown = self.get(url, "/api/home/day", home)
            first = shown["start_ms"] // 60_000
            began = time.perf_counter()
            rows = self._plainly(home, first)
            took.append(time.perf_counter() - began)
            steps = (until - first) // BUCKET_MINUTES
            for kind in KINDS[:SENSORS]:
                if shown["levels"][kind][:steps] != _levels(rows, kind, first, steps):
                    raise AssertionError(f"{home}, {kind}: the page and the table do not agree")
        return median(took)

    def _plainly(self, home: str, first: int) -> list[dict[str, Any]]:
        wanted = (pl.col("home_id") == home) & (pl.col("minute") >= first)
        table = pl.scan_delta(str(self.places.activity))
        found = table.filter(wanted & (pl.col("hour") >= first // 60)).collect()
        assert isinstance(found, pl.DataFrame)
        return found.to_dicts()


async def _answered(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    if b" 200 " not in status:
        raise AssertionError(f"answered with {status.decode()}")
    for line in lines:
        if line.lower().startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))
            return
    raise AssertionError("an answer without a length")


def _levels(
    rows: Sequence[dict[str, Any]], kind: str, first: int, steps: int
) -> list[float | None]:
    found: list[float | None] = [None] * steps
    for row in rows:
        step = (row["minute"] - first) // BUCKET_MINUTES
        if row["kind"] == kind and step < steps:
            found[step] = (found[step] or 0) + row["active"]
    return found


def _since(began: float) -> float:
    return time.monotonic() - began
