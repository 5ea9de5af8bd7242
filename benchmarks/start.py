"""Cold starts of the demo: from ``make demo`` to the first home with live data on the page, and
from Ctrl-C to nothing left. Each in a folder of its own, at full scale, with malformed readings.

Live is a page that shows a reading which was sent after the command was given. Every stop must be
an orderly one, or the measurement fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.row import Row
from homes.domain.reading import home_id
from homes.local.places import Places
from homes.web.secrets import Secrets
from homes.web.sessions import Sessions
from leasehold.stores import open_store

ROOT = Path(__file__).parents[1]
STARTS, HOMES, MALFORMED = 10, 100_000, 0.001
WATCHED = 20
PATIENCE_S = 180.0
LOOK_S = 0.1
START_TARGET_S = 25.0
STOPS_WITHIN_S = 10
"""So long after a home is live, at different moments, Ctrl-C is given."""
STOP_TARGET_S = 2 * 2.0 + 3
"""Two cycles and three seconds."""
MARK = "LEASEHOLD_BENCH_START"
"""In the environment of whatever a demo starts."""


@dataclass(slots=True)
class Start:
    """Seconds from the command on."""

    served_s: float = 0.0
    first_s: float = 0.0
    """The first page that shows any reading."""
    live_s: float = 0.0
    said: list[tuple[float, str]] = field(default_factory=list)
    """What the page says is being waited for, and since when."""
    stop_s: float = 0.0
    """From Ctrl-C until no process is left."""


def run(
    *,
    starts: int = STARTS,
    homes: int = HOMES,
    folder: Path | None = None,
    through_make: bool = True,
    said: Callable[[str], object] = lambda text: None,
) -> Iterator[Row]:
    """``said`` hears of each start. ``through_make``: as users start it, else by the program."""
    found = []
    for number in range(1, starts + 1):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            found.append(_start(Path(name), homes, through_make, number % STOPS_WITHIN_S))
        last = found[-1]
        said(
            f"{number}: page after {last.served_s:.1f} s, a home after {last.first_s:.1f} s, live "
            f"after {last.live_s:.1f} s, Ctrl-C {last.stop_s:.1f} s"
        )
        for at, text in last.said:
            said(f"   {at:5.1f} s {text or 'nothing is waited for'}")
    for what, values, target in (
        ("the page is served", [each.served_s for each in found], None),
        ("the first home with readings", [each.first_s for each in found], None),
        ("the first home with live data", [each.live_s for each in found], START_TARGET_S),
        ("from Ctrl-C to nothing left", [each.stop_s for each in found], STOP_TARGET_S),
    ):
        yield Row(what=f"{what}, median of {starts}", value=median(values), unit="s", target=target)
        yield Row(what=f"{what}, worst", value=max(values), unit="s", target=target)


def _start(folder: Path, homes: int, through_make: bool, stop_after_s: float) -> Start:
    demo, start = _Demo(folder, homes, through_make), Start()
    try:
        _watch(demo, homes, start)
        time.sleep(stop_after_s)
        asked = time.time()
        code = demo.interrupted()
        _wait(lambda: not _left(folder), "nothing is left", asked)
        start.stop_s = time.time() - asked
        _require_order(demo, code)
    finally:
        for pid in _left(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return start


class _Demo:
    def __init__(self, folder: Path, homes: int, through_make: bool) -> None:
        self.places = Places(folder / "demo")
        options = ["--folder", str(self.places.folder), "--port", "0", "--homes", str(homes)]
        options += ["--malformed", str(MALFORMED)]
        command = [sys.executable, "-m", "homes", "demo", *options]
        if through_make:
            command = ["make", "--silent", "demo", f"ARGS={' '.join(options)}"]
        self.began, self._lines = time.time(), list[str]()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: str(folder)},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._lines.extend, args=(self._process.stdout,))
        self._reader.start()

    @property
    def text(self) -> str:
        return "".join(list(self._lines))

    @property
    def url(self) -> str:
        """Empty until the page is served."""
        if self._process.poll() is not None:
            raise AssertionError(f"the demo has ended: {self.text}")
        return "".join(re.findall(r"http://127[^ \n]+", self.text)[:1])

    def interrupted(self) -> int:
        """By Ctrl-C, as a terminal does; its exit code."""
        os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


def _watch(demo: _Demo, homes: int, start: Start) -> None:
    _wait(lambda: bool(demo.url), "the page is served", demo.began)
    start.served_s = time.time() - demo.began
    cookies = _cookies(demo.places, homes)
    chance = random.Random(7)
    while not start.live_s:
        home = _asked(demo.url, chance.choice(cookies))
        at = time.time() - demo.began
        if at > PATIENCE_S:
            raise AssertionError(f"no home is live: {demo.text}")
        if not start.said or home["waiting"] != start.said[-1][1]:
            start.said.append((at, home["waiting"]))
        newest = max((each["ts_ms"] / 1000 for each in home["sensors"]), default=0.0)
        if newest and not start.first_s:
            start.first_s = at
        if newest >= demo.began:
            start.live_s = at
        time.sleep(LOOK_S / 4)


def _cookies(places: Places, homes: int) -> Sequence[str]:
    sessions = Sessions(Secrets.load(places.secrets))
    found = []
    for number in random.Random(7).sample(range(homes), min(WATCHED, homes)):
        home = home_id(number)
        session = sessions.resident(home, sessions.access_code(home))
        assert session is not None
        found.append(sessions.sign(session))
    return found


def _asked(url: str, cookie: str) -> dict[str, Any]:
    asked = urllib.request.Request(
        f"{url}/api/home", headers={"Cookie": f"leasehold_session={cookie}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _require_order(demo: _Demo, code: int) -> None:
    """Its own words, and no lease left to anybody."""

    async def owners() -> set[str | None]:
        store = open_store(demo.places.store)
        try:
            groups = await store.groups()
            looks = [await store.snapshot(group) for group in groups]
            return {lease.owner for look in looks for lease in look.leases}
        finally:
            await store.close()

    # Make itself ends by the signal once its command has ended.
    if code not in (0, -signal.SIGINT) or "goes on where it was" not in demo.text:
        raise AssertionError(f"it ended with {code}: {demo.text}")
    if (left := asyncio.run(owners())) != {None}:
        raise AssertionError(f"leases are left to {left}")


def _wait(holds: Callable[[], bool], what: str, began: float) -> None:
    while not holds():
        if time.time() - began > PATIENCE_S:
            raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(LOOK_S / 2)


def _left(folder: Path) -> list[int]:
    """All processes of a demo, Java and Python workers included."""
    found, mark = [], f"{MARK}={folder}\0".encode()
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may be gone, or not ours
            if mark in (each / "environ").read_bytes():
                found.append(int(each.name))
    return found
