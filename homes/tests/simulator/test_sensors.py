import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processing import wait_until

import leasehold as lh
from homes.domain.reading import MINUTE_MS, home_id
from homes.local.places import history_share
from homes.simulator import sensors as module
from homes.simulator.days import IncidentRates
from homes.simulator.flaws import Flaws
from homes.simulator.sensors import Sensors, add_co_detectors, send_reading

pytestmark = pytest.mark.takes_s(40)

NOW = 1_767_600_000.0
QUIET = IncidentRates(silences_per_year=0)


@pytest.fixture
def hub(tmp_path):
    path = tmp_path / "sensors.db"
    with lh.Hub.create(path, name="sensors", namespace="homes", partitions=4) as hub:
        yield hub


class Wall:
    """A clock that goes on only while somebody waits."""

    def __init__(self, now=NOW):
        self.now = now

    def __call__(self):
        return self.now

    def stop(self, after_s=None):
        """An event that is set when so much time was waited for."""
        wall, end = self, None if after_s is None else self.now + after_s

        class Stop(threading.Event):
            def wait(self, timeout=None):
                wall.now += timeout
                if end is not None and wall.now >= end:
                    self.set()
                return self.is_set()

        return Stop()


def events(hub, partition):
    position = hub.position_of(partition, "earliest")
    while found := hub.read_batch(partition, position, 10**6):
        if not found.events:
            return
        yield from found.events
        position = found.next


def bodies(hub):
    """All bodies, by partition, in order."""
    return {
        partition: [event.body for event in events(hub, partition)]
        for partition in hub.properties().partition_ids
    }


def readings(hub):
    return [json.loads(body) for found in bodies(hub).values() for body in found]


class OtherSender:
    """Sends to a hub and is none."""

    def __init__(self, hub):
        self.namespace, self.name, self.identity = hub.namespace, hub.name, hub.identity
        self.send, self.send_columns, self.close = hub.send, hub.send_columns, hub.close


def test_whatever_is_a_file_has_the_sensors_state_beside_it(hub, tmp_path):
    sender = OtherSender(hub)
    sender.path = tmp_path / "other.db"
    with Sensors(sender, homes=3, rates=QUIET, wall=Wall()) as sensors:
        assert sensors.beside == sender.path
    with pytest.raises(lh.BadInput, match="beside which path"):
        Sensors(OtherSender(hub), homes=3)


def test_a_homes_readings_are_in_one_partition_in_order(hub):
    with Sensors(hub, homes=50, rates=QUIET, speed="max", wall=Wall()) as sensors:
        assert sensors.run(minutes=10) == sensors.sent == 50 * 4 * 10
    places = {}
    for partition, found in bodies(hub).items():
        for reading in map(json.loads, found):
            places.setdefault(reading["home_id"], []).append((partition, reading["ts"]))
    assert len(places) == 50
    for seen in places.values():
        assert len({partition for partition, _ in seen}) == 1
        assert [ts for _, ts in seen] == sorted(ts for _, ts in seen)


def test_a_first_run_of_known_length_ends_now(hub):
    with Sensors(hub, homes=3, rates=QUIET, speed="max", wall=Wall()) as sensors:
        sensors.run(minutes=10)
    times = [reading["ts"] for reading in readings(hub)]
    assert min(times) >= (NOW - 600) * 1000
    assert max(times) < NOW * 1000 + 500


def test_in_pieces_and_restarted_it_sends_what_it_sends_in_one_go(tmp_path, monkeypatch):
    def sent(name, *steps):
        path = tmp_path / name
        with lh.Hub.create(path, name="sensors", namespace="homes", partitions=2) as hub:
            for minutes in steps:
                with Sensors(hub, homes=40, speed="max", wall=Wall(NOW + 600)) as sensors:
                    if sensors.next_ms is None:
                        sensors.backfill(0.001, until=NOW)
                    sensors.run(minutes=minutes)
            return bodies(hub)

    whole = sent("a.db", 7)
    monkeypatch.setattr(module, "BATCH_READINGS", 30)
    assert sent("b.db", 0.01, 2.5, 0.3, 4.19) == whole


def test_real_time_sends_a_reading_when_its_moment_has_come(hub):
    wall = Wall()
    seen = []

    def on_sent(sensors):
        seen.append((wall.now * 1000 - sensors.next_ms, sensors.sent))

    with Sensors(hub, homes=60, rates=QUIET, wall=wall, on_sent=on_sent) as sensors:
        sensors.run(wall.stop(after_s=120))
        assert abs(sensors.sent - 60 * 4 * 2) <= 60 * 4 * 2 / 30
    assert len(seen) >= 100
    assert all(0 <= late_ms <= 1001 for late_ms, _ in seen)
    assert max(reading["ts"] for reading in readings(hub)) <= wall.now * 1000 + 500


@settings(max_examples=12)
@given(speed=st.floats(0.1, 1e4), fraction=st.floats(0, 0.001), seconds=st.floats(0.0001, 5))
def test_a_clock_may_stand_between_two_milliseconds(speed, fraction, seconds):
    with tempfile.TemporaryDirectory() as folder:
        path, wall = f"{folder}/hub.db", Wall(NOW + fraction)
        with (
            lh.Hub.create(path, name="h", namespace="n", partitions=1) as hub,
            Sensors(hub, homes=3, rates=QUIET, speed=speed, wall=wall) as sensors,
        ):
            sensors.run(wall.stop(after_s=seconds))
            began = NOW + fraction
            late_ms = (wall.now - began) * 1000 * speed - (sensors.next_ms - began * 1000)
            assert late_ms <= 1002 * speed + 2  # a tick, and the shortest wait


def test_ten_times_faster_takes_a_tenth_of_the_time(hub):
    wall = Wall()
    with Sensors(hub, homes=5, rates=QUIET, speed=10, wall=wall) as sensors:
        assert sensors.run(wall.stop(), minutes=20) == 5 * 4 * 20
    assert wall.now - NOW == pytest.approx(120, abs=0.01)


@pytest.mark.parametrize(("pause_s", "made_up_for_s"), [(600, 600), (5 * 3600, 900)])
def test_real_time_makes_up_for_a_short_pause_and_leaves_out_a_long_one(
    hub, pause_s, made_up_for_s
):
    wall = Wall()
    with Sensors(hub, homes=30, rates=QUIET, wall=wall) as sensors:
        before = sensors.run(wall.stop(), minutes=1)
    wall.now += pause_s
    with Sensors(hub, homes=30, rates=QUIET, wall=wall) as sensors:
        sensors.run(wall.stop(), minutes=1)
        assert sensors.sent - before == 2 * made_up_for_s + 30 * 4
        assert sensors.next_ms == pytest.approx(wall.now * 1000, abs=1)


def off_for(wall, pause_s, at_s=120):
    """Called after a batch: the machine sleeps once, that long after the beginning."""
    left = [pause_s]

    def on_sent(_):
        if left and wall.now >= NOW + at_s:
            wall.now += left.pop()

    return on_sent


def seconds_sent(hub):
    """Of the one home's door sensor, since the beginning; each once."""
    found = sorted(r["ts"] / 1000 - NOW for r in readings(hub) if r["type"] == "door")
    assert len(set(found)) == len(found)
    return found


@pytest.mark.parametrize(("pause_s", "made_up_for_s"), [(600, 600), (8 * 3600, 900)])
def test_a_machine_that_was_asleep_makes_up_for_no_more_than_one_that_was_off(
    hub, caplog, pause_s, made_up_for_s
):
    wall = Wall()
    with Sensors(hub, homes=30, rates=QUIET, wall=wall, on_sent=off_for(wall, pause_s)) as sensors:
        sensors.run(wall.stop(after_s=pause_s + 300))
    awake = NOW + pause_s + 120
    times = Counter(
        "before" if ts < NOW + 120 else "left out" if ts < awake - made_up_for_s else "after"
        for ts in (reading["ts"] / 1000 for reading in readings(hub))
    )
    assert times["before"] == pytest.approx(2 * 120, abs=8)
    assert times["left out"] <= 8
    assert times["after"] == pytest.approx(2 * (made_up_for_s + 180), abs=8)
    said = ["off for 480 minutes; readings of the last 15 are sent"] * (pause_s > 900)
    assert [text.removeprefix("the sensors were ") for text in caplog.messages] == said


def test_what_a_hub_in_trouble_holds_up_is_sent_however_long_it_takes(hub, monkeypatch):
    wall, real = Wall(), hub.send_columns

    def send(keys, bodies):
        if NOW + 60 < wall.now < NOW + 3600:
            raise lh.FeedUnavailable("the disk is full")
        return real(keys, bodies)

    monkeypatch.setattr(hub, "send_columns", send)
    with Sensors(hub, homes=1, rates=QUIET, wall=wall) as sensors:
        sensors.run(wall.stop(after_s=7200))
    assert len(seconds_sent(hub)) == 120


def test_asleep_while_the_hub_was_in_trouble_only_the_sleep_is_left_out(hub, monkeypatch):
    wall, real, asleep = Wall(), hub.send_columns, [8 * 3600]

    def send(keys, bodies):
        if NOW + 60 < wall.now < NOW + 3600:
            raise lh.FeedUnavailable("the disk is full")
        if asleep and wall.now >= NOW + 3600:
            wall.now += asleep.pop()
            raise lh.FeedUnavailable("the disk was full")
        return real(keys, bodies)

    monkeypatch.setattr(hub, "send_columns", send)
    with Sensors(hub, homes=1, rates=QUIET, wall=wall) as sensors:
        sensors.run(wall.stop(after_s=9 * 3600 + 600))
    found = seconds_sent(hub)
    assert len([at for at in found if at < 3600]) == 60
    assert len([at for at in found if at >= 9 * 3600 - 900]) == pytest.approx(25, abs=1)
    assert len(found) == pytest.approx(60 + 25, abs=1)


def test_a_pause_beyond_the_end_of_a_run_ends_it(hub):
    wall = Wall()
    with Sensors(hub, homes=1, rates=QUIET, wall=wall, on_sent=off_for(wall, 7200)) as sensors:
        sensors.run(wall.stop(after_s=9000), minutes=10)
    assert len(seconds_sent(hub)) == 2
    assert wall.now < NOW + 7200 + 130


def test_a_clock_that_was_set_back_may_be_set_right_at_any_time(hub):
    wall, waits = Wall(), []
    stop = wall.stop(after_s=1200)
    wait = stop.wait

    def watched(timeout):
        waits.append(timeout)
        if len(waits) in (300, 360):
            wall.now += -3600 if len(waits) == 300 else 3600
        return wait(timeout)

    stop.wait = watched
    with Sensors(hub, homes=1, rates=QUIET, wall=wall) as sensors:
        sensors.run(stop)
        assert sensors.next_ms == pytest.approx(wall.now * 1000, abs=1001)
    assert len(seconds_sent(hub)) == 20
    assert max(waits) <= 1


@pytest.mark.parametrize("speed", [1e-300, 1e-6, 1e308])
def test_the_slowest_and_the_fastest_clock_can_be_waited_for(hub, speed):
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    with Sensors(hub, homes=1, speed=speed, on_sent=lambda _: stop.set()) as sensors:
        sensors.run(stop)


@pytest.mark.parametrize("minutes", [-1, float("nan"), float("inf")])
def test_a_catch_up_that_cannot_be_is_refused(hub, minutes):
    with pytest.raises(lh.BadInput, match="catch_up_minutes is"):
        Sensors(hub, homes=1, catch_up_minutes=minutes)


def test_without_any_catching_up_real_time_still_sends(hub):
    wall = Wall()
    with Sensors(hub, homes=1, rates=QUIET, wall=wall, catch_up_minutes=0) as sensors:
        sensors.run(wall.stop(), minutes=5)
    assert len(seconds_sent(hub)) == 5


def test_history_ends_where_real_time_begins_and_is_not_sent_twice(hub):
    wall = Wall()
    with Sensors(hub, homes=10, rates=QUIET, wall=wall) as sensors:
        assert sensors.backfill(2) == 10 * 4 * 120
        assert sensors.backfill(2) == 0
        sensors.run(wall.stop(), minutes=3)
    found = Counter((reading["sensor_id"], reading["ts"]) for reading in readings(hub))
    assert set(found.values()) == {1}
    assert len(found) == 10 * 4 * 123
    assert min(ts for _, ts in found) >= (NOW - 7200) * 1000


def test_history_that_takes_long_ends_when_it_is_sent_so_that_nothing_is_left_out(hub, monkeypatch):
    monkeypatch.setattr(module, "BATCH_READINGS", 40)
    wall = Wall()

    def slowly(_):
        wall.now += 15

    with Sensors(hub, homes=1, rates=QUIET, wall=wall, on_sent=slowly) as sensors:
        sensors.backfill(24)
        sensors.on_sent = None
        assert wall.now - NOW > 1800
        sensors.run(wall.stop(), minutes=1)
    assert len(seconds_sent(hub)) == pytest.approx(24 * 60 + (wall.now - NOW) / 60, abs=1)


def test_a_stopped_backfill_goes_on_where_it_was(hub, monkeypatch):
    monkeypatch.setattr(module, "BATCH_READINGS", 100)
    stop = threading.Event()
    with Sensors(hub, homes=10, rates=QUIET, wall=Wall(), on_sent=lambda _: stop.set()) as sensors:
        first = sensors.backfill(1, until=NOW, stop=stop)
        assert 0 < first < 10 * 4 * 60
    with Sensors(hub, homes=10, rates=QUIET, wall=Wall()) as sensors:
        assert first + sensors.backfill(1, until=NOW) == 10 * 4 * 60
    assert len({(r["sensor_id"], r["ts"]) for r in readings(hub)}) == 10 * 4 * 60


def test_a_history_cut_short_is_finished_before_real_time_leaves_any_of_it_out(hub, monkeypatch):
    monkeypatch.setattr(module, "BATCH_READINGS", 100)
    stop = threading.Event()
    with Sensors(hub, homes=10, rates=QUIET, wall=Wall(), on_sent=lambda _: stop.set()) as sensors:
        assert sensors.backfill(2, until=NOW, stop=stop) < 10 * 4 * 60
    wall = Wall(NOW + 60)
    for minutes in (3, 2):
        with Sensors(hub, homes=10, rates=QUIET, wall=wall) as sensors:
            sensors.finish_backfill()
            assert sensors.finish_backfill() == 0
            sensors.run(wall.stop(), minutes=minutes)
    found = Counter((reading["sensor_id"], reading["ts"]) for reading in readings(hub))
    assert set(found.values()) == {1}
    assert len(found) == 10 * 4 * (120 + 1 + 3 + 2)


def test_others_see_how_much_of_the_history_is_sent(hub, monkeypatch):
    monkeypatch.setattr(module, "BATCH_READINGS", 400)
    shares = [history_share(hub.path)]
    options = {"homes": 10, "rates": QUIET, "wall": Wall()}
    with Sensors(hub, **options, on_sent=lambda _: shares.append(history_share(hub.path))) as it:
        it.backfill(1, until=NOW)
    assert shares[0] is None
    assert shares[1:] == pytest.approx([n / 6 for n in range(1, 7)], abs=0.02)
    assert history_share(hub.path) is None


def test_detectors_of_carbon_monoxide_are_added_while_it_runs_and_stay(hub, monkeypatch):
    monkeypatch.setattr(module, "BATCH_READINGS", 40)

    def on_sent(sensors):
        if sensors.sent == 5 * 40:
            add_co_detectors(hub.path)

    options = {"homes": 10, "rates": QUIET, "speed": "max", "wall": Wall()}
    with Sensors(hub, **options, on_sent=on_sent) as sensors:
        sensors.run(minutes=20)
        since = sensors.co_since_ms
    with Sensors(hub, **options) as sensors:
        sensors.run(minutes=5)
        assert sensors.co_since_ms == since
    found = [reading for reading in readings(hub) if reading["type"] == "co"]
    assert {reading["home_id"] for reading in found} == set(map(home_id, range(10)))
    assert min(reading["ts"] for reading in found) >= since
    minutes = (sensors.next_ms - since) / MINUTE_MS
    assert len(found) == pytest.approx(10 * minutes, abs=10)


def test_only_one_simulator_sends_to_a_hub(hub):
    with Sensors(hub, homes=1), pytest.raises(lh.BadInput, match="another simulator"):
        Sensors(hub, homes=1)
    Sensors(hub, homes=1).close()


def test_a_hub_made_anew_is_begun_anew(tmp_path):
    path = tmp_path / "sensors.db"
    for _ in range(2):
        with lh.Hub.create(path, name="sensors", namespace="homes", partitions=1) as hub:
            with Sensors(hub, homes=1, speed="max") as sensors:
                assert (sensors.sent, sensors.next_ms, sensors.co_since_ms) == (0, None, None)
                sensors.run(minutes=1)
            add_co_detectors(path)
        for file in (path, path.with_name("sensors.db-wal"), path.with_name("sensors.db-shm")):
            file.unlink(missing_ok=True)


def test_a_damaged_state_is_named(hub):
    state = hub.path.with_name("sensors.db.sensors.json")
    for damage in ('{"hub": "x", "next', '{"hub": "x", "sent": "many"}', "[]", '{"a": 1}'):
        state.write_text(damage)
        with pytest.raises(lh.BadInput, match=r"sensors\.json is damaged"):
            Sensors(hub, homes=1)


def test_a_hub_in_trouble_is_tried_again_and_nothing_is_lost(hub, monkeypatch):
    failures, real = iter(range(3)), hub.send_columns

    def send(keys, bodies):
        if next(failures, None) is not None:
            raise lh.FeedUnavailable("the disk is full")
        return real(keys, bodies)

    monkeypatch.setattr(hub, "send_columns", send)
    with Sensors(hub, homes=2, rates=QUIET, speed="max", wall=Wall()) as sensors:
        assert sensors.run(Wall().stop(), minutes=2) == 16
    assert len(readings(hub)) == 16


def test_stopped_while_the_hub_is_in_trouble_it_has_not_sent(hub, monkeypatch):
    def send(keys, bodies):
        raise lh.FeedUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(hub, "send_columns", send)
        with Sensors(hub, homes=2, rates=QUIET, wall=Wall()) as sensors:
            assert sensors.backfill(0.1, stop=Wall().stop(after_s=100)) == 0
    with Sensors(hub, homes=2, rates=QUIET, wall=Wall()) as sensors:
        assert sensors.backfill(0.1) == 2 * 4 * 6


SCRIPT = """
import sys
import leasehold as lh
from homes.simulator import sensors
sensors.BATCH_READINGS = 400
with lh.Hub.open(sys.argv[1]) as hub, sensors.Sensors(hub, homes=100, speed="max") as simulator:
    simulator.backfill(12, until=1_767_600_000)
"""


def test_killed_and_restarted_nothing_is_lost_and_at_most_a_batch_is_sent_again(hub):
    state = hub.path.with_name("sensors.db.sensors.json")
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, hub.path])
        before = state.read_bytes() if state.exists() else b""
        wait_until(lambda old=before: state.exists() and state.read_bytes() != old)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", SCRIPT, hub.path], check=True)
    found = Counter(body for each in bodies(hub).values() for body in each)
    assert sum(found.values()) - len(found) <= 3 * 500
    assert max(found.values()) <= 4
    with lh.Hub.create(
        hub.path.with_name("other.db"), name="o", namespace="o", partitions=1
    ) as other:
        with Sensors(other, homes=100, speed="max") as sensors:
            sensors.backfill(12, until=1_767_600_000)
        assert set(bodies(other)["0"]) == set(found)


def test_the_share_of_wrong_readings_is_as_asked_for(hub):
    flaws = Flaws(malformed=0.05, unknown=0.03, wrong_time=0.02)
    with Sensors(hub, homes=500, rates=QUIET, speed="max", flaws=flaws, wall=Wall()) as sensors:
        sensors.run(minutes=10)
    counts = Counter()
    for partition in hub.properties().partition_ids:
        for event in events(hub, partition):
            counts[kind_of(event)] += 1
    total = 500 * 4 * 10
    assert counts.total() == total
    assert counts["malformed"] == pytest.approx(0.05 * total, rel=0.2)
    assert counts["unknown"] == pytest.approx(0.03 * total, rel=0.2)
    assert counts["early"] == pytest.approx(0.01 * total, rel=0.3)
    assert counts["late"] == pytest.approx(0.01 * total, rel=0.3)


def kind_of(event):
    try:
        reading = json.loads(event.body)
        value, ts, home = reading["value"], reading["ts"], reading["home_id"]
        assert isinstance(value, int | float)
        assert abs(value) < 1e300
        assert isinstance(ts, int)
    except (ValueError, KeyError, TypeError, AssertionError):
        return "malformed"
    assert home == event.partition_key
    if int(home[1:]) >= 500:
        return "unknown"
    if abs(ts / 1000 - NOW) > 365 * 86_400:
        return "early" if ts / 1000 < NOW else "late"
    return "good"


def test_wrong_readings_are_the_same_whatever_the_batches(tmp_path, monkeypatch):
    def sent(name):
        with lh.Hub.create(tmp_path / name, name="h", namespace="n", partitions=1) as hub:
            with Sensors(
                hub, homes=50, speed="max", flaws=Flaws(malformed=0.2, unknown=0.2), wall=Wall()
            ) as sensors:
                sensors.run(minutes=5)
            return [(event.partition_key, event.body) for event in events(hub, 0)]

    whole = sent("a.db")
    monkeypatch.setattr(module, "BATCH_READINGS", 17)
    assert sent("b.db") == whole


def test_a_single_reading_can_be_sent_by_hand(hub):
    send_reading(hub, 7, "glass", 1)
    (reading,) = readings(hub)
    assert (reading["sensor_id"], reading["value"]) == ("H000007-glass", 1)
    with pytest.raises(lh.BadInput, match="'smoke'"):
        send_reading(hub, 7, "smoke", 1)


@pytest.mark.parametrize("speed", [0, -1, "fast", None, float("nan")])
def test_a_speed_that_is_none_is_refused(hub, speed):
    with pytest.raises(lh.BadInput, match="speed is"):
        Sensors(hub, speed=speed)


def test_lengths_and_shares_that_cannot_be_are_refused(hub):
    with Sensors(hub, homes=1) as sensors:
        with pytest.raises(lh.BadInput, match="minutes"):
            sensors.run(minutes=0)
        with pytest.raises(lh.BadInput, match="hours"):
            sensors.backfill(-1)
    with pytest.raises(lh.BadInput, match="shares"):
        Flaws(malformed=0.8, unknown=0.3)
