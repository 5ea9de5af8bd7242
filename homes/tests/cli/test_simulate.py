import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter

import pytest
from homes_command import PROGRAM, run_homes
from support.eventhubs import Endpoint
from support.processing import wait_until

from homes.simulator import sensors as module
from homes.simulator.sensors import Sensors
from leasehold.feeds import open_feed
from leasehold.feeds.hub import Hub

FEW = ("--homes", 20, "--speed", "max")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sensors.db"
    Hub.create(path, name="sensors", namespace="homes.local", partitions=4).close()
    return path


def stored(path):
    with Hub.open(path) as hub:
        return hub.properties().events


def test_readings_are_sent_and_counted(path):
    said = json.loads(run_homes("simulate", path, *FEW, "--minutes", 3, "--json").stdout)
    assert 200 < said["readings"] <= 20 * 4 * 3
    assert said["sent"] == said["readings"] == stored(path)


def test_readings_go_to_a_kafka_topic_and_a_second_run_goes_on(kafka, tmp_path):
    url = kafka.url(kafka.topic(partitions=4))
    words = ("simulate", "--feed", url, "--state", tmp_path / "state", *FEW, "--minutes", 3)
    first = json.loads(run_homes(*words, "--json").stdout)
    again = json.loads(run_homes(*words, "--json").stdout)
    assert again["sent"] == first["readings"] + again["readings"]
    feed = open_feed(url)
    assert sum(each.end for each in asyncio.run(feed.extents())) == again["sent"]
    feed.close()
    told = run_homes("simulate", *FEW, ok=False)
    assert "give the file of a hub, or --feed" in told.stderr


def test_readings_go_to_an_event_hub_through_the_official_sdk(path):
    served = Endpoint(path)
    state = path.with_name("state")
    words = ["simulate", "--feed", served.url, "--state", state, *FEW, "--minutes", 3, "--json"]
    secret = {"AZURE_EVENTHUBS_CONNECTION_STRING": served.connection_string}
    try:
        done = subprocess.run(
            [*PROGRAM, *map(str, words)],
            env={**os.environ, **secret},
            capture_output=True,
            check=False,
            timeout=120,
        )
    finally:
        served.stop()
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["sent"] == said["readings"] == stored(path) > 0


def test_history_comes_first_and_a_second_run_goes_on(path):
    words = ("simulate", path, *FEW, "--minutes", 2, "--backfill-hours", 1)
    first = run_homes(*words).stdout
    assert "of them history" in first
    before = stored(path)
    again = json.loads(run_homes(*words, "--json").stdout)
    assert again["history"] <= 20 * 4  # of the seconds between the runs
    assert stored(path) == before + again["history"] + again["readings"] == again["sent"]


def cut_short(path, monkeypatch, hours):
    """Begin a history and stop it after its first batch."""
    monkeypatch.setattr(module, "BATCH_READINGS", 100)
    stop = threading.Event()
    with Hub.open(path) as hub, Sensors(hub, homes=20, on_sent=lambda _: stop.set()) as sensors:
        sensors.backfill(hours, stop=stop)


def moments(path):
    """When which sensor sent, how often."""
    with Hub.open(path) as hub:
        batches = [
            hub.read_batch(number, hub.position_of(number, "earliest"), 10**6)
            for number in hub.properties().partition_ids
        ]
    found = (json.loads(event.body) for batch in batches for event in batch.events)
    return Counter((reading["sensor_id"], reading["ts"]) for reading in found)


@pytest.mark.parametrize("again", [(), ("--backfill-hours", 0.5)])
def test_a_history_cut_short_is_finished_by_the_next_run(path, tmp_path, monkeypatch, again):
    began = time.time()
    cut_short(path, monkeypatch, hours=2)
    words = ("simulate", path, "--homes", 20, "--minutes", 0.01, *again, "--json")
    said = json.loads(run_homes(*words).stdout)
    assert said["history"] > 20 * 4 * 60
    assert said["sent"] == stored(path)

    whole = tmp_path / "whole.db"
    with (
        Hub.create(whole, name="sensors", namespace="homes.local", partitions=1) as hub,
        Sensors(hub, homes=20) as sensors,
    ):
        sensors.backfill((said["next_ms"] / 1000 - began) / 3600 + 1.99, said["next_ms"] / 1000)
    found = moments(path)
    assert set(found.values()) == {1}
    assert moments(whole) <= found


def test_ctrl_c_ends_it_in_order_and_another_process_can_add_detectors(path):
    words = ["simulate", str(path), "--homes", "20", "--speed", "20", "--json"]
    process = subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    state = path.with_name("sensors.db.sensors.json")
    wait_until(state.exists)
    assert "another simulator" in run_homes("simulate", path, ok=False).stderr
    assert "adds a carbon monoxide" in run_homes("simulate", path, "--add-co").stdout
    wait_until(lambda: json.loads(state.read_bytes())["co_since_ms"] is not None)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert json.loads(out.splitlines()[-1])["sent"] == stored(path)


def test_detectors_are_there_from_the_beginning_if_nobody_runs(path):
    said = json.loads(
        run_homes("simulate", path, *FEW, "--minutes", 2, "--add-co", "--json").stdout
    )
    assert said["readings"] > 20 * 4 * 2
    assert said["co_since_ms"] is not None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--speed", "fast"), "speed is 'fast'"),
        (("--homes", "0"), "homes is 0"),
        (("--minutes", "0"), "--minutes is 0; give more than 0"),
        (("--minutes", "nan"), "--minutes is nan; give more than 0"),
        (("--minutes", "inf"), "--minutes is inf; give more than 0 and at most 5,256,000"),
        (("--minutes", "1e300", "--add-co"), "--minutes is 1e+300; give more than 0"),
        (("--minutes", "-1", "--backfill-hours", "1"), "--minutes is -1; give more than 0"),
        (("--backfill-hours", "-1"), "--backfill-hours"),
        (("--backfill-hours", "nan"), "--backfill-hours"),
        (("--backfill-hours", "inf"), "--backfill-hours is inf; give more than 0 and at most"),
        (("--backfill-hours", "1e300"), "--backfill-hours is 1e+300; give more than 0"),
        (("--seed", "-1"), "seed is -1"),
        (("--seed", str(1 << 63)), "seed is 9223372036854775808"),
        (("--homes", "1" * 30), "homes is 111111111111111111111111111111; it is 1 to 1,000,000"),
        (("--speed", "nan"), "speed is 'nan'"),
        (("--malformed", "2"), "shares of wrong readings"),
        (("--unknown", "nan"), "shares of wrong readings"),
        (("--wrong-time", "inf"), "shares of wrong readings"),
        (("--break-ins", "-1"), "break_ins_per_year is -1.0"),
        (("--leaks", "inf"), "leaks_per_year is inf"),
    ],
)
def test_a_mistake_gets_one_line(path, words, says):
    done = run_homes("simulate", path, *words, ok=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert stored(path) == 0
    assert not list(path.parent.glob("*.sensors.co"))


def test_a_hub_that_is_not_there_is_named(tmp_path):
    assert "hub create" in run_homes("simulate", tmp_path / "no.db", ok=False).stderr


@pytest.mark.parametrize(
    ("file", "words"), [("sensors.lock", ()), ("sensors.json", ()), ("sensors.co", ("--add-co",))]
)
def test_a_file_that_cannot_be_written_is_named(path, file, words):
    blocked = path.with_name(f"{path.name}.{file}")
    blocked.mkdir()
    done = run_homes("simulate", path, *FEW, "--minutes", 1, *words, ok=False)
    assert done.returncode == 2
    assert str(blocked) in done.stderr
    assert "Is a directory" in done.stderr


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path):
    path = tmp_path / ("x" * 300)
    done = run_homes("simulate", path, ok=False)
    assert done.returncode == 2
    assert f"{path} cannot be opened: File name too long" in done.stderr
