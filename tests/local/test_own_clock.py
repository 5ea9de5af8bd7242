"""What decides how old events and documents are, whatever clocks their producers have."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.clocks import FakeClocks

from leasehold.core.event import EventData
from leasehold.feeds.hub import Hub
from leasehold.local.own_clock import (
    BELIEVE_AFTER_US,
    BOOTS_KEPT,
    SEE_EVERY_US,
    SQL,
    STEP_US,
    ClockReading,
    Now,
    keep,
    look,
    read_clocks,
)

DAY_S = 86_400.0


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        made.execute(SQL["create"])
        yield made


def test_time_passes_as_the_boot_time_does(db: sqlite3.Connection) -> None:
    assert keep(db, ClockReading(5_000, 100, "a")) == Now(0, 5_000)
    assert keep(db, ClockReading(5_007, 107, "a")) == Now(7, 5_007)
    assert look(db, ClockReading(5_009, 109, "a")) == Now(9, 5_009)


def test_a_step_of_the_wall_clock_is_followed_when_nobody_contradicts_it_for_long(
    db: sqlite3.Connection,
) -> None:
    step, late = 10 * STEP_US, BELIEVE_AFTER_US
    keep(db, ClockReading(0, 0, "a"))
    assert keep(db, ClockReading(step, 0, "a")) == Now(0, 0)
    assert keep(db, ClockReading(step + late - 1, late - 1, "a")) == Now(late - 1, late - 1)
    assert keep(db, ClockReading(step + late, late, "a")) == Now(late, step + late)
    assert keep(db, ClockReading(step + late + 1, late + 1, "a")) == Now(late + 1, step + late + 1)


@pytest.mark.parametrize("error_s", [-9 * DAY_S, 8 * DAY_S])
def test_one_wrong_clock_among_right_ones_is_never_believed(
    db: sqlite3.Connection, error_s: float
) -> None:
    right, wrong = FakeClocks(), FakeClocks(ahead=error_s)
    keep(db, right())
    for _ in range(100):
        right.now = wrong.now = right.now + BELIEVE_AFTER_US / 4e6
        told = keep(db, right()).wall_us, keep(db, wrong()).wall_us
        assert told == (right().wall_us, right().wall_us)


def test_a_machine_that_was_started_again_goes_on_counting_and_takes_its_wall_clock(
    db: sqlite3.Connection,
) -> None:
    keep(db, ClockReading(0, 0, "a"))
    keep(db, ClockReading(SEE_EVERY_US, SEE_EVERY_US, "a"))
    assert keep(db, ClockReading(10**15, 5, "b")) == Now(SEE_EVERY_US, 10**15)
    assert keep(db, ClockReading(10**15 + 3, 8, "b")) == Now(SEE_EVERY_US + 3, 10**15 + 3)


def test_two_machines_in_turn_do_not_make_time_stand_still(db: sqlite3.Connection) -> None:
    for second in range(0, 1000, 2):
        us = second * 1_000_000
        keep(db, ClockReading(us, us, "a"))
        now = keep(db, ClockReading(us + 1_000_000, us + 77, "b"))
    assert now.own_us >= 990 * 1_000_000


def test_what_is_remembered_of_machines_is_bounded(db: sqlite3.Connection) -> None:
    for number in range(3 * BOOTS_KEPT):
        keep(db, ClockReading(0, number, f"boot {number}"))
    assert db.execute("SELECT count(*) FROM clocks").fetchone()[0] == BOOTS_KEPT


def test_the_real_clocks_are_of_one_boot_and_go_on() -> None:
    one, two = read_clocks(), read_clocks()
    assert one.boot_id == two.boot_id != ""
    assert one.boot_us <= two.boot_us


@given(
    st.lists(
        st.tuples(
            st.floats(0, 30 * DAY_S),
            st.floats(-1e9, 1e9),
            st.sampled_from("abc"),
            st.floats(0, 30 * DAY_S),
            st.booleans(),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_own_time_never_outruns_the_true_time(looks: list[Any]) -> None:
    """Whatever the wall clocks say, however often machines are started, and however long they are
    off; and while one stays on, it does not fall behind either."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute(SQL["create"])
        true_s, boots = 0.0, dict.fromkeys("abc", (0.0, 0))
        last_us, steady_us, previous = 0, 0, None
        for passed_s, error_s, machine, off_s, restarted in looks:
            true_s += passed_s
            if restarted:
                true_s += off_s
                boots[machine] = (true_s, boots[machine][1] + 1)
            since_s, number = boots[machine]
            boot = f"{machine}{number}"
            reading = ClockReading(
                int((true_s + error_s) * 1e6), int((true_s - since_s + 5) * 1e6), boot
            )
            now = keep(db, reading)
            assert last_us - SEE_EVERY_US < now.own_us <= true_s * 1e6 + 1
            if previous is not None and previous[0] == boot:
                steady_us = reading.boot_us - previous[1]
                assert now.own_us - last_us >= steady_us
            last_us, previous = now.own_us, (boot, reading.boot_us)


def make(path: Path, clocks: FakeClocks, **settings: Any) -> Hub:
    return Hub.create(path, name="h", namespace="n", partitions=1, clocks=clocks, **settings)


@pytest.mark.parametrize("ahead_s", [8 * DAY_S, 1e9, -8 * DAY_S, -1e6])
def test_one_producers_clock_deletes_nothing(tmp_path: Path, ahead_s: float) -> None:
    clocks = FakeClocks(2_000_000.0)
    with make(tmp_path / "h.db", clocks, retention_s=7 * DAY_S) as hub:
        for _ in range(1000):
            hub.send([EventData(b"x")], partition_id=0)
        wrong = FakeClocks(clocks.now, ahead=ahead_s)
        with Hub.open(hub.path, clocks=wrong) as producer:
            producer.send([EventData(b"y")], partition_id=0)
            assert producer.trim().events == 0
        hub.send([EventData(b"z")], partition_id=0)
        assert hub.properties().events == 1002
        stamps = {
            event.enqueued_at for event in hub.read_batch(0, hub.position_of(0, 0), 2000).events
        }
        assert {stamp.timestamp() for stamp in stamps} == {clocks.now}
        clocks.now += 7 * DAY_S + 1
        assert hub.trim().events == 1002


@settings(max_examples=40, deadline=None)
@example([(0.0, 0.0, False, False), (1.0, 0.0, False, False), (0.0, 0.0, True, False)])
@given(
    st.lists(
        st.tuples(st.floats(0, 3 * DAY_S), st.floats(-1e6, 1e9), st.booleans(), st.booleans()),
        min_size=1,
        max_size=15,
    )
)
def test_nothing_younger_than_the_retention_is_removed_and_nothing_is_kept_for_ever(
    tmp_path_factory: pytest.TempPathFactory, sends: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("hub") / "h.db"
    clocks = FakeClocks(2_000_000.0)
    sent: list[float] = []
    with make(path, clocks, retention_s=7 * DAY_S) as hub:
        for passed_s, ahead_s, restarted, opened in sends:
            clocks.now += passed_s
            clocks.ahead = ahead_s
            clocks.boot += "." * restarted
            if opened:
                with Hub.open(path, clocks=clocks) as producer:
                    producer.send([EventData(b"x")], partition_id=0)
            else:
                hub.send([EventData(b"x")], partition_id=0)
            sent.append(clocks.now)
            hub.trim()
            first = hub.partition_properties(0).first_sequence
            assert all(clocks.now - at >= 7 * DAY_S - 1e-3 for at in sent[:first])
        # Each restart may have cost some own time, and so makes what is kept seem younger.
        lost_s = SEE_EVERY_US / 1e6 * sum(restarted for _, _, restarted, _ in sends)
        clocks.now += 7 * DAY_S + 1 + lost_s
        hub.trim()
        assert hub.properties().events == 0
