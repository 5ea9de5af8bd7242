"""The pages in a real browser, over the real hub, Spark pipeline and alerts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from browser import DESK, PHONE, Browser
from selenium.webdriver.common.keys import Keys
from town import Town, open_town

from homes.simulator.sensors import send_reading

pytestmark = [pytest.mark.takes_s(50), pytest.mark.timeout(600)]
MINE, OTHER, ALARMED = "H000001", "H000002", "H000003"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with open_town(tmp_path_factory.mktemp("town")) as town:
        yield town


@pytest.fixture
def browser(town: Town) -> Iterator[Browser]:
    browser = Browser(town.url)
    try:
        yield browser
        assert [each for each in browser.complaints() if "401" not in each] == []
    finally:
        browser.close()


def at_home(browser: Browser, town: Town, home: str) -> None:
    browser.sign_in(home, town.sessions.access_code(home))
    browser.wait(lambda: len(browser.texts(".sensor")) >= 4, "the sensors are shown")
    browser.wait(lambda: browser.text("#live-text") == "Live", "the page is live")


def test_signing_in_leads_home_and_a_wrong_code_does_not(browser: Browser, town: Town) -> None:
    browser.open("/")
    browser.shots("sign-in")
    browser.sign_in(MINE, "AAAA-AAAA-AAAA")
    browser.wait(lambda: "do not belong" in browser.text("#resident-error"), "the reason is said")
    browser.shots("sign-in-refused")
    at_home(browser, town, MINE)
    assert browser.driver.current_url == f"{town.url}/home"
    assert MINE in browser.text(".where")
    browser.wait(lambda: browser.texts(".lane-canvas svg rect"), "the hour is drawn")
    browser.shots("home")
    browser.click(".top form button")
    browser.wait(lambda: browser.driver.current_url.endswith("/sign-in"), "signed out")
    browser.open("/home")
    assert browser.driver.current_url.endswith("/sign-in")


def test_an_event_changes_the_page_by_itself(browser: Browser, town: Town) -> None:
    at_home(browser, town, MINE)
    browser.run("window.notLoadedAgain = true")
    later_ms = int(time.time() * 1000) + 240_000  # after what the simulated door says meanwhile
    send_reading(town.hub, MINE, "door", 1, ts_ms=later_ms)
    browser.wait(lambda: "open" in browser.text("#state"), "the door is open")
    assert "Door" in browser.text("#state")
    assert "Open" in browser.text(".sensor[data-level=open]")
    assert browser.run("return window.notLoadedAgain")
    browser.shots("home-open")


def test_an_alert_appears_by_itself(browser: Browser, town: Town) -> None:
    at_home(browser, town, ALARMED)
    assert browser.texts("#alerts li .alert-text") == []
    send_reading(town.hub, ALARMED, "glass", 1)
    browser.wait(lambda: browser.texts("#alerts .alert-text") == ["Glass was broken"], "an alert")
    browser.wait(lambda: browser.text("#state").startswith("Alarm"), "the state is alarm")
    browser.shots("home-alarm")


def test_another_home_is_refused(browser: Browser, town: Town) -> None:
    browser.sign_in(OTHER, town.sessions.access_code(MINE))
    browser.wait(lambda: "do not belong" in browser.text("#resident-error"), "refused")
    at_home(browser, town, MINE)
    script = "return fetch(arguments[0]).then(async (a) => [a.status, await a.text()])"
    for path in (f"/api/home?home={OTHER}", "/api/home/day"):
        status, text = browser.run(script, path)
        assert status == 200
        assert OTHER not in text
    assert browser.run(script, f"/api/home/{OTHER}")[0] == 404
    assert browser.run(script, "/api/operations")[0] == 403
    browser.open("/operations")
    assert browser.text("h1") == "This page is for operators"
    browser.complaints()  # the browser notes each refusal


def test_the_page_can_be_used_by_keyboard_and_read_on_a_phone(browser: Browser, town: Town) -> None:
    browser.look(PHONE, dark=True)
    at_home(browser, town, MINE)
    for _ in range(8):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        if browser.run("return document.activeElement.id") == "show-day":
            break
    assert browser.run("return document.activeElement.matches(':focus-visible')")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    pressed = "return document.getElementById('show-day').getAttribute('aria-pressed')"
    browser.wait(lambda: browser.run(pressed) == "true", "the day is chosen")
    bars = "return document.querySelectorAll('.lane.motion rect').length"
    browser.wait(lambda: browser.run(bars) == 48, "the day is drawn")
    charts = "document.querySelectorAll('.lane svg[role=img]')"
    labels = browser.run(f"return [...{charts}].map((each) => each.getAttribute('aria-label'))")
    assert labels
    assert all("24 hours" in label for label in labels)
    for size in (PHONE, (320, 640), DESK):
        browser.look(size, dark=False)
        wide = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, size
    browser.shots("home-day")


def test_operations_follows_an_instance_that_is_killed(browser: Browser, town: Town) -> None:
    browser.sign_in_operator(town.password)

    def chips(name: str) -> list[str]:
        return list(browser.texts(f".instance[data-name={name}] .chip"))

    browser.wait(
        lambda: sorted(map(len, (chips("pipeline-1"), chips("pipeline-2")))) == [2, 2],
        "the partitions are shared",
    )
    lines = "return document.querySelectorAll('#flow polyline').length"
    browser.wait(lambda: browser.run(lines) == 3, "rates are drawn")
    browser.shots("operations")
    browser.click('button[data-act=kill][data-name="pipeline-2"]')
    browser.click("#ask-yes")
    browser.wait(lambda: "was killed" in browser.text("#said"), "it is said")
    browser.wait(lambda: len(chips("pipeline-1")) == 4, "the other takes over")
    browser.wait(lambda: "failover" in browser.texts(".moves .badge"), "failovers")
    browser.wait(lambda: "2 partitions: pipeline-2 → pipeline-1" in browser.text(".moves"), "both")
    browser.shots("operations-failover")
    browser.click("button[data-act=co]")
    browser.wait(lambda: "are on" in browser.text("button[data-act=co]"), "detectors are on")
    browser.click("button[data-act=add]")
    browser.wait(lambda: len(chips("pipeline-3")) == 2, "a new one gets its share")
    browser.shots("operations-added")
