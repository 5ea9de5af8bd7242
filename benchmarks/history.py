"""A day of history in the activity table without sending it through a hub.

The simulator's readings go straight into the pipeline's own aggregation. Only hub, JSON and Spark
are left out, so a day of 100,000 homes takes minutes, and the table looks as it does after
compaction: few large files an hour.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

from homes.domain.kinds import KINDS
from homes.domain.reading import home_id
from homes.pipelines.activity import Consolidate
from homes.simulator.days import Town
from leasehold.feeds.keys import partitions_of
from leasehold.spark.delta.schema import OWN_COLUMNS

FILE_MINUTES = 10
SENSORS = 4


def write_history(
    table: Path,
    *,
    town: Town,
    partitions: int,
    until_minute: int,
    hours: int,
    on_hour: Callable[[int], None] = lambda hour: None,
) -> int:
    """The hours before ``until_minute``, the oldest first. How many readings that is."""
    names = [home_id(number) for number in range(town.homes)]
    places = partitions_of(pa.array(names), partitions)
    ids = pl.Series(names, dtype=pl.String)
    of = pl.Series([str(place) for place in places.tolist()], dtype=pl.String)
    first, written = until_minute - 60 * hours, 0
    for start in range(first, until_minute, FILE_MINUTES):
        minutes = range(start, min(start + FILE_MINUTES, until_minute))
        rows = pl.concat([_minute(town, minute, ids, of) for minute in minutes])
        written += int(rows["events"].sum())
        columns = rows.to_arrow()
        for field in OWN_COLUMNS:
            columns = columns.append_column(field, pa.nulls(len(rows), field.type))
        write_deltalake(str(table), columns, mode="append", partition_by=["hour"])
        if (start - first) % 60 == 0:
            on_hour((start - first) // 60 + 1)
    return written


def _minute(town: Town, minute: int, ids: pl.Series, of: pl.Series) -> pl.DataFrame:
    """What the pipeline makes of one minute."""
    found = town.readings(minute, slice(0, town.homes), SENSORS)
    loud = ~found.silent
    numbers = pl.Series(np.repeat(found.homes, SENSORS)[loud.reshape(-1)])
    kinds = np.tile(np.arange(SENSORS), town.homes)[loud.reshape(-1)]
    ts_ms = pl.Series(found.ts_ms[loud])
    readings = pl.DataFrame(
        {
            "partition": of.gather(numbers),
            "home_id": ids.gather(numbers),
            "type": pl.Series(KINDS).gather(pl.Series(kinds)),
            "value": found.values[loud],
            "battery": found.battery[loud].astype(np.float64),
            "ts": ts_ms,
            "enqueued_at": ts_ms.cast(pl.Datetime("ms", "UTC")),
        }
    )
    return Consolidate(homes=town.homes)(readings)
