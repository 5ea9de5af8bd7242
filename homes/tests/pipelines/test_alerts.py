import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processing import FAST, make_hub, open_leases, wait_until

import leasehold as lh
from homes.domain.reading import body
from homes.pipelines.alerts import (
    CO_PPM,
    TS_MAX_MS,
    Malformed,
    alerts_processor,
    is_urgent,
    ordinary,
    parse,
    unusual,
)
from homes.simulator.days import IncidentRates
from homes.simulator.flaws import Flaws
from homes.simulator.sensors import Sensors, add_co_detectors, send_reading
from leasehold.feeds.arrow_events import EVENT_SCHEMA, ArrowEvents

TS = 1_767_600_000_000
READING = {
    "home_id": "H000007",
    "sensor_id": "H000007-glass",
    "type": "glass",
    "value": 1,
    "battery": 50,
    "ts": TS,
}


@pytest.fixture
def hub(tmp_path):
    with make_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
def container(tmp_path):
    path = tmp_path / "alerts.db"
    with lh.Container.create(
        path, name="alerts", namespace="homes", partition_key="/home_id"
    ) as container:
        yield container


def drain(hub, container, folder, **settings):
    """Process all there is; the dead letters."""
    letters = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
    alerts_processor(
        hub, open_leases(folder), container, dead_letters=letters, **(FAST | settings)
    ).run(until_drained=True)

    async def listed():
        found = await letters.list(lh.LetterFilter(), limit=10_000)
        await letters.close()
        return list(found)

    return asyncio.run(listed())


def documents(container):
    """All of them, without the system fields, by id."""
    found = {}
    for range in container.ranges():
        for change in container.changes(range.id, max_items=100_000).changes:
            document = change.document
            found[document["id"]] = {n: v for n, v in document.items() if n[0] != "_"}
    return found


def test_broken_glass_and_carbon_monoxide_become_alerts_and_nothing_else_does(
    hub, container, tmp_path
):
    send_reading(hub, 7, "glass", 1, ts_ms=TS)
    send_reading(hub, 8, "co", CO_PPM, ts_ms=TS)
    for kind, value in (("glass", 0), ("co", CO_PPM - 0.1), ("door", 1), ("motion", 1)):
        send_reading(hub, 9, kind, value, ts_ms=TS)
    assert drain(hub, container, tmp_path) == []
    found = documents(container)
    assert set(found) == {f"H000007-glass-{TS}", f"H000008-co-{TS}"}
    alert = found[f"H000007-glass-{TS}"]
    assert alert.pop("enqueued_ms") > 0
    assert alert == {
        "id": f"H000007-glass-{TS}",
        "home_id": "H000007",
        "sensor_id": "H000007-glass",
        "type": "glass",
        "value": 1,
        "ts": TS,
        "status": "new",
    }


def test_every_urgent_reading_of_many_homes_is_found(hub, container, tmp_path):
    add_co_detectors(hub.path)
    rates = IncidentRates(break_ins_per_year=3000, leaks_per_year=3000)
    with Sensors(hub, homes=300, speed="max", rates=rates) as sensors:
        sensors.run(minutes=30)
    wanted = set()
    for partition in hub.properties().partition_ids:
        position = hub.position_of(partition, "earliest")
        for event in hub.read_batch(partition, position, 10**6).events:
            reading = json.loads(event.body)
            if (reading["type"] == "glass" and reading["value"]) or (
                reading["type"] == "co" and reading["value"] >= CO_PPM
            ):
                wanted.add(f"{reading['sensor_id']}-{reading['ts']}")
    assert len(wanted) > 100
    assert drain(hub, container, tmp_path) == []
    assert set(documents(container)) == wanted


def test_an_alert_that_comes_again_does_not_undo_what_was_changed_since(hub, container, tmp_path):
    send_reading(hub, 7, "glass", 1, ts_ms=TS)
    drain(hub, container, tmp_path)
    container.patch(f"H000007-glass-{TS}", "H000007", {"status": "seen"})
    send_reading(hub, 7, "glass", 1, ts_ms=TS)
    drain(hub, container, tmp_path)
    assert [alert["status"] for alert in documents(container).values()] == ["seen"]


def test_malformed_readings_are_set_aside_and_the_others_go_on(hub, container, tmp_path):
    quiet = IncidentRates(break_ins_per_year=0, leaks_per_year=0)
    with Sensors(hub, homes=200, speed="max", rates=quiet, flaws=Flaws(malformed=0.02)) as sensors:
        sensors.run(minutes=10)
    for home in range(20):
        send_reading(hub, home, "glass", 1, ts_ms=TS)
    bad = 0
    for partition in hub.properties().partition_ids:
        position = hub.position_of(partition, "earliest")
        bad += sum(not good(e.body) for e in hub.read_batch(partition, position, 10**6).events)
    letters = drain(hub, container, tmp_path)
    assert 100 < bad == len(letters)
    assert not any(good(letter.body) for letter in letters)
    assert {letter.attempts for letter in letters} == {1}
    assert len(documents(container)) == 20


def good(body):
    try:
        parse(body)
    except Malformed:
        return False
    return True


@pytest.mark.parametrize(
    "change",
    [
        {"home_id": None},
        {"home_id": 7},
        {"home_id": ""},
        {"sensor_id": "x" * 129},
        {"type": ["glass"]},
        {"value": "1"},
        {"value": True},
        {"value": None},
        {"value": 10**400},
        {"ts": 1.5},
        {"ts": True},
        {"ts": 1 << 60},
        {"ts": TS_MAX_MS + 1},
        {"ts": -TS_MAX_MS - 1},
    ],
)
def test_a_field_of_a_wrong_kind_makes_a_reading_malformed_and_is_named(change):
    with pytest.raises(Malformed, match=next(iter(change))):
        parse(json.dumps(READING | change).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'"H1"',
        b"{",
        b"\xff\xfe{\x00}\x00",
        b'{"home_id":"H1","sensor_id":"s","type":"glass","value":NaN,"ts":1}',
        b'{"home_id":"H1","sensor_id":"s","type":"glass","value":1e999,"ts":1}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_is_malformed(text):
    with pytest.raises(Malformed):
        parse(text)


def test_an_alarm_does_not_fail_for_a_missing_battery_or_a_wrong_clock(hub, container, tmp_path):
    for ts in (-1, 0, TS + 10**12):
        reading = {name: READING[name] for name in READING if name != "battery"} | {"ts": ts}
        hub.send(lh.EventData(json.dumps(reading)), partition_key="H000007")
    assert drain(hub, container, tmp_path) == []
    assert len(documents(container)) == 3


def test_what_the_container_will_never_take_is_set_aside(hub, tmp_path):
    path = tmp_path / "small.db"
    with lh.Container.create(
        path, name="alerts", namespace="homes", partition_key="/home_id", document_bytes_max=1024
    ) as container:
        hub.send(lh.EventData(json.dumps(READING | {"sensor_id": "\U0001f514" * 128})))
        send_reading(hub, 7, "glass", 1)
        (letter,) = drain(hub, container, tmp_path)
        assert "document_bytes_max" in letter.error
        assert len(documents(container)) == 1


def test_alerts_of_unknown_homes_are_set_aside(hub, container, tmp_path):
    for home in ("H000001", "H999999"):
        send_reading(hub, home, "glass", 1)
    (letter,) = drain(hub, container, tmp_path, known={"H000001"}.__contains__)
    assert letter.partition_key == "H999999"
    assert len(documents(container)) == 1


def test_a_container_in_trouble_delays_alerts_and_loses_none(hub, container, tmp_path, monkeypatch):
    failures, insert = iter(range(3)), container.insert

    def failing(document):
        if next(failures, None) is not None:
            raise lh.FeedUnavailable("the disk is full")
        return insert(document)

    monkeypatch.setattr(container, "insert", failing)
    send_reading(hub, 7, "glass", 1)
    retry = lh.Retry(attempts=2, backoff_s=0.01, then="dead-letter")
    assert drain(hub, container, tmp_path, retry=retry) == []
    assert len(documents(container)) == 1


def test_a_container_that_is_gone_blames_no_alert(hub, container, tmp_path):
    send_reading(hub, 7, "glass", 1)
    away = tmp_path / "away.db"
    container.path.rename(away)
    errors = []

    def back(error):
        errors.append(error)
        if len(errors) == 2:
            away.rename(container.path)

    retry = lh.Retry(attempts=1, backoff_s=0.01, then="dead-letter")
    assert drain(hub, container, tmp_path, retry=retry, on_error=back) == []
    assert {type(error) for error in errors} == {lh.SinkUnavailable}
    assert len(documents(container)) == 1


names = st.one_of(st.text(max_size=4), st.text("aH0-_.", max_size=200), st.integers())
numbers = st.one_of(
    st.sampled_from([0, 1, -0.0, 0.5, 49.9, 50, 9.99, 10]), st.integers(), st.floats(), st.none()
)


@given(
    fields=st.fixed_dictionaries(
        {
            "home_id": names,
            "sensor_id": names,
            "type": st.sampled_from(["motion", "door", "window", "glass", "co", "smoke"]),
            "value": numbers,
            "battery": numbers,
            "ts": st.one_of(st.integers(-(1 << 60), 1 << 60), numbers),
        }
    ),
    separators=st.sampled_from([None, (",", ":")]),
    tail=st.sampled_from([b"", b"\n", b" ", b"}", b"\xff"]),
    co_ppm=st.sampled_from([0.5, 9.9, 10, 50]),
)
def test_what_the_quick_pattern_lets_pass_is_a_good_reading_and_no_alert(
    fields, separators, tail, co_ppm
):
    text = json.dumps(fields, separators=separators).encode() + tail
    if not [*unusual(arrow([text]), ordinary(co_ppm))]:
        assert not is_urgent(parse(text), co_ppm)


@given(
    number=st.integers(0, 999_999),
    reading=st.sampled_from(
        [("motion", 0), ("motion", 1), ("door", 1), ("window", 0), ("glass", 0), ("co", 2.3)]
    ),
    battery=st.integers(0, 100),
    ts=st.integers(0, 10**13),
)
def test_the_quick_pattern_knows_the_readings_that_sensors_send(number, reading, battery, ts):
    text = body(f"H{number:06d}", *reading, battery, ts)
    assert re.match(ordinary().replace(r"\z", r"\Z"), text.decode())
    assert [*unusual(arrow([text]), ordinary())] == []


def arrow(bodies):
    rows = [
        {"body": each, "sequence": n, "offset": n, "enqueued_at": datetime.now(UTC)}
        for n, each in enumerate(bodies)
    ]
    return ArrowEvents(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA), "0")


def test_a_batch_that_is_no_arrow_is_looked_at_one_by_one():
    events = list(arrow([b"x", b"y"]))
    assert unusual(events, ordinary()) is events


def test_a_level_that_is_none_is_refused(hub, container, tmp_path):
    with pytest.raises(lh.BadInput, match="co_ppm is 0"):
        drain(hub, container, tmp_path, co_ppm=0)


WORKER = """
import sys
import leasehold as lh
from homes.pipelines.alerts import alerts_processor
folder = sys.argv[1]
alerts_processor(
    lh.Hub.open(f"{folder}/hub.db"),
    lh.open_store(f"sqlite:///{folder}/leases.db"),
    lh.Container.open(f"{folder}/alerts.db"),
    dead_letters=lh.open_dead_letters(f"sqlite:///{folder}/dead.db"),
    lease_ttl_s=1, balance_interval_s=0.2, max_events=50, instance="w",
).run(until_drained=True)
"""


def test_killed_and_restarted_no_alert_is_lost_and_none_is_there_twice(hub, container, tmp_path):
    for home in range(1500):
        hub.send(lh.EventData(body(f"H{home:06d}", "glass", 1, 9, TS)), partition_key=str(home))
    wanted = {f"H{home:06d}-glass-{TS}" for home in range(1500)}
    for _ in range(3):
        before = container.properties().documents
        process = subprocess.Popen([sys.executable, "-c", WORKER, tmp_path])
        wait_until(lambda old=before: container.properties().documents > old)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", WORKER, tmp_path], check=True, timeout=120)
    assert set(documents(container)) == wanted
    assert container.properties().next_lsn == 1501
