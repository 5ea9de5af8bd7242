"""The Spark pipeline: readings become partial aggregates by home, minute and sensor kind.

A row per kind, so that a new kind of sensor needs no new column. Partials of one minute may be
spread over many rows and files; readers merge them (sums, greatest, latest). The table's folders
are hours: a reader of the last hour or day opens no others. The web process keeps the last day in
memory; who reads one home out of the table may want it sorted (``leasehold compact --sort-by``).

Every event that decodes is counted in exactly one row. What cannot be true is not dropped but
counted in rows without a home, whose kind is the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl
from pyspark.sql import SparkSession

from homes.domain.activity_row import HOUR_MINUTES, WRITTEN
from homes.domain.kinds import KINDS, SENSOR_KINDS
from homes.domain.reading import HOME_ID, HOMES_MAX, MINUTE_MS
from homes.local.places import ACTIVITY
from leasehold import DeadLetters, Feed, LeaseStore
from leasehold.spark import DeltaSink, SparkProcessor

GROUP = ACTIVITY
SCHEMA = (
    "home_id string, sensor_id string, type string, value double, battery double, ts bigint, "
    "enqueued_at timestamp"
)
POLARS = {"string": pl.String, "int64": pl.Int64, "double": pl.Float64}
AHEAD_S = 600.0
BEHIND_S = 31 * 86_400.0

NO_HOME, UNKNOWN_HOME, UNKNOWN_KIND = "no home", "unknown home", "unknown kind"
NO_VALUE, NO_TIME, WRONG_TIME = "no value", "no time", "wrong time"
REASONS = (NO_HOME, UNKNOWN_HOME, UNKNOWN_KIND, NO_VALUE, NO_TIME, WRONG_TIME)
"""The kinds of rows that have no home: why their readings were not believed."""


def activity_sink(
    url: str | Path, *, storage_options: Mapping[str, str] | None = None
) -> DeltaSink:
    """The table of the aggregates, in the layout that ``view`` expects."""
    return DeltaSink(url, storage_options=storage_options, partition_by=("hour",))


def activity_processor(
    spark: SparkSession,
    feed: Feed,
    store: LeaseStore,
    sink: DeltaSink,
    dead_letters: DeadLetters | None = None,
    *,
    homes: int | None = None,
    ahead_s: float = AHEAD_S,
    behind_s: float = BEHIND_S,
    **settings: Any,
) -> SparkProcessor:
    """One instance of the pipeline. ``settings`` are those of ``SparkProcessor``.

    ``homes``: how many there are; readings of others are not believed. None: any id will do.
    ``ahead_s``, ``behind_s``: how far a reading's time may be from when it was enqueued; sensors
    that run faster than real time need more than the default ahead.
    """
    return SparkProcessor(
        spark,
        cast(Any, feed),  # it is refused there if Spark cannot read it
        group=GROUP,
        store=store,
        on_batch=sink.write,
        schema=SCHEMA,
        at_source=Consolidate(
            homes=homes, ahead_ms=int(ahead_s * 1000), behind_ms=int(behind_s * 1000)
        ),
        dead_letters=dead_letters,
        **settings,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidate:
    """Runs where a chunk of one partition is read, so only aggregates travel on."""

    homes: int | None = None
    ahead_ms: int = int(AHEAD_S * 1000)
    behind_ms: int = int(BEHIND_S * 1000)

    def __call__(self, readings: pl.DataFrame) -> pl.DataFrame:
        judged = readings.select(
            "partition",
            "home_id",
            "type",
            "value",
            "battery",
            "ts",
            pl.col("enqueued_at").dt.epoch("ms").alias("enqueued_ms"),
        ).with_columns(self._reason().alias("reason"))
        believed = judged.filter(pl.col("reason").is_null())
        rejected = judged.filter(pl.col("reason").is_not_null())
        return pl.concat([_aggregated(believed), _counted(rejected)])

    def _reason(self) -> pl.Expr:
        """Why a reading is not believed; null: it is."""
        home, ts = pl.col("home_id"), pl.col("ts")
        known = home.str.contains(f"^{HOME_ID.pattern}$")
        if self.homes is not None:
            known &= home.str.slice(1).cast(pl.Int64, strict=False) < self.homes
        sent = pl.col("enqueued_ms")
        in_time = ts.is_between(sent - self.behind_ms, sent + self.ahead_ms)
        return (
            pl.when(home.is_null())
            .then(pl.lit(NO_HOME))
            .when(~known)
            .then(pl.lit(UNKNOWN_HOME))
            .when(~pl.col("type").is_in(KINDS).fill_null(False))
            .then(pl.lit(UNKNOWN_KIND))
            .when(pl.col("value").is_null())
            .then(pl.lit(NO_VALUE))
            .when(ts.is_null())
            .then(pl.lit(NO_TIME))
            .when(~in_time)
            .then(pl.lit(WRONG_TIME))
        )


def _aggregated(readings: pl.DataFrame) -> pl.DataFrame:
    value = pl.col("value")
    rows = (
        readings.sort("ts", maintain_order=True)
        .with_columns(
            (pl.col("ts") // MINUTE_MS).alias("minute"),
            _active().alias("active"),
        )
        .with_columns(_key().alias("key"))
        .group_by("partition", "key")
        .agg(
            pl.col("home_id").first(),
            pl.col("minute").first(),
            pl.col("type").first().alias("kind"),
            pl.len().alias("events"),
            pl.col("active").sum(),
            value.max().alias("highest"),
            value.last().alias("last_value"),
            pl.col("ts").last().alias("last_ts"),
            pl.col("battery").min(),
        )
    )
    return _in_order(rows)


def _active() -> pl.Expr:
    """``SensorKind.is_active``, for a whole column."""
    value = pl.col("value")
    found = value > 0
    for kind in SENSOR_KINDS:
        if kind.unit:
            measured = pl.col("type") == kind.name
            found = pl.when(measured).then(value >= kind.active_from).otherwise(found)
    return found


def _key() -> pl.Expr:
    """Home, kind and minute in one number: far quicker to group by than three columns."""
    home = pl.col("home_id").str.slice(1).cast(pl.Int64)
    kind = pl.col("type").replace_strict(KINDS, range(len(KINDS)), return_dtype=pl.Int64)
    return (pl.col("minute") * HOMES_MAX + home) * len(KINDS) + kind


def _counted(rejected: pl.DataFrame) -> pl.DataFrame:
    """By when they came, for their own time may be anything."""
    rows = (
        rejected.with_columns((pl.col("enqueued_ms") // MINUTE_MS).alias("minute"))
        .group_by("partition", "minute", pl.col("reason").alias("kind"))
        .agg(pl.len().alias("events"))
        .with_columns(pl.lit(0).alias("active"))
    )
    missing = WRITTEN.keys() - {"hour", *rows.columns}
    return _in_order(rows.with_columns(pl.lit(None).alias(name) for name in missing))


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    hours = rows.with_columns((pl.col("minute") // HOUR_MINUTES).alias("hour"))
    return hours.select(pl.col(name).cast(POLARS[kind]) for name, kind in WRITTEN.items())
