"""A headless Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[3]
SHOTS = ROOT / "build" / "screenshots"
PATIENCE_S = 120
PHONE, DESK = (390, 844), (1280, 860)
AXE = ROOT / ".tools" / "axe" / "node_modules" / "axe-core" / "axe.min.js"

# Charts are drawn when their size is known, a frame after that.
DRAWN = """const done = arguments[arguments.length - 1];
document.fonts.ready.then(() =>
    requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"""

# A page that hears what a test says, and not what the server does.
TOLD = """
window.EventSource = class {
  static CLOSED = 2;
  readyState = 1;
  heard = {};
  constructor() { window.told = (event, state) => this.heard[event]({ data: state }); }
  addEventListener(event, hear) { this.heard[event] = hear; }
};
"""


def found(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(f"none of {names} is installed; make .tools/chromium.ready helps")


class Browser:
    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = found("chromium", "chromium-browser", "google-chrome")
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
            options.add_argument(f"--{flag}")
        options.add_argument("--hide-scrollbars")
        options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
        self.driver = webdriver.Chrome(options=options, service=Service(found("chromedriver")))
        self.driver.set_script_timeout(patience_s)
        self.url, self._patience_s = url, patience_s
        self.look(DESK, dark=False)

    def look(self, size: tuple[int, int], *, dark: bool) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = {"prefers-color-scheme": "dark" if dark else "light"}
        features["prefers-reduced-motion"] = "reduce"  # at once how it will be
        wanted = [{"name": name, "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})

    def come_as(self, token: str) -> None:
        """Signed in, without the form."""
        cookie = {"name": "leasehold_session", "value": token, "url": self.url}
        self.driver.execute_cdp_cmd("Network.setCookie", cookie)

    @contextmanager
    def told_by_test(self) -> Iterator[None]:
        """Pages that are opened meanwhile show what ``tell`` gives them."""
        command = "Page.addScriptToEvaluateOnNewDocument"
        added = self.driver.execute_cdp_cmd(command, {"source": TOLD})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def tell(self, event: str, state: Any) -> None:
        # Modules are loaded after the page.
        self.wait(lambda: self.run("return !!window.told"), "the page listens")
        self.run("window.told(arguments[0], arguments[1])", event, json.dumps(state))

    def locale(self, name: str = "") -> None:
        """As if the browser were in that language; empty: in its own."""
        given = {"locale": name} if name else {}
        self.driver.execute_cdp_cmd("Emulation.setLocaleOverride", given)

    def press(self, *keys: str) -> None:
        """To whatever has the focus."""
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def barriers(self) -> list[str]:
        """What axe-core finds wrong with the page as it is now."""
        if not AXE.exists():
            raise FileNotFoundError(f"{AXE} is missing; make .tools/axe.ready helps")
        if not self.run("return !!window.axe"):
            self.run(AXE.read_text())
        script = """const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ["violations"] }).then((found) => done(
                found.violations.flatMap((rule) => rule.nodes.map(
                    (node) => `${rule.id}: ${node.html} ${node.failureSummary}`))),
                (error) => done([`axe: ${error}`]))"""
        return [str(each) for each in self.driver.execute_async_script(script)]

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
        WebDriverWait(self.driver, self._patience_s, 0.2).until(lambda _: holds(), what)

    def complaints(self) -> list[str]:
        """What the console says about scripts and the security policy."""
        return [each["message"] for each in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def shots(self, name: str) -> None:
        """The whole page on a phone and on a desk, light and dark."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        for device, size in (("phone", PHONE), ("desk", DESK)):
            for dark in (False, True):
                path = SHOTS / f"{name}-{device}-{'dark' if dark else 'light'}.png"
                self.picture(path, size, dark=dark)
        self.look(DESK, dark=False)

    def picture(self, path: Path, size: tuple[int, int], *, dark: bool) -> None:
        """The whole page, as tall as it is, drawn to the end."""
        width, height = size
        self.look((width, height), dark=dark)
        while (whole := self.run("return document.documentElement.scrollHeight")) != height:
            if whole < height:
                break
            height = whole
            self.look((width, height), dark=dark)
        self.driver.execute_async_script(DRAWN)
        self.driver.save_screenshot(str(path))

    def close(self) -> None:
        self.driver.quit()
