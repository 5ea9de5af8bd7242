from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from activity_rows import NOW_MINUTE, append, row
from support.processing import wait_until
from web_site import MINE, OTHER, Site

import leasehold as lh
from homes.local.places import Places, co_wanted, sensor_clock
from homes.simulator.sensors import add_co_detectors
from homes.web.alerts import RecentAlerts
from homes.web.operations import Operations, WatchedGroup
from homes.web.server import WebServer
from leasehold.core.model import Member
from leasehold.errors import FeedUnavailable


def now_ago() -> int:
    """What ``row`` needs to say now."""
    return NOW_MINUTE - int(time.time() // 60)


def test_a_home_as_its_page_gets_it(site: Site) -> None:
    with site.client(site.token()) as client:
        about = client.get("/api/home").json()
    assert (about["state"], about["why"]) == ("open", ["door"])
    door, motion = (next(s for s in about["sensors"] if s["kind"] == k) for k in ("door", "motion"))
    assert door["active"]
    assert not door["silent"]
    assert (motion["value"], motion["battery"], motion["battery_low"]) == (1.0, 80, False)
    assert about["hour"]["levels"]["door"][-1] == 1
    assert about["hour"]["start_ms"] == (about["now_ms"] // 60_000 - 59) * 60_000
    assert about["failing"] == ""


def test_a_sensor_that_has_not_reported_for_long_is_called_silent(site: Site) -> None:
    append(site.table, row(MINE, "window", now_ago() + 10))
    with site.client(site.token()) as client:
        wait_until(lambda: "window" in silences(client))
        assert silences(client) == {"door": False, "motion": False, "window": True}


def silences(client: httpx.Client) -> dict[str, bool]:
    return {each["kind"]: each["silent"] for each in client.get("/api/home").json()["sensors"]}


def test_the_day_has_what_is_too_old_for_the_hour(site: Site) -> None:
    append(site.table, row(MINE, "glass", now_ago() + 300, 1.0))
    with site.client(site.token()) as client:
        wait_until(lambda: any(client.get("/api/home/day").json()["levels"]["glass"]))
        assert not any(client.get("/api/home").json()["hour"]["levels"]["glass"])


def events(lines: Any) -> Any:
    """The data of the next event."""
    for line in lines:
        if line.startswith("data: "):
            return json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended")


def test_news_come_by_themselves_and_only_to_whom_they_concern(site: Site) -> None:
    with (
        site.client(site.token(MINE)) as client,
        client.stream("GET", "/api/home/live") as answer,
    ):
        lines = answer.iter_lines()
        assert events(lines)["state"] == "open"
        append(site.table, row(OTHER, "window", now_ago(), 1.0))
        later = int(time.time() * 1000) + 1000
        append(site.table, row(MINE, "door", now_ago(), 0.0, last_ts=later))
        found = events(lines)
        while found["state"] == "open":  # a reading may come in two steps
            found = events(lines)
        assert found["home"] == MINE
        assert found["state"] == "quiet"
        site.alerts.insert({"id": "b", "home_id": MINE, "type": "co", "value": 80.5, "ts": 5})
        while not found["alerts"]:
            found = events(lines)
        alert = {"id": "b", "kind": "co", "ts_ms": 5, "value": 80.5, "ended_ms": None}
        assert found["alerts"] == [alert]


def test_alerts_are_the_newest_first_and_not_too_many(site: Site) -> None:
    for n in range(230):
        document = {"id": f"x{n}", "home_id": MINE, "type": "glass", "value": 1, "ts": 1000 + n}
        site.alerts.insert(document)
    with site.client(site.token()) as client:
        wait_until(lambda: len(client.get("/api/home").json()["alerts"]) == 20)
        times = [alert["ts_ms"] for alert in client.get("/api/home").json()["alerts"]]
    assert times == list(range(1229, 1209, -1))


def test_alerts_with_a_wrong_clock_do_not_hide_new_ones(site: Site) -> None:
    far = {"home_id": MINE, "type": "glass", "value": 1, "ts": 9_000_000_000_000_000}
    for n in range(20):
        site.alerts.insert(far | {"id": f"far{n:02d}", "enqueued_ms": 1000 + n})
    site.alerts.insert(far | {"id": "a", "ts": 5, "enqueued_ms": 2000})
    with site.client(site.token()) as client:
        alerts = client.get("/api/home").json()["alerts"]
        assert [each["id"] for each in alerts] == ["a", *(f"far{n:02d}" for n in range(19, 0, -1))]
        assert [each["ts_ms"] for each in alerts[:2]] == [5, 1019]  # a browser knows no such time


def alert(id: str, home: str = MINE) -> dict[str, Any]:
    return {"id": id, "home_id": home, "type": "glass", "value": 1, "ts": 1}


class Alerts:
    """A container with the alerts of one home, looked at without any pause."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        monkeypatch.setattr("homes.web.alerts.LOOK_S", 0.0)
        self.container = lh.Container.create(
            folder / "alerts.db", name="alerts", namespace="homes", partition_key="/home_id"
        )
        self.container.upsert_many(alert(f"x{n:04d}") for n in range(count))
        self.recent = RecentAlerts(self.container)

    async def ids(self) -> list[str]:
        return [each["id"] for each in await self.recent.of(MINE)]

    def listed(self) -> int:
        return self.container.requests["list"]


def test_a_home_is_read_once_then_only_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = Alerts(tmp_path, monkeypatch, 1440)

    async def story() -> None:
        assert (await alerts.ids())[:2] == ["x1439", "x1438"]
        assert alerts.listed() > 1
        listed = alerts.listed()
        for n in range(30):
            alerts.container.insert(alert(f"other{n}", OTHER))
            alerts.container.insert(alert(f"a{n:02d}"))
            assert (await alerts.ids())[0] == f"a{n:02d}"
        assert await alerts.ids() == [f"a{n:02d}" for n in range(29, 9, -1)]
        alerts.container.upsert(alert("a29") | {"value": 2})
        assert (await alerts.recent.of(MINE))[0]["value"] == 2
        alerts.container.split(alerts.container.range_of(MINE))
        alerts.container.insert(alert("after the split"))
        assert (await alerts.ids())[0] == "after the split"
        assert alerts.listed() == listed

    asyncio.run(story())


def test_what_comes_while_a_home_is_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = Alerts(tmp_path, monkeypatch, 3)
    read = alerts.container.list

    def slow(*given: Any, **more: Any) -> Any:
        found = read(*given, **more)
        if alerts.container.read("late", MINE) is None:
            alerts.container.insert(alert("late"))
            asyncio.run_coroutine_threadsafe(alerts.recent.of(OTHER), loop[0]).result(30)
        return found

    loop: list[asyncio.AbstractEventLoop] = []

    async def story() -> None:
        loop.append(asyncio.get_running_loop())
        assert await alerts.ids() == ["late", "x0002", "x0001", "x0000"]

    monkeypatch.setattr(alerts.container, "list", slow)
    asyncio.run(story())


def test_nor_is_what_comes_before_changes_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = Alerts(tmp_path, monkeypatch, 1)
    feed = alerts.container.feed()
    held, go_on, locate = threading.Event(), threading.Event(), feed.position_of

    def slow(*given: Any) -> Any:
        held.set()
        go_on.wait(30)
        return locate(*given)

    async def story() -> None:
        monkeypatch.setattr(feed, "position_of", slow)
        first = asyncio.create_task(alerts.recent.of(OTHER))
        await asyncio.to_thread(held.wait, 30)
        assert await alerts.ids() == ["x0000"]
        alerts.container.insert(alert("late"))
        go_on.set()
        await first
        assert await alerts.ids() == ["late", "x0000"]

    asyncio.run(story())


def test_a_home_without_alerts_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = Alerts(tmp_path, monkeypatch, 300)
    alerts.container.split(alerts.container.range_of(MINE))

    async def story() -> None:
        assert await alerts.recent.of(OTHER) == []
        assert alerts.listed() == 0
        alerts.container.insert(alert("first", OTHER))
        assert [each["id"] for each in await alerts.recent.of(OTHER)] == ["first"]
        assert len(await alerts.ids()) == 20  # from before the split

    asyncio.run(story())


def test_removed_alerts_go_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alerts = Alerts(tmp_path, monkeypatch, 2)

    async def story() -> None:
        assert await alerts.ids() == ["x0001", "x0000"]
        alerts.container.delete("x0001", MINE)
        monkeypatch.setattr("homes.web.alerts.READ_AGAIN_S", 0.0)
        assert await alerts.ids() == ["x0000"]

    asyncio.run(story())


def test_nobody_waits_for_the_container_but_who_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = Alerts(tmp_path, monkeypatch, 2)
    held, go_on = threading.Event(), threading.Event()

    def stuck(*_: Any) -> Any:
        held.set()
        go_on.wait(30)
        raise FeedUnavailable("the disk is gone")

    async def story() -> None:
        await alerts.ids()
        monkeypatch.setattr(alerts.container.feed(), "read_batch", stuck)
        looking = asyncio.create_task(alerts.ids())
        await asyncio.to_thread(held.wait, 30)
        assert await alerts.ids() == ["x0001", "x0000"]
        assert not looking.done()
        go_on.set()
        assert await looking == ["x0001", "x0000"]
        assert alerts.recent.failing == "the disk is gone"

    asyncio.run(story())


def test_a_table_that_cannot_be_read_is_said_to_resident_operator_and_probe(site: Site) -> None:
    with site.client() as client:
        assert client.get("/healthz").text == "ok\n"
        (site.table / "_delta_log" / f"{1:020d}.json").write_bytes(b"{")
        wait_until(lambda: client.get("/healthz").status_code == 503)
    with site.client(site.token()) as client:
        about = client.get("/api/home").json()
        assert about["failing"] == "New readings cannot be shown right now."
        assert about["state"] == "open"  # what is known is shown all the same
    with site.client(site.operator_token()) as client:
        assert client.get("/api/operations").json()["table"]["failing"]


def test_operators_see_what_was_not_believed(site: Site) -> None:
    with site.client(site.operator_token()) as client:
        table = client.get("/api/operations").json()["table"]
        assert (table["homes"], table["rejected"], table["loaded"]) == (2, {"wrong time": 1}, True)
        wait_until(lambda: "leasehold_lag_events{" in client.get("/metrics").text)
        text = client.get("/metrics").text
    assert 'leasehold_web_rejected_readings{reason="wrong time"} 1' in text


def test_operators_see_what_happened_to_processes(site: Site) -> None:
    with site.client(site.operator_token()) as client:
        fleet = client.get("/api/operations").json()["fleet"]
    assert fleet["instances"] == [{"name": "pipeline-1", "state": "running"}]
    assert fleet["news"] == [{"at_ms": 1_700_000_000_500, "text": "pipeline-1 starts"}]


class HandClock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Group:
    """Leases moved by hand, and what operations says about it."""

    def __init__(self, folder: Path) -> None:
        self.hub = lh.Hub.create(folder / "h.db", name="sensors", namespace="homes", partitions=2)
        self.hub.send([lh.EventData(b"{}")], partition_id="0")
        self.clock = HandClock()
        self.store: Any = lh.open_store("memory://", clock=self.clock)
        self.group = lh.Group(namespace="homes", feed="sensors", name="activity")
        watched = WatchedGroup(feed=self.hub, group="activity", store=self.store)
        self.operations = Operations([watched])

    async def take(self, owner: str, *partitions: str) -> None:
        await self.store.join(self.group, Member(instance=owner, incarnation=owner))
        leases = (await self.store.snapshot(self.group)).leases
        wanted = [lease for lease in leases if lease.partition in partitions]
        await self.store.acquire(wanted, owner, 10.0)

    async def release(self, owner: str) -> None:
        leases = (await self.store.snapshot(self.group)).leases
        await self.store.release([replace(x, offered_to=None) for x in leases if x.owner == owner])

    async def begin(self) -> None:
        start = lh.Checkpoint(next_sequence=0)
        await self.store.create(self.group, {"0": start, "1": start})
        await self.operations.look()

    def moves(self) -> list[tuple[str, str | None, str | None, str]]:
        found = self.operations.as_dict()["moves"]
        return [(m["partition"], m["from"], m["to"], m["how"]) for m in reversed(found)]


def test_moves_and_failovers_are_told_apart(tmp_path: Path) -> None:
    group = Group(tmp_path)

    async def story() -> None:
        await group.begin()
        await group.take("a", "0", "1")
        await group.operations.look()
        await group.release("a")
        await group.operations.look()  # on its way: nothing to say yet
        await group.take("b", "0")
        await group.take("a", "1")
        await group.operations.look()
        group.clock.now += 8  # of the 10 that a lease lasts: nobody renews
        await group.operations.look()
        group.clock.now += 3
        await group.take("a", "0")
        await group.operations.look()

    asyncio.run(story())
    assert group.moves() == [
        ("0", None, "a", "claimed"),
        ("1", None, "a", "claimed"),
        ("0", "a", "b", "moved"),
        ("0", "b", "a", "failed over"),
    ]


def test_what_was_before_the_first_look_is_no_move(tmp_path: Path) -> None:
    group = Group(tmp_path)

    async def story() -> None:
        start = lh.Checkpoint(next_sequence=0)
        await group.store.create(group.group, {"0": start, "1": start})
        await group.take("a", "0", "1")
        await group.operations.look()

    asyncio.run(story())
    found = group.operations.as_dict()
    assert found["moves"] == []
    (about,) = found["groups"]
    assert [(i["name"], i["partitions"]) for i in about["instances"]] == [("a", ["0", "1"])]
    assert [(p["id"], p["owner"], p["lag_events"]) for p in about["partitions"]] == [
        ("0", "a", 1),
        ("1", "a", 0),
    ]
    assert about["lag_events"] == 1


def test_whatever_goes_wrong_is_said_and_looking_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("homes.web.operations.LOOK_S", 0.01)
    group = Group(tmp_path)
    group.operations._dead_letters = letters = lh.open_dead_letters("memory://")

    def broken(*_: Any) -> Any:
        raise RuntimeError("nobody thought of it")

    def said() -> tuple[str, str]:
        found = group.operations.as_dict()
        return found["groups"][0]["failing"], found["failing"]

    async def until(holds: Callable[[], bool]) -> None:
        while not holds():
            assert not watching.done()
            await asyncio.sleep(0.01)

    async def story() -> None:
        nonlocal watching
        await group.begin()
        watching = asyncio.create_task(group.operations.run())
        with monkeypatch.context() as trouble:
            trouble.setattr(group.store, "snapshot", broken)
            trouble.setattr(letters, "count", broken)
            await until(lambda: all("nobody thought of it" in text for text in said()))
            await asyncio.sleep(0.05)
        await until(lambda: said() == ("", ""))
        watching.cancel()

    watching: asyncio.Task[None]
    asyncio.run(asyncio.wait_for(story(), 60))
    told = [record for record in caplog.records if "nobody thought of it" in record.message]
    assert len(told) == 2  # once each, however often it is tried
    assert all(record.exc_info for record in told)


def test_the_sensors_clock_is_the_walls_unless_they_run_ahead(tmp_path: Path) -> None:
    wall, kept = [1000.0], tmp_path / "sensors.db.sensors.json"
    clock = sensor_clock(tmp_path / "sensors.db", lambda: wall[0])
    assert clock() == 1000.0
    kept.write_text('{"next_ms": 900000}')
    wall[0] += 2
    assert clock() == 1002.0
    kept.write_text('{"next_ms": 2000000}')
    wall[0] += 2
    assert clock() == 2000.0
    kept.write_text("damaged")
    wall[0] += 2
    assert clock() == 2002.0


def test_the_switch_of_the_detectors_is_the_sensors_own(tmp_path: Path) -> None:
    places = Places(tmp_path)
    with lh.Hub.create(places.hub, name="s", namespace="n", partitions=1) as hub:
        assert not co_wanted(places.hub, hub.identity)
        add_co_detectors(places.hub)
        assert co_wanted(places.hub, hub.identity)
        assert not co_wanted(places.hub, "another hub")


def test_answers_do_not_wait_for_acknowledgements() -> None:
    server = WebServer(None)
    try:
        # asyncio turns Nagle's algorithm off only where it knows that it is TCP.
        assert server._socket.proto == socket.IPPROTO_TCP
    finally:
        server._socket.close()


@pytest.mark.parametrize("path", ["/home", "/operations", "/sign-in"])
def test_pages_are_whole(site: Site, path: str) -> None:
    token = site.operator_token() if path == "/operations" else site.token()
    with site.client(token) as client:
        page = client.get(path)
        assert page.status_code == 200
        assert "$" not in page.text
        for part in ("style.css", "mark.svg"):
            assert client.get(f"/static/{part}").status_code == 200
