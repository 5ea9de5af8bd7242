"""When the alarm behind an alert was over."""

from __future__ import annotations

import time
from typing import Any

import pytest
from activity_rows import NOW_MINUTE, append, row
from support.processing import wait_until
from web_site import MINE, Site

from homes.domain.kinds import KINDS
from homes.domain.thresholds import ALARM_MINUTES
from homes.view.window import Series
from homes.web.alarm_ends import MINUTE_MS, needs_day, with_ends

HOUR = 60
FIRST = NOW_MINUTE - HOUR + 1


def series(step_minutes: int = 1, **levels: list[float | None]) -> Series:
    steps = len(next(iter(levels.values())))
    every: dict[str, list[float | None]] = {kind: [None] * steps for kind in KINDS}
    return Series(NOW_MINUTE + 1 - steps * step_minutes, step_minutes, every | levels)


def alert(kind: str, minute: int, offset_ms: int = 17_000) -> dict[str, Any]:
    at_ms = minute * MINUTE_MS + offset_ms
    return {"id": f"{kind}-{at_ms}", "kind": kind, "ts_ms": at_ms, "value": 1}


def ends(
    *alerts: dict[str, Any], hour: Series | None = None, day: Series | None = None
) -> list[Any]:
    hour = hour or series(co=[None] * HOUR)
    found = with_ends(alerts, hour, day, (NOW_MINUTE + 1) * MINUTE_MS - 1)
    return [each["ended_ms"] and each["ended_ms"] // MINUTE_MS for each in found]


def test_broken_glass_is_over_when_the_page_no_longer_shows_an_alarm() -> None:
    assert ends(alert("glass", NOW_MINUTE - ALARM_MINUTES)) == [NOW_MINUTE]
    assert ends(alert("glass", NOW_MINUTE - ALARM_MINUTES + 1)) == [None]


def test_glass_that_breaks_again_meanwhile_makes_it_one_long_alarm() -> None:
    first, second = NOW_MINUTE - 40, NOW_MINUTE - 30
    over = second + ALARM_MINUTES
    assert ends(alert("glass", second), alert("glass", first)) == [over, over]
    assert ends(alert("glass", NOW_MINUTE - 5), alert("glass", NOW_MINUTE - 18)) == [None, None]
    assert ends(alert("glass", NOW_MINUTE), alert("glass", NOW_MINUTE - 40)) == [
        None,
        NOW_MINUTE - 40 + ALARM_MINUTES,
    ]


def test_carbon_monoxide_is_over_with_the_first_harmless_reading() -> None:
    levels: list[float | None] = [5.0] * HOUR
    levels[20:23] = [80.0, None, 60.0]
    levels[23] = None  # no reading is no end
    assert ends(alert("co", FIRST + 20), hour=series(co=levels)) == [FIRST + 24]
    levels[24:] = [90.0] * (HOUR - 24)
    assert ends(alert("co", FIRST + 20), hour=series(co=levels)) == [None]


def test_what_is_older_than_the_hour_is_looked_up_in_the_day() -> None:
    hour, old = series(co=[None] * HOUR), alert("co", NOW_MINUTE - 300)
    assert needs_day([old], hour)
    assert not needs_day([alert("co", NOW_MINUTE - 3), alert("glass", NOW_MINUTE - 300)], hour)
    day = series(30, co=[90.0] * 40 + [7.0] * 8)
    assert ends(old, hour=hour, day=day) == [NOW_MINUTE + 1 - 8 * 30]
    assert ends(old, hour=hour, day=series(30, co=[90.0] * 48)) == [None]


@pytest.mark.parametrize("kind", ["door", "a kind that others made up"])
def test_what_is_no_alarm_has_no_end(kind: str) -> None:
    assert ends(alert(kind, NOW_MINUTE - 50)) == [None]


def test_a_home_tells_when_its_alarm_was_over(site: Site) -> None:
    now = int(time.time() // 60)
    for kind, minute in (("co", now - 6), ("glass", now - 200)):
        site.alerts.insert(
            {"id": kind, "home_id": MINE, "type": kind, "value": 80, "ts": minute * MINUTE_MS}
        )
    ago = NOW_MINUTE - now
    append(site.table, row(MINE, "co", ago + 6, 80.0), row(MINE, "co", ago + 4, 3.0))
    with site.client(site.token()) as client:

        def told() -> dict[str, int | None]:
            alerts = client.get("/api/home").json()["alerts"]
            return {each["kind"]: each["ended_ms"] for each in alerts}

        wait_until(lambda: told().get("co") == (now - 4) * MINUTE_MS)
        assert told()["glass"] == (now - 200 + ALARM_MINUTES) * MINUTE_MS
