"""The pages in a real browser, over a table made by hand: what they show when things go wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from activity_rows import NOW_MINUTE, append, row
from browser import PHONE, Browser
from web_site import MINE, SECRETS, Site

import leasehold as lh
from leasehold.core.model import Member

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]


@pytest.fixture
def browser(site: Site) -> Iterator[Browser]:
    browser = Browser(site.url)
    try:
        yield browser
        assert browser.complaints() == []
    finally:
        browser.close()


def at_home(browser: Browser, site: Site) -> None:
    browser.sign_in(MINE, site.sessions.access_code(MINE))
    browser.wait(lambda: browser.text("#state") == "Door open", "the home is shown")


def lose_connection(browser: Browser, site: Site) -> None:
    site.app.state.web.closing = True
    browser.run("const now = Date.now; Date.now = () => now() + 30000")  # so much time passes


def attribute(browser: Browser, where: str, name: str) -> str | None:
    found = browser.run(
        "return document.querySelector(arguments[0])?.getAttribute(arguments[1])", where, name
    )
    return None if found is None else str(found)


def test_a_lost_connection_does_not_look_like_all_is_well(browser: Browser, site: Site) -> None:
    at_home(browser, site)
    lose_connection(browser, site)
    browser.wait(lambda: browser.text("#state") == "No connection", "it is said")
    assert attribute(browser, "#hero", "data-state") == "silent"
    assert browser.text("#detail").startswith("Last known: Door open, at ")
    assert browser.text("#live-text") == "No connection, trying again"
    assert attribute(browser, "#live", "role") == "status"
    browser.shots("home-lost")
    site.app.state.web.closing = False
    browser.wait(lambda: browser.text("#state") == "Door open", "it comes back by itself")
    assert attribute(browser, "#hero", "data-state") == "open"


def test_operators_see_from_when_the_numbers_are(browser: Browser, site: Site) -> None:
    browser.sign_in_operator(SECRETS.operator_password)
    browser.wait(lambda: browser.text("#live-text") == "Live", "the page is live")
    lose_connection(browser, site)
    browser.wait(lambda: "this is how it was at" in browser.text("#trouble"), "it is said")
    browser.look(PHONE, dark=False)
    wide = "return document.documentElement.scrollWidth - window.innerWidth"
    browser.wait(lambda: browser.run(wide) <= 0, "all of it fits on a phone")
    browser.shots("operations-lost")
    site.app.state.web.closing = False
    browser.wait(lambda: "how it was" not in browser.text("#trouble"), "it comes back by itself")
    assert "the pipeline has not begun yet" in browser.text("#trouble")  # and that is so


def test_an_alarm_is_read_out_at_once_and_of_alerts_only_the_new_one(
    browser: Browser, site: Site
) -> None:
    alert = {"home_id": MINE, "type": "glass", "value": 1, "ts": int(time.time() * 1000)}
    site.alerts.insert(alert | {"id": "old"})
    at_home(browser, site)
    browser.wait(lambda: len(browser.texts(".alert-text")) == 1, "what was before is shown")
    assert browser.text("#news") == ""
    assert attribute(browser, "#state", "aria-live") == "polite"
    site.alerts.insert(alert | {"id": "new", "type": "co", "value": 80})
    browser.wait(lambda: len(browser.texts(".alert-text")) == 2, "the new one is shown")
    assert browser.text("#news").startswith("New alert: Carbon monoxide: 80 ppm")
    assert attribute(browser, "#alerts", "aria-live") is None
    append(site.table, row(MINE, "glass", NOW_MINUTE - int(time.time() // 60), 1.0))
    browser.wait(lambda: browser.text("#state").startswith("Alarm"), "the state is alarm")
    assert attribute(browser, "#state", "aria-live") == "assertive"


def test_a_time_that_no_calendar_has_does_not_end_the_page(browser: Browser, site: Site) -> None:
    at_home(browser, site)
    script = """return import("/static/page.js").then((page) =>
        [9e15, -9e15, NaN, 0].map((ms) => [page.iso(ms), page.onDay(ms).includes("unknown")]))"""
    assert browser.run(script) == [[None, True]] * 3 + [["1970-01-01T00:00:00.000Z", False]]


def test_what_was_killed_has_no_buttons_and_goes_with_its_last_partition(
    browser: Browser, site: Site
) -> None:
    group = lh.Group(namespace="homes", feed="sensors", name="activity")

    async def give(owner: str, partition: str) -> None:
        start = lh.Checkpoint(next_sequence=0)
        await site.store.create(group, {"0": start, "1": start})
        await site.store.join(group, Member(instance=owner, incarnation=owner))
        leases = (await site.store.snapshot(group)).leases
        wanted = [lease for lease in leases if lease.partition == partition]
        await site.store.acquire(wanted, owner, 3600.0)

    def buttons(name: str) -> list[str]:
        return list(browser.texts(f".instance[data-name={name}] button"))

    site.fleet.known |= {"pipeline-2": "killed", "pipeline-3": "ended", "pipeline-4": "stopping"}
    asyncio.run(give("pipeline-2", "0"))
    browser.sign_in_operator(SECRETS.operator_password)
    dead = ".instance[data-name=pipeline-2][data-live=false]"
    browser.wait(lambda: browser.texts(f"{dead} .chip") == ["0"], "it still owns a partition")
    browser.wait(lambda: buttons("pipeline-4") == ["Kill"], "what stops can only be killed")
    assert buttons("pipeline-1") == ["Stop", "Kill"]
    assert buttons("pipeline-2") == []
    browser.shots("operations-killed")
    asyncio.run(give("pipeline-1", "0"))
    browser.wait(lambda: "0: pipeline-2 → pipeline-1" in browser.text("#news"), "it is read out")
    names = "return [...document.querySelectorAll('.instance')].map((each) => each.dataset.name)"
    known = {"pipeline-1", "pipeline-4"}
    browser.wait(lambda: set(browser.run(names)) - {None} == known, "the killed one is gone")
