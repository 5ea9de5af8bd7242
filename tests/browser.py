"""A headless Chromium, and a town to look at with it: the real hub, pipeline, alerts and page."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import leasehold as lh
from leasehold.homes.alerts import alerts_processor
from leasehold.homes.places import Places
from leasehold.homes.sensors import Sensors
from leasehold.homes.web import FleetInstance, FleetNews, Secrets, open_web
from leasehold.homes.web.sessions import Sessions

ROOT = Path(__file__).resolve().parent.parent
SHOTS = ROOT / "build" / "screenshots"
HOMES = 20
PATIENCE_S = 120
PHONE, DESK = (390, 844), (1280, 860)


def found(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(f"none of {names} is installed; make .tools/chromium.ready helps")


class Browser:
    def __init__(self, url: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = found("chromium", "chromium-browser", "google-chrome")
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
            options.add_argument(f"--{flag}")
        options.add_argument("--hide-scrollbars")
        options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
        self.driver = webdriver.Chrome(options=options, service=Service(found("chromedriver")))
        self.url = url
        self.look(DESK, dark=False)

    def look(self, size: tuple[int, int], *, dark: bool) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def sign_in(self, home: str, code: str) -> None:
        self.driver.delete_all_cookies()
        self.open("/sign-in")
        self.type("#home", home)
        self.type("#code", code)
        self.click("#resident button")

    def sign_in_operator(self, password: str) -> None:
        self.driver.delete_all_cookies()
        self.open("/sign-in")
        self.click("#operator summary")
        self.type("#password", password)
        self.click("#operator button")

    def type(self, where: str, text: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, where).send_keys(text)

    def click(self, where: str) -> None:
        # Pages renew themselves, so an element may be gone between finding and clicking it.
        self.driver.execute_script("document.querySelector(arguments[0]).click()", where)

    def text(self, where: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", where))

    def texts(self, where: str) -> Sequence[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return list(self.run(script, where))

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def wait(self, holds: Any, what: str) -> None:
        WebDriverWait(self.driver, PATIENCE_S, 0.2).until(lambda _: holds(), what)

    def complaints(self) -> list[str]:
        """What the console says about scripts and the security policy."""
        return [each["message"] for each in self.driver.get_log("browser")]

    def shots(self, name: str) -> None:
        """The whole page on a phone and on a desk, light and dark."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        for device, size in (("phone", PHONE), ("desk", DESK)):
            for dark in (False, True):
                self.look(size, dark=dark)
                height = self.run("return document.documentElement.scrollHeight")
                self.look((size[0], max(size[1], height)), dark=dark)
                time.sleep(0.5)
                path = SHOTS / f"{name}-{device}-{'dark' if dark else 'light'}.png"
                self.driver.save_screenshot(str(path))
        self.look(DESK, dark=False)

    def close(self) -> None:
        self.driver.quit()


class ProcessFleet:
    """Pipeline instances as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def instances(self) -> Sequence[FleetInstance]:
        return [
            FleetInstance(name, "running" if process.poll() is None else "ended")
            for name, process in self._running.items()
        ]

    def news(self) -> Sequence[FleetNews]:
        return []

    def add(self) -> str:
        name = f"pipeline-{len(self._running) + 1}"
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, ROOT / "tests" / "pipeline_app.py", self._folder, name],
                stdout=log,
                stderr=log,
                start_new_session=True,  # its Java ends with it
            )
        return name

    def stop(self, name: str) -> None:
        self._running[name].terminate()

    def kill(self, name: str) -> None:
        process = self._running[name]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        for name in self._running:
            self.kill(name)


@dataclass
class Town:
    url: str
    hub: lh.Hub
    sessions: Sessions
    fleet: ProcessFleet
    password: str


@contextmanager
def open_town(folder: Path, instances: int = 2) -> Iterator[Town]:
    places = Places(folder)
    secrets = Secrets.load(places.secrets, {})
    with ExitStack() as stack:
        hub = stack.enter_context(
            lh.Hub.create(places.hub, name="sensors", namespace="homes", partitions=4)
        )
        container = stack.enter_context(
            lh.Container.create(
                places.alerts, name="alerts", namespace="homes", partition_key="/home_id"
            )
        )
        fleet = ProcessFleet(folder)
        stack.callback(fleet.close)
        for _ in range(instances):
            fleet.add()
        sensors = stack.enter_context(Sensors(hub, homes=HOMES))
        sensors.backfill(24)
        stop = threading.Event()
        sending = threading.Thread(target=sensors.run, args=(stop,))
        alerts = alerts_processor(
            hub,
            lh.open_store(places.store),
            container,
            dead_letters=lh.open_dead_letters(places.dead_letters),
            instance="alerts-1",
        )
        handling = threading.Thread(target=alerts.run)
        for thread in (sending, handling):
            thread.start()
            stack.callback(thread.join)
        stack.callback(alerts.stop)
        stack.callback(stop.set)
        server = stack.enter_context(open_web(places, secrets, fleet=fleet))
        yield Town(server.url, hub, Sessions(secrets), fleet, secrets.operator_password)
