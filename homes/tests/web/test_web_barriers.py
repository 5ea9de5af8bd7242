"""Pages that everybody can use: what axe-core says of each, light and dark; by keyboard alone; at
twice the size; and 320 pixels wide."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from activity_rows import NOW_MINUTE, append, row
from browser import DESK, Browser
from selenium.webdriver.common.keys import Keys
from web_site import MINE, OTHER, SECRETS, Site, open_site

import leasehold as lh
from homes.web.drills import Drills

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600), pytest.mark.takes_s(20)]
ALARMED = "H000003"
NARROW, TWICE = (320, 640), (DESK[0] // 2, DESK[1] // 2)
GROUP = lh.Group(namespace="homes", feed="sensors", name="activity")


class Sent(list[tuple[str, str, float]]):
    def __call__(self, home: str, kind: str, value: float) -> None:
        self.append((home, kind, value))


@pytest.fixture(scope="module")
def sent() -> Sent:
    return Sent()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory, sent: Sent) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site"), drills=Drills(sent)) as site:
        now = int(time.time() // 60)
        ago = NOW_MINUTE - now
        append(
            site.table,
            row(ALARMED, "glass", ago, 1.0),
            row(ALARMED, "co", ago + 1, 20.0, battery=5.0),
            row(ALARMED, "window", ago + 30, 1.0),
        )
        alert = {"home_id": ALARMED, "type": "glass", "value": 1}
        for minute in (now, now - 90):
            site.alerts.insert(alert | {"id": str(minute), "ts": minute * 60_000})
        yield site


@pytest.fixture(scope="module")
def chromium(town: Site) -> Iterator[Browser]:
    browser = Browser(town.url)
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    yield chromium
    chromium.look(DESK, dark=False)
    chromium.driver.delete_all_cookies()


def sign_in(browser: Browser, town: Site) -> None:
    browser.open("/sign-in")


def refused(browser: Browser, town: Site) -> None:
    browser.sign_in(MINE, "AAAA-AAAA-AAAA")
    browser.wait(lambda: "do not belong" in browser.text("#resident-error"), "refused")
    browser.click("#operator summary")


def home(browser: Browser, town: Site) -> None:
    browser.come_as(town.token(MINE))
    browser.open("/home")
    browser.wait(lambda: browser.text("#state") == "Door open", "the home is shown")
    browser.wait(
        lambda: browser.run("return document.querySelectorAll('.lane rect').length"), "drawn"
    )


def alarm(browser: Browser, town: Site) -> None:
    browser.come_as(town.token(ALARMED))
    browser.open("/home")
    browser.wait(lambda: browser.text("#state").startswith("Alarm"), "the alarm is shown")
    browser.wait(lambda: "over since" in browser.text("#alerts"), "and one that is over")
    browser.click(".as-table summary")
    browser.wait(lambda: browser.texts("#table td"), "the table is filled")


def operations(browser: Browser, town: Site) -> None:
    """With every kind of thing on it."""
    browser.come_as(town.operator_token())
    with town.client(town.operator_token()) as client:
        state = client.get("/api/operations").json()
        client.post("/api/operations/co-detectors")
    group, now_ms = state["groups"][0], int(time.time() * 1000)
    names = [f"pipeline-{n}-77" for n in (1, 2, 3)]
    group["partitions"] = [
        {
            "id": str(n),
            "owner": None if n == 5 else names[n % 3],
            "live": n % 3 != 2,
            "stuck": n == 4,
            "attempts": 3 if n == 3 else 0,
            "lag_events": 700 * n,
            "lag_s": float(n * n),
            "processed_per_s": 90.0,
        }
        for n in range(16)
    ]
    cycle = {"at_ms": now_ms, "target_s": 2.0, "seconds": 5.5, "events": 9000, "bytes": 1_200_000}
    cycle["parts"] = {"plan": 0.1, "job": 5.0, "commit": 0.4}
    group["instances"] = [
        {
            "name": name,
            "live": name != names[2],
            "seen_s": 0.4,
            "partitions": [p["id"] for p in group["partitions"] if p["owner"] == name],
            "cycle": cycle if name == names[0] else None,
        }
        for name in names
    ]
    group["samples"] = [
        {"at_ms": now_ms - 1000 * n, "in": 1600.0, "done": 50_000.0 if n < 3 else 1500.0, "lag": n}
        for n in range(119, -1, -1)
    ]
    group |= {"lag_s": 90.0, "lag_events": 12_000, "incoming_per_s": 1.0, "processed_per_s": 2.0}
    moves = {"group": "activity", "from": names[2], "to": names[0], "how": "failed over"}
    state["moves"] = [moves | {"partition": str(n), "at_ms": now_ms - n} for n in range(6)]
    more = {"partition": "9", "at_ms": now_ms - 60_000, "from": None, "how": "claimed"}
    state["moves"].append(moves | more)
    state["actions"] = [{"at_ms": now_ms, "text": "operator 12ab: kill pipeline-3-77"}]
    fleet = [{"name": name, "state": "running"} for name in [*names[:2], "pipeline-1"]]
    state["fleet"]["instances"] = fleet
    state |= {"dead_letters": {"activity": 3}, "waiting": "5,000 readings to go"}
    with browser.told_by_test():
        browser.open("/operations")
        browser.tell("operations", state)
    browser.click(".moves summary")


def question(browser: Browser, town: Site) -> None:
    operations(browser, town)
    browser.click("button[data-act=kill]")


def not_for_you(browser: Browser, town: Site) -> None:
    browser.come_as(town.token(OTHER))
    browser.open("/operations")


def nothing_here(browser: Browser, town: Site) -> None:
    browser.open("/nothing")


PAGES = [sign_in, refused, home, alarm, operations, question, not_for_you, nothing_here]
Page = Callable[[Browser, Site], None]


@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_barrier_light_or_dark(browser: Browser, town: Site, page: Page) -> None:
    page(browser, town)
    for dark in (False, True):
        browser.look(DESK, dark=dark)
        assert browser.barriers() == [], "dark" if dark else "light"


def test_axe_would_find_one(browser: Browser, town: Site) -> None:
    nothing_here(browser, town)
    browser.run("document.body.append(document.createElement('button'))")
    assert [each.split(":")[0] for each in browser.barriers()] == ["button-name"]


# What sticks out to the side, but for what may be scrolled by itself.
OUTSIDE = """return [...document.querySelectorAll('body *')].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width > 1 && box.right > innerWidth + 1 && !each.closest('.scroll');
}).map((each) => each.outerHTML.slice(0, 120))"""
# Words that are cut off: of these, only names of instances may be, in the table of partitions.
CUT = """const words = [...document.querySelectorAll('body *:not(.unseen, .who, .skip, svg *)')];
return words.filter((each) => each.clientWidth > 1 && each.scrollWidth > each.clientWidth + 1
    && getComputedStyle(each).overflowX === 'hidden').map((each) => each.outerHTML.slice(0, 120))"""
# Controls that another one lies on.
COVERED = """const top = document.querySelector('dialog[open]') ?? document;
return [...top.querySelectorAll('button, a[href], input, summary')].filter((each) => {
    if (!each.checkVisibility() || each.disabled || each.matches('.skip')) return false;
    each.scrollIntoView({ block: 'center' });
    const box = each.getBoundingClientRect();
    const seen = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return !(seen && (each.contains(seen) || seen.contains(each)));
}).map((each) => each.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_lost_on_narrow_screens_and_at_twice_the_size(
    browser: Browser, town: Site, page: Page
) -> None:
    page(browser, town)
    # A browser that is zoomed to 200 % lays pages out for half as many pixels.
    for size in (NARROW, TWICE):
        browser.look(size, dark=False)
        browser.wait(lambda: browser.run(OUTSIDE) == [], f"all of it fits {size}")
        assert browser.run("return document.documentElement.scrollWidth") <= size[0]
        for script in (CUT, COVERED):
            assert browser.run(script) == [], size
    # Or only letters are larger, by the browser's own setting.
    browser.look(DESK, dark=False)
    browser.run("document.documentElement.style.fontSize = '200%'")
    browser.wait(lambda: browser.run(OUTSIDE) == [], "larger letters fit")
    size = "return parseFloat(getComputedStyle(document.querySelector('p, h1')).fontSize)"
    assert browser.run(size) >= 24, "and are larger"


FOCUSED = "const each = document.activeElement;"
NAMED = """return each.id || each.dataset.act || each.dataset.drill || each.dataset.group
    || each.ariaLabel || each.textContent.trim().slice(0, 40)"""


def reach(browser: Browser, name: str) -> None:
    """By Tab alone; whatever has the focus on the way can be seen to have it."""
    seen = []
    for _ in range(60):
        browser.press(Keys.TAB)
        found = browser.run(f"{FOCUSED} {NAMED}")
        visible = browser.run(
            f"{FOCUSED} return each === document.body || (each.matches(':focus-visible')"
            " && getComputedStyle(each).outlineStyle !== 'none' && each.checkVisibility())"
        )
        assert visible, found
        if found == name:
            return
        seen.append(found)
    raise AssertionError(f"{name} is not reached: {seen}")


def test_a_resident_needs_no_mouse(browser: Browser, town: Site, sent: Sent) -> None:
    browser.open("/sign-in")
    browser.wait(lambda: browser.run("return document.activeElement.id") == "home", "ready to type")
    browser.press(MINE, Keys.TAB, town.sessions.access_code(MINE), Keys.ENTER)
    browser.wait(lambda: browser.text("#state") == "Door open", "the home is shown")
    browser.wait(lambda: browser.texts("#drills button"), "and what may be tried")
    reach(browser, "To the content")
    browser.press(Keys.ENTER)
    reach(browser, "glass")
    browser.press(Keys.ENTER)
    browser.wait(lambda: "sent to the hub" in browser.text("#said"), "what came of it is said")
    assert sent == [(MINE, "glass", 1.0)]
    reach(browser, "show-day")
    browser.press(Keys.SPACE)
    pressed = "return document.getElementById('show-day').getAttribute('aria-pressed')"
    browser.wait(lambda: browser.run(pressed) == "true", "the day is chosen")
    reach(browser, "Show as a table")
    browser.press(Keys.ENTER)
    browser.wait(lambda: len(browser.texts("#table tbody tr")) == 48, "the table is filled")
    reach(browser, "Sign out")
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.driver.current_url.endswith("/sign-in"), "signed out")


def test_an_operator_needs_no_mouse(browser: Browser, town: Site) -> None:
    browser.open("/sign-in")
    reach(browser, "I am an operator")
    browser.press(Keys.ENTER)
    focus = "return document.activeElement.id"
    browser.wait(lambda: browser.run(focus) == "password", "ready to type")
    browser.press(SECRETS.operator_password, Keys.ENTER)
    browser.wait(lambda: browser.driver.current_url.endswith("/operations"), "signed in")
    browser.wait(lambda: browser.texts("button[data-act=kill]"), "the page is there")
    town.fleet.asked.clear()
    reach(browser, "kill")
    browser.press(Keys.ENTER)
    is_open = "return document.getElementById('ask').open"
    browser.wait(lambda: browser.run(is_open), "it asks")
    assert browser.run("return document.getElementById('ask').contains(document.activeElement)")
    browser.press(Keys.ESCAPE)
    browser.wait(lambda: not browser.run(is_open), "Escape means no")
    assert browser.run("return document.activeElement.dataset.act") == "kill"
    assert town.fleet.asked == []
    browser.press(Keys.ENTER)
    reach(browser, "ask-yes")
    browser.press(Keys.ENTER)
    browser.wait(lambda: town.fleet.asked == [("kill", "pipeline-1")], "it is killed")
    operations(browser, town)
    browser.click(".moves summary")  # closed again
    reach(browser, "moves")
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.tagName") == "SUMMARY"
    browser.press(Keys.ENTER)
    browser.wait(lambda: all(browser.texts(".parts li")), "moves are shown one by one")
    reach(browser, "Table of partitions")
