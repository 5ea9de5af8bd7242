"""What the pages say in a real browser, state by state: banners that end, one clock, one colour per
instance, charts that can be read, moves, questions, and alarms that are over."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from browser import DESK, PHONE, Browser
from web_site import MINE, OTHER, POSTS, Site, open_site

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600), pytest.mark.takes_s(20)]
CLOCK = re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?:[\s\u202f]?[AP]M)?")
State = dict[str, Any]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site")) as site:
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
    """One for all tests: a start takes longer than any of them."""
    chromium.complaints()
    yield chromium
    chromium.locale()
    chromium.look(DESK, dark=False)
    chromium.driver.delete_all_cookies()
    assert chromium.complaints() == []


@pytest.fixture(scope="module")
def operations(town: Site) -> State:
    """What the operators' page gets, with a pipeline that is well."""
    with town.client(town.operator_token()) as client:
        state: State = client.get("/api/operations").json()
    owners = ["pipeline-1-77", "pipeline-2-77"]
    group = state["groups"][0]
    group["partitions"] = [partition(str(n), owners[n % 2]) for n in range(16)]
    group["instances"] = [instance(group, name) for name in owners]
    group |= {"lag_events": 900, "lag_s": 0.6, "incoming_per_s": 1600.0, "processed_per_s": 1590.0}
    group["samples"] = samples(120)
    state["fleet"]["instances"] = [{"name": name, "state": "running"} for name in owners]
    return state | {"waiting": "", "moves": [], "actions": []}


def partition(id: str, owner: str, lag_s: float = 0.6) -> State:
    lag = {"lag_events": int(100 * lag_s), "lag_s": lag_s, "processed_per_s": 100.0}
    return {"id": id, "owner": owner, "live": True, "stuck": False, "attempts": 0} | lag


def instance(group: State, name: str) -> State:
    owned = [each["id"] for each in group["partitions"] if each["owner"] == name]
    return {"name": name, "live": True, "seen_s": 0.5, "partitions": owned, "cycle": None}


def samples(count: int, peak: dict[int, float] | None = None) -> list[State]:
    """One a second."""
    now_ms = int(time.time() * 1000)
    found = []
    for n in range(count):
        done = (peak or {}).get(n, 1500.0 + 20 * (n % 10))
        at_ms = now_ms - (count - n) * 1000
        found.append({"at_ms": at_ms, "in": 1600.0, "done": done, "lag": int(400 + 50 * (n % 7))})
    return found


def move(partition: int, at_ms: int, **more: str | None) -> State:
    way = {"group": "activity", "from": "pipeline-2-77", "to": "pipeline-1-77", "how": "moved"}
    return {"at_ms": at_ms, "partition": str(partition), **way, **more}


@pytest.fixture
def watching(browser: Browser, town: Site, operations: State) -> Iterator[State]:
    """Its page, told what a test changes in this state."""
    browser.come_as(town.operator_token())
    with browser.told_by_test():
        browser.open("/operations")
        state = copy.deepcopy(operations)
        browser.tell("operations", state)
        yield state


@pytest.fixture
def at_home(browser: Browser, town: Site) -> Iterator[State]:
    browser.come_as(town.token(MINE))
    with town.client(town.token(MINE)) as client:
        state: State = client.get("/api/home").json() | {"waiting": ""}
    with browser.told_by_test():
        browser.open("/home")
        browser.tell("home", state)
        yield state


def later(browser: Browser, seconds: int) -> None:
    browser.run("const now = Date.now; Date.now = () => now() + 1000 * arguments[0]", seconds)


def test_a_banner_of_operations_goes_when_it_is_over(browser: Browser, watching: State) -> None:
    browser.tell("operations", watching | {"waiting": "Spark is starting"})
    assert "Spark is starting" in browser.text("#trouble")
    browser.tell("operations", watching)
    assert browser.run("return document.getElementById('trouble').hidden")
    browser.click("button[data-act=add]")
    browser.wait(lambda: "is starting" in browser.text("#said"), "what comes of it is said")
    name = browser.text("#said").split()[1]
    fleet = watching["fleet"]
    fleet["instances"].append({"name": name, "state": "running"})
    later(browser, 60)
    browser.tell("operations", watching)
    assert "is starting" in browser.text("#said"), "it owns nothing yet"
    watching["groups"][0]["partitions"][3]["owner"] = name
    browser.tell("operations", watching)
    assert browser.text("#said") == ""


def test_a_banner_of_home_goes_when_it_is_over(browser: Browser, at_home: State) -> None:
    browser.tell("home", at_home | {"waiting": "5,000 readings to go"})
    assert "5,000 readings to go" in browser.text("#trouble")
    browser.tell("home", at_home)
    assert browser.run("return document.getElementById('trouble').hidden")
    browser.tell("home", at_home | {"drills": ["glass"]})
    browser.click("button[data-drill=glass]")  # this home is real, so that is refused
    browser.wait(lambda: "did not work" in browser.text("#said"), "it is said")
    later(browser, 20)
    browser.tell("home", at_home)
    assert browser.text("#said") == ""
    browser.complaints()  # of the refusal


def colours(browser: Browser) -> dict[str, str]:
    script = """const cards = [...document.querySelectorAll('.instance[data-name]')];
        return Object.fromEntries(cards.map(
            (each) => [each.dataset.name, getComputedStyle(each).getPropertyValue('--hue')]))"""
    return dict(browser.run(script))


def test_an_instance_has_one_colour_for_ever(browser: Browser, watching: State) -> None:
    group, watching["fleet"]["instances"] = watching["groups"][0], []
    names = [f"pipeline-{n}-77" for n in range(1, 9)]
    group["instances"] = [instance(group, name) for name in names]
    browser.tell("operations", watching)
    found = colours(browser)
    assert len({*found.values()}) == len(names)
    assert all(colour.startswith("#") for colour in found.values())
    browser.driver.refresh()
    group["instances"] = [instance(group, name) for name in reversed(names[4:])]
    browser.tell("operations", watching)
    assert colours(browser) == {name: found[name] for name in names[4:]}
    owner = "getComputedStyle(document.querySelector('.owner')).getPropertyValue('--hue')"
    assert browser.run(f"return {owner}") == found["pipeline-1-77"]


def clocks(browser: Browser) -> list[str]:
    return CLOCK.findall(str(browser.run("return document.body.textContent")))


@pytest.mark.parametrize(("locale", "halves"), [("en-US", True), ("de-DE", False)])
def test_clocks_are_written_as_the_browser_does(
    browser: Browser, town: Site, operations: State, locale: str, halves: bool
) -> None:
    browser.locale(locale)
    now_ms = int(time.time() * 1000)
    with browser.told_by_test():
        browser.come_as(town.operator_token())
        browser.open("/operations")
        moves = [move(0, now_ms), move(1, now_ms)]
        browser.tell("operations", operations | {"moves": moves})
        shown = clocks(browser)
        assert len(shown) >= 5, "moves and the axis of throughput"
        browser.come_as(town.token(MINE))
        browser.open("/home")
        with town.client(town.token(MINE)) as client:
            state = client.get("/api/home").json()
        alert = {"id": "1", "kind": "glass", "ts_ms": now_ms - 3_600_000, "value": 1}
        browser.tell("home", state | {"alerts": [alert | {"ended_ms": now_ms - 60_000}]})
        browser.click(".as-table summary")
        browser.wait(lambda: len(clocks(browser)) > 60, "the table is filled")
        shown += clocks(browser)
    assert {each.endswith(("AM", "PM")) for each in shown} == {halves}


def test_throughput_has_a_time_axis(browser: Browser, watching: State) -> None:
    labels = "[...document.querySelectorAll('.flow-axis text')].filter((each) => each.textContent)"
    shown = browser.run(f"return {labels}.map((each) => each.textContent)")
    assert len(shown) >= 3
    assert all(CLOCK.fullmatch(each) for each in shown)
    script = f"""return {labels}.map((each) => each.getBoundingClientRect()).map(
        (box) => [box.left, box.right])"""
    for size in (DESK, PHONE, (320, 640)):
        browser.look(size, dark=False)
        browser.tell("operations", watching)
        boxes = sorted(browser.run(script))
        assert boxes
        assert all(one[1] <= other[0] for one, other in pairwise(boxes)), size
        assert boxes[-1][1] <= size[0]


def test_a_peak_does_not_flatten_the_chart_and_is_said(browser: Browser, watching: State) -> None:
    assert browser.run("return document.querySelectorAll('#flow .cut').length") == 0
    peak = dict.fromkeys(range(5, 12), 490_000.0)
    watching["groups"][0]["samples"] = samples(120, peak)
    browser.tell("operations", watching)
    cut = "return document.querySelector('#flow .cut').textContent"
    assert browser.run(cut) == "peak 490,000 cut off"
    label = "return document.querySelector('#flow svg').getAttribute('aria-label')"
    assert "peak of 490,000 events/s is cut off" in browser.run(label)
    script = """const line = document.querySelector('#flow .line-done');
        const all = line.ownerSVGElement.height.baseVal.value;
        return line.getAttribute('points').split(' ').slice(20).map(
            (point) => (all - point.split(',')[1]) / all)"""
    heights = browser.run(script)
    assert min(heights) > 0.4, "the usual rate is still well above the ground"
    assert max(heights) < 0.9, "and below the top"


def test_partitions_that_move_together_are_one_line(browser: Browser, watching: State) -> None:
    now_ms = int(time.time() * 1000)
    together = [move(n, now_ms - 400 * n) for n in range(8)]
    alone = [move(9, now_ms - 60_000), move(3, now_ms - 60_000, how="failed over")]
    watching["moves"] = together + alone
    browser.tell("operations", watching)
    lines = [each for each in browser.texts(".moves > li") if "pipeline-2-77 →" in each]
    assert len(lines) == 3
    assert "activity, 8 partitions: pipeline-2-77 → pipeline-1-77" in lines[0]
    assert browser.texts(".moves .parts li:first-child") == [""], "closed"
    browser.click(".moves summary")
    parts = [each.split()[-1] for each in browser.texts(".moves .parts li")]
    assert parts == [str(n) for n in range(8)]
    watching["moves"] = [move(8, now_ms + 300), *watching["moves"]]
    browser.tell("operations", watching)
    assert len(browser.texts(".moves .parts li")) == 9
    assert all(browser.texts(".moves .parts li")), "it stays open"


def test_behind_is_said_only_above_a_second_or_so(browser: Browser, watching: State) -> None:
    states = "#partitions tbody tr td:last-child"
    assert set(browser.texts(states)) == {"caught up"}
    assert "behind" not in browser.run("return document.body.innerText")
    group = watching["groups"][0]
    group["partitions"][4] = partition("4", "pipeline-1-77", lag_s=3.0)
    browser.tell("operations", watching | {"groups": [group | {"lag_s": 3.0}]})
    assert browser.texts(states).count("behind") == 1
    assert browser.texts(states)[4] == "behind"
    assert "behind" in browser.text("#figures")


def test_what_operators_do_is_in_the_list(browser: Browser, town: Site) -> None:
    browser.come_as(town.operator_token())
    browser.open("/operations")
    browser.wait(lambda: browser.texts("button[data-act=co]"), "the page is there")
    browser.click("button[data-act=co]")

    def done(text: str) -> bool:
        found = [each for each in browser.texts(".moves > li") if "operator" in each]
        return any(re.search(text, each) for each in found)

    browser.wait(lambda: done(r"operator \w+: add carbon monoxide"), "adding detectors")
    with town.client(town.operator_token()) as another:
        another.post(POSTS[1], json={"name": "pipeline-1"})
        another.post(POSTS[2], json={"name": "pipeline-9"})
        another.post(POSTS[0])
    browser.wait(lambda: done(r"operator \w+: stop pipeline-1"), "stopping")
    browser.wait(lambda: done(r"kill pipeline-9 did not work: there is no such"), "what failed")
    browser.wait(lambda: done(r"operator \w+: add an instance"), "adding")


def test_kill_asks_once(browser: Browser, town: Site, watching: State) -> None:
    def is_open() -> bool:
        return bool(browser.run("return document.getElementById('ask').open"))

    town.fleet.asked.clear()
    watching["fleet"]["instances"].append({"name": "pipeline-1", "state": "running"})
    browser.tell("operations", watching)
    browser.click('button[data-act=kill][data-name="pipeline-1"]')
    assert is_open()
    assert browser.text("#ask-title") == "Kill pipeline-1?"
    browser.click("#ask-no")
    assert not is_open()
    assert town.fleet.asked == []
    browser.click('button[data-act=kill][data-name="pipeline-1"]')
    browser.click("#ask-yes")
    assert not is_open()
    browser.wait(lambda: "was killed" in browser.text("#said"), "it is said")
    assert town.fleet.asked == [("kill", "pipeline-1")]


def test_a_resident_at_operations_is_told_why(browser: Browser, town: Site) -> None:
    browser.come_as(town.token(OTHER))
    browser.open("/operations")
    assert browser.text("h1") == "This page is for operators"
    assert OTHER in browser.text(".lead")
    browser.click(".ways .button:last-child")
    browser.wait(lambda: browser.run("return document.activeElement.id") == "password", "the form")
    browser.open("/operations")
    browser.click(".ways .button:first-child")
    browser.wait(lambda: browser.driver.current_url.endswith("/home"), "and the way home")
    browser.complaints()  # of the refusals


def test_a_phone_keeps_lag_and_state_of_partitions(browser: Browser, watching: State) -> None:
    script = """return [...document.querySelectorAll('#partitions th[scope=col]')].map(
        (each) => [each.textContent, each.getBoundingClientRect()]).filter(
        ([, box]) => box.width > 0).map(
        ([text, box]) => [text, box.left >= 0 && box.right <= innerWidth])"""
    for width in (PHONE[0], 320):
        browser.look((width, 800), dark=False)
        browser.tell("operations", watching)
        shown = dict(browser.run(script))
        assert shown == dict.fromkeys(["Partition", "Owner", "Lag", "State"], True), width
    assert "0.6 s" in browser.text("#partitions tbody tr")
    assert "caught up" in browser.text("#partitions tbody tr")
    assert "0.6 s" in browser.text("#figures")


def test_an_alarm_that_is_over_says_when_it_ended(browser: Browser, at_home: State) -> None:
    ended_ms = at_home["now_ms"] - 60_000
    alert = {"id": "1", "kind": "glass", "value": 1, "ts_ms": ended_ms - 900_000}
    running = at_home | {"state": "alarm", "why": ["glass"]}
    browser.tell("home", running | {"alerts": [alert | {"ended_ms": None}]})
    assert "over since" not in browser.run("return document.body.innerText")
    over = at_home | {"state": "quiet", "why": [], "alerts": [alert | {"ended_ms": ended_ms}]}
    browser.tell("home", over)
    at = browser.run(
        "return import('/static/page.js').then((page) => page.at(arguments[0]))", ended_ms
    )
    said = rf"over since .*{re.escape(str(at))}"  # with the day, if midnight lies between
    assert re.fullmatch(said, browser.text(".alert-over"))
    assert re.fullmatch(
        rf"The last alarm \(Glass was broken\) is {said}\.", browser.text("#detail")
    )
    old = alert | {"ended_ms": ended_ms - 90_000_000, "ts_ms": ended_ms - 91_000_000}
    browser.tell("home", over | {"alerts": [old]})
    assert browser.text("#detail") == "All sensors report, no alarm."
