"""Processes of the running application are killed; it mends itself, and every reading is there."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from application import (
    Running,
    account,
    caught_up,
    demo,
    parts,
    processes,
    wait_for,
)
from browser import Browser
from homes_command import PROGRAM
from sent_readings import SentReadings

from homes.local.places import Places
from homes.simulator.flaws import Flaws
from homes.web.secrets import Secrets
from homes.web.sessions import Sessions

pytestmark = [pytest.mark.takes_s(100), pytest.mark.timeout(600)]
FLAWS = Flaws(malformed=0.01, unknown=0.01, wrong_time=0.01)
OPTIONS = ("--speed", "240", "--malformed", "0.01", "--unknown", "0.01", "--wrong-time", "0.01")
KILLS = 3


@dataclass
class Town:
    folder: Path
    demo: Running
    sent: SentReadings

    @property
    def places(self) -> Places:
        return Places(self.folder)

    @property
    def url(self) -> str:
        return self.demo.until("http://127").strip()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    sent = SentReadings.begin(folder, FLAWS)
    with demo(folder, *OPTIONS) as running:
        running.until("an operator")
        wait_for(lambda: account(folder).done["0"], "the pipeline")
        yield Town(folder, running, sent)


def kill_while_it_writes(hub: Path, pid: int) -> None:
    """At the moment when its next write shows: within a transaction, or between it and the note
    that it is done."""
    log = hub.with_name(f"{hub.name}-wal")

    def changed() -> tuple[int, int]:
        status = log.stat()
        return status.st_size, status.st_mtime_ns

    before, deadline = changed(), time.monotonic() + 60
    while changed() == before:
        assert time.monotonic() < deadline, "it does not write"
    os.kill(pid, signal.SIGKILL)


def test_killed_sensors_come_back_and_every_reading_is_there(town: Town) -> None:
    killed: set[int] = set()
    while len(killed) < KILLS:
        wait_for(lambda: set(parts(town.folder, "sensors")) - killed, "the sensors")
        (pid,) = set(parts(town.folder, "sensors")) - killed
        killed.add(pid)
        town.sent.wait_until(town.sent.before_ms() + 1)
        kill_while_it_writes(town.places.hub, pid)
    town.sent.wait_until(town.sent.before_ms() + 60_000)
    assert town.demo.said("sensors ended by itself (SIGKILL) and is started again") >= KILLS

    town.sent.require_all(kills=KILLS)
    caught_up(town.folder)


def test_a_pipeline_instance_that_is_killed_is_started_again(town: Town) -> None:
    before = town.demo.said("(SIGKILL) and is started again")
    pid, *others = parts(town.folder, "pipeline")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(parts(town.folder, "pipeline")) == 1, "its end")
    wait_for(lambda: len(parts(town.folder, "pipeline")) == 2, "the next one")
    assert set(others) < set(parts(town.folder, "pipeline"))
    assert town.demo.said("(SIGKILL) and is started again") > before
    caught_up(town.folder)


def test_what_is_wrong_with_readings_is_shown_to_operators(town: Town) -> None:
    secrets = Secrets.load(town.places.secrets)
    session = Sessions(secrets).operator(secrets.operator_password)
    assert session is not None
    cookies = {"leasehold_session": Sessions(secrets).sign(session)}
    with httpx.Client(base_url=town.url, cookies=cookies, timeout=30) as client:

        def shown() -> bool:
            news = client.get("/api/operations").raise_for_status().json()
            found = {*news["table"]["rejected"], *news["dead_letters"]}
            return found >= {"unknown home", "wrong time", "activity", "alerts"}

        wait_for(shown, "the reasons")
    now = caught_up(town.folder)
    assert now.letters["activity"] > 0


@contextmanager
def web(folder: Path, port: int) -> Iterator[Running]:
    running = Running([*PROGRAM, "web", str(folder), "--port", str(port), "--json"])
    try:
        running.until('"url"')
        yield running
    finally:
        running.end(signal.SIGKILL)


def test_a_killed_web_process_comes_back_under_an_open_page(town: Town, port: int) -> None:
    home, secrets = "H000001", Secrets.load(town.places.secrets)
    browser = Browser(f"http://127.0.0.1:{port}")
    newest = """
        return fetch("/api/home").then((answer) => answer.json())
            .then((home) => Math.max(...home.sensors.map((each) => each.ts_ms)))
    """
    try:
        with web(town.folder, port):
            browser.sign_in(home, Sessions(secrets).access_code(home))
            browser.wait(lambda: browser.text("#live-text") == "Live", "the page is live")
            browser.wait(lambda: len(browser.texts(".sensor")) >= 4, "the sensors are shown")
            before = browser.run(newest)
            browser.run("window.notLoadedAgain = true")
        browser.wait(lambda: "No connection" in browser.text("#live-text"), "it is said")
        with web(town.folder, port):
            browser.wait(lambda: browser.text("#live-text") == "Live", "the page is live again")
            assert browser.run("return window.notLoadedAgain")
            browser.wait(lambda: browser.run(newest) > before, "there is news")
            cookies = {each["name"]: each["value"] for each in browser.driver.get_cookies()}
            answer = httpx.get(f"{browser.url}/api/home", cookies=cookies, timeout=30)
            assert answer.status_code == 200
    finally:
        browser.close()
    caught_up(town.folder)


def test_a_killed_demo_leaves_no_process_and_the_next_start_goes_on(town: Town) -> None:
    """The last one here, for nothing runs any more after it."""
    town.demo.end(signal.SIGKILL)
    wait_for(lambda: not processes(town.folder), "all parts to end by themselves")
    before = account(town.folder)
    with demo(town.folder, *OPTIONS, "--headless", "--minutes", "0.1", instances=1) as second:
        assert second.end() == 0, second.text
    summary = json.loads(second.lines[-1])
    assert summary["missing"] == 0
    assert summary["sent"] == summary["aggregated"] + summary["dead_letters"] > before.total
    after = account(town.folder)
    assert after.missing == {}
    assert set(after.lags.values()) == {0}
    town.sent.require_all(kills=KILLS + 1, running=False)
