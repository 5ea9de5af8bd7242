"""What many values of a folder's column cost a Delta table's writer, beside one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from benchmarks.row import Row
from leasehold.spark.delta.values import parts

ROWS = 200_000
VALUES = {1: 31.0, 24: 108.0, 744: 1113.0}
"""Hours, up to a month of them, and ns a row when all rows were gone through for each."""


def run(rows: int = ROWS, rounds: int = 5) -> Iterator[Row]:
    one = 0.0
    for values, former in VALUES.items():
        value = _nanoseconds(_table(rows, values), values, rounds)
        one = one or value
        yield Row(
            what=f"a row dealt out to folders, {values:,} of them",
            value=value,
            unit="ns",
            ratio=value / one,
            former=former,
        )


def _table(rows: int, values: int) -> pa.Table:
    chance = np.random.default_rng(1)
    return pa.table(
        {
            "hour": pa.array(np.arange(rows) % values),
            "minute": pa.array(chance.integers(0, 60 * values, rows)),
            "home_id": pa.array([f"H{number % 1000:06d}" for number in range(rows)]),
            "value": pa.array(chance.random(rows)),
        }
    )


def _nanoseconds(table: pa.Table, values: int, rounds: int) -> float:
    """Of the processor: what else runs on the machine does not count."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        found = {folder["hour"]: part.num_rows for folder, part in parts(table, ["hour"])}
        times.append(time.process_time() - began)
        if len(found) != values or sum(found.values()) != table.num_rows:
            raise AssertionError("rows are missing, or in another folder")
    return 1e9 * float(min(times)) / int(table.num_rows)
