from __future__ import annotations

import asyncio
import time
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

import leasehold as lh
from homes.domain.kinds import KIND, KINDS
from homes.domain.reading import MINUTE_MS
from homes.pipelines.activity import (
    NO_HOME,
    NO_TIME,
    NO_VALUE,
    REASONS,
    UNKNOWN_HOME,
    UNKNOWN_KIND,
    WRONG_TIME,
    Consolidate,
    activity_processor,
    activity_sink,
)
from homes.simulator.flaws import Flaws
from homes.simulator.sensors import Sensors

NOW_MS = 1_767_600_000_000
CO_LIMIT_PPM = KIND["co"].active_from
COLUMNS = {
    "partition": pl.String,
    "sequence": pl.Int64,
    "home_id": pl.String,
    "sensor_id": pl.String,
    "type": pl.String,
    "value": pl.Float64,
    "battery": pl.Float64,
    "ts": pl.Int64,
    "enqueued_at": pl.Datetime("us", "UTC"),
}


def frame(*readings: dict[str, Any], partition: str = "3") -> pl.DataFrame:
    """Readings as the processor hands them over; what is not given is as usual."""
    usual = {"home_id": "H000001", "type": "door", "value": 0.0, "battery": 80.0, "ts": NOW_MS}
    rows = [
        {
            "partition": partition,
            "sequence": n,
            "sensor_id": None,
            "enqueued_at": NOW_MS * 1000,
            **usual,
            **reading,
        }
        for n, reading in enumerate(readings)
    ]
    schema = COLUMNS | {"enqueued_at": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").cast(
        {"enqueued_at": pl.Datetime("us", "UTC")}
    )


def test_a_minute_of_a_home_becomes_one_row_per_kind() -> None:
    rows = Consolidate()(
        frame(
            {"value": 1.0, "battery": 80.0, "ts": NOW_MS},
            {"value": 0.0, "battery": 79.0, "ts": NOW_MS + 9},
            {"value": 2.0, "battery": None, "ts": NOW_MS + 5},
            {"type": "motion", "value": 1.0},
        )
    )
    door = rows.filter(kind="door").to_dicts()
    assert door == [
        {
            "partition": "3",
            "hour": NOW_MS // MINUTE_MS // 60,
            "minute": NOW_MS // MINUTE_MS,
            "home_id": "H000001",
            "kind": "door",
            "events": 3,
            "active": 2,
            "highest": 2.0,
            "last_value": 0.0,
            "last_ts": NOW_MS + 9,
            "battery": 79.0,
        }
    ]
    assert rows.filter(kind="motion")["active"].to_list() == [1]


def test_minutes_and_homes_are_kept_apart() -> None:
    rows = Consolidate()(
        frame({}, {"ts": NOW_MS + MINUTE_MS}, {"home_id": "H000002"}, {"ts": NOW_MS + 1})
    )
    found = {
        (row["home_id"], row["minute"] * MINUTE_MS - NOW_MS): row["events"]
        for row in rows.to_dicts()
    }
    assert found == {("H000001", 0): 2, ("H000001", MINUTE_MS): 1, ("H000002", 0): 1}


def test_carbon_monoxide_counts_from_the_limit_on() -> None:
    just_below = {"type": "co", "value": CO_LIMIT_PPM - 0.1}
    rows = Consolidate()(frame(just_below, {"type": "co", "value": CO_LIMIT_PPM}))
    assert rows["active"].to_list() == [1]
    assert rows["highest"].to_list() == [CO_LIMIT_PPM]


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        ({"home_id": None}, NO_HOME),
        ({"home_id": "H000100"}, UNKNOWN_HOME),
        ({"home_id": "H00001"}, UNKNOWN_HOME),
        ({"home_id": "H+00001"}, UNKNOWN_HOME),
        ({"home_id": "h000001"}, UNKNOWN_HOME),
        ({"home_id": "H000001\n"}, UNKNOWN_HOME),
        ({"home_id": "H٠٠٠٠٠١"}, UNKNOWN_HOME),
        ({"home_id": ""}, UNKNOWN_HOME),
        ({"type": None}, UNKNOWN_KIND),
        ({"type": "radar"}, UNKNOWN_KIND),
        ({"value": None}, NO_VALUE),
        ({"ts": None}, NO_TIME),
        ({"ts": NOW_MS + 3_600_000}, WRONG_TIME),
        ({"ts": NOW_MS - 40 * 86_400_000}, WRONG_TIME),
        ({"ts": -(2**63)}, WRONG_TIME),
        ({"ts": 2**63 - 1}, WRONG_TIME),
    ],
)
def test_what_cannot_be_true_is_counted_under_its_reason(
    reading: dict[str, Any], reason: str
) -> None:
    rows = Consolidate(homes=100)(frame(reading, {}))
    rejected = rows.filter(pl.col("home_id").is_null())
    assert rejected.select("kind", "events", "partition").rows() == [(reason, 1, "3")]
    assert rejected["minute"].to_list() == [NOW_MS // MINUTE_MS]  # when it came
    assert rows.filter(home_id="H000001")["events"].to_list() == [1]


def test_the_limits_of_time_are_within_what_is_believed() -> None:
    rows = Consolidate(ahead_ms=1000, behind_ms=5000)(
        frame({"ts": NOW_MS + 1000}, {"ts": NOW_MS - 5000})
    )
    assert rows["home_id"].null_count() == 0


READINGS = st.fixed_dictionaries(
    {
        "home_id": st.sampled_from(["H000000", "H000001", "H999999", "?", None]),
        "type": st.sampled_from([*KINDS, "radar", None]),
        "value": st.sampled_from([0.0, 1.0, 55.5, None]),
        "battery": st.sampled_from([10.0, 99.0, None]),
        "ts": st.sampled_from([NOW_MS, NOW_MS + 1, NOW_MS - MINUTE_MS, 0, None]),
    }
)


@given(st.lists(READINGS, max_size=60))
def test_every_reading_is_counted_in_exactly_one_row(readings: list[dict[str, Any]]) -> None:
    rows = Consolidate(homes=2)(frame(*readings))
    assert rows["events"].sum() == len(readings)
    keys = rows.select("partition", "home_id", "minute", "kind")
    assert keys.is_unique().all() if len(rows) else True
    kinds = set(rows.filter(pl.col("home_id").is_null())["kind"])
    assert kinds <= set(REASONS)


@given(st.lists(READINGS, min_size=1, max_size=40), st.data())
def test_partials_of_two_halves_add_up_to_the_whole(
    readings: list[dict[str, Any]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(readings)))
    whole = Consolidate()(frame(*readings))
    halves = pl.concat(
        [Consolidate()(frame(*readings[:cut])), Consolidate()(frame(*readings[cut:]))]
    )
    merged = halves.group_by("home_id", "minute", "kind").agg(
        pl.col("events").sum(),
        pl.col("active").sum(),
        pl.col("highest").max(),
        pl.col("battery").min(),
    )
    columns = merged.columns
    assert merged.sort(columns).equals(whole.select(columns).sort(columns))


def test_events_in_are_events_aggregated_plus_dead_letters(spark: Any, tmp_path: Any) -> None:
    with lh.Hub.create(tmp_path / "s.db", name="sensors", namespace="homes", partitions=4) as hub:
        flaws = Flaws(malformed=0.02, unknown=0.02, wrong_time=0.02)
        with Sensors(hub, homes=300, flaws=flaws) as sensors:
            sent = sensors.backfill(10 / 60, time.time())
        letters = lh.open_dead_letters(f"sqlite:///{tmp_path}/dead.db")
        sink = activity_sink(tmp_path / "activity")
        store = lh.open_store(f"sqlite:///{tmp_path}/leases.db")
        activity_processor(spark, hub, store, sink, letters, homes=300).run(until_drained=True)
    rows = pl.from_arrow(DeltaTable(tmp_path / "activity").to_pyarrow_table())
    assert isinstance(rows, pl.DataFrame)
    dead = sum(count_of(letters).values())
    assert rows["events"].sum() + dead == sent
    reasons = set(rows.filter(pl.col("home_id").is_null())["kind"])
    assert {UNKNOWN_HOME, WRONG_TIME} <= reasons
    assert dead > 0
    assert rows.filter(pl.col("home_id").is_not_null())["home_id"].n_unique() == 300


def count_of(letters: Any) -> dict[Any, int]:
    async def count() -> dict[Any, int]:
        try:
            return dict(await letters.count(lh.LetterFilter()))
        finally:
            await letters.close()

    return asyncio.run(count())
