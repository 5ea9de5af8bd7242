"""Pictures of every page, of the real demo at its real size: ``make screens``.

Starts ``homes demo`` in a folder of its own, waits for live data, breaks a window in the resident's
home, kills an instance, and takes each page light, dark and on a phone.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from browser import DESK, PHONE, Browser

ROOT = Path(__file__).resolve().parent.parent
LOOKS = {"light": (DESK, False), "dark": (DESK, True), "phone": (PHONE, False)}
PATIENCE_S = 900.0
SAMPLES = 110
"""Of throughput, one a second: then the peak of the history has left the chart."""
HEAD = re.compile(
    r"(http://\S+).*home (H\d+), access code (\S+).*operator: password (\S+)", re.DOTALL
)


class Demo(NamedTuple):
    url: str
    home: str
    code: str
    password: str


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--homes", type=int, default=100_000)
    parser.add_argument("--into", type=Path, default=ROOT / "homes" / "docs" / "screens")
    given = parser.parse_args(arguments)
    given.into.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # nothing is left running
    with (
        tempfile.TemporaryDirectory(prefix="screens-") as folder,
        running_demo(given.homes, Path(folder) / "demo") as demo,
    ):
        browser = Browser(demo.url, PATIENCE_S)
        try:
            for name in pictured(browser, demo):
                for picture in taken(browser, name, given.into):
                    print(f"{picture.name}: {picture.stat().st_size // 1000:,} kB", flush=True)
        finally:
            browser.close()


@contextmanager
def running_demo(homes: int, folder: Path) -> Iterator[Demo]:
    command = [sys.executable, "-m", "homes", "demo", "--homes", str(homes), "--port", "0"]
    with subprocess.Popen(
        [*command, "--folder", str(folder), "--no-story"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"COLUMNS": "200"},
    ) as process:
        try:
            yield said(process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def said(process: subprocess.Popen[str]) -> Demo:
    """The address and the logins that it prints; the rest is read, so that it can go on."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if found := HEAD.search(text):
            threading.Thread(target=drained, args=(process.stdout,), daemon=True).start()
            return Demo(*found.groups())
    raise SystemExit("the demo ended before it had begun")


def drained(lines: Iterator[str]) -> None:
    for line in lines:
        print(f"  demo: {line.rstrip()}", flush=True)


def pictured(browser: Browser, demo: Demo) -> Iterator[str]:
    """Brings the browser to one page after the other, and says its name."""
    browser.open("/sign-in")
    yield "sign-in"
    browser.open("/nothing")
    yield "not-found"
    browser.sign_in(demo.home, demo.code)
    yield from resident(browser)
    browser.open("/operations")
    yield "not-for-you"
    yield from operator(browser, demo)


def resident(browser: Browser) -> Iterator[str]:
    browser.wait(lambda: browser.run(CURRENT), "readings are live")
    yield "home"
    browser.click("button[data-drill=glass]")
    browser.wait(lambda: browser.text("#state").startswith("Alarm"), "the alarm is shown")
    browser.wait(lambda: browser.texts("#alerts .alert-text"), "and its alert")
    browser.wait(lambda: browser.text("#said") == "", "what was said is over")
    browser.wait(lambda: not waiting(browser), "readings are live again")
    yield "home-alarm"


def operator(browser: Browser, demo: Demo) -> Iterator[str]:
    browser.sign_in_operator(demo.password)
    browser.wait(lambda: not waiting(browser), "readings are current")
    browser.wait(lambda: shares(browser) == [8, 8], "two instances share the partitions")
    browser.wait(lambda: browser.run(MEASURED) >= SAMPLES, "a chart of usual work")
    browser.wait(lambda: caught_up(browser), "the pipeline has caught up")
    yield "operations"
    killed = str(browser.run("return document.querySelector('button[data-act=kill]').dataset.name"))
    browser.click(f'button[data-act=kill][data-name="{killed}"]')
    yield "operations-kill"
    browser.click("#ask-yes")
    browser.wait(lambda: "failover" in browser.texts(".moves .badge"), "the other one takes over")
    browser.wait(lambda: shares(browser) == [16], "all of it")
    browser.wait(lambda: browser.text("#said") == "", "what was said is over")
    browser.click("button[data-act=add]")
    browser.wait(lambda: shares(browser) == [8, 8], "a new one has its share")
    browser.wait(lambda: browser.text("#said") == "", "what was said is over")
    browser.wait(lambda: caught_up(browser), "they have caught up")
    yield "operations-killed"


CURRENT = """return document.getElementById("trouble").hidden
    && ["quiet", "open"].includes(document.getElementById("hero").dataset.state)"""
MEASURED = """return fetch("/api/operations").then((answer) => answer.json()).then(
    (found) => found.groups[0].samples.length)"""
CHIPS = """return [...document.querySelectorAll(".instance")].map(
    (each) => each.querySelectorAll(".chip").length)"""


def waiting(browser: Browser) -> bool:
    shown = "return !document.getElementById('trouble').hidden"
    return bool(browser.run(shown)) or browser.text("#live-text") != "Live"


def caught_up(browser: Browser) -> bool:
    return not waiting(browser) and "behind" not in browser.texts("#partitions .badge")


def shares(browser: Browser) -> list[int]:
    return sorted(count for count in browser.run(CHIPS) if count)


def taken(browser: Browser, name: str, into: Path) -> Iterator[Path]:
    for look, (size, dark) in LOOKS.items():
        path = into / f"{name}-{look}.png"
        browser.picture(path, size, dark=dark)
        yield path
    browser.look(DESK, dark=False)


if __name__ == "__main__":
    main()
