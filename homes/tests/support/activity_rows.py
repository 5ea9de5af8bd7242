"""Rows of the activity table, made by hand, for tests that need no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

NOW_MINUTE = 29_460_000
NOW = NOW_MINUTE * 60.0
FIELDS = pa.schema(
    [
        ("partition", pa.string()),
        ("hour", pa.int64()),
        ("minute", pa.int64()),
        ("home_id", pa.string()),
        ("kind", pa.string()),
        ("events", pa.int64()),
        ("active", pa.int64()),
        ("highest", pa.float64()),
        ("last_value", pa.float64()),
        ("last_ts", pa.int64()),
        ("battery", pa.float64()),
    ]
)


def row(
    home_id: str | None = "H000001",
    kind: str = "door",
    ago: int = 0,
    value: float = 0.0,
    **more: Any,
) -> dict[str, Any]:
    """One reading that came alone in its minute, so many minutes ago."""
    minute = NOW_MINUTE - ago
    return {
        "partition": "0",
        "minute": minute,
        "hour": minute // 60,
        "home_id": home_id,
        "kind": kind,
        "events": 1,
        "active": int(value > 0),
        "highest": value,
        "last_value": value,
        "last_ts": minute * 60_000,
        "battery": 80.0,
        **more,
    }


def frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    made = pl.from_arrow(pa.Table.from_pylist(list(rows), schema=FIELDS))
    assert isinstance(made, pl.DataFrame)
    return made


def append(url: Path, *rows: dict[str, Any]) -> None:
    """One more version of the table, as a batch of the pipeline would make it."""
    table = pa.Table.from_pylist(list(rows), schema=FIELDS)
    write_deltalake(url, table, mode="append", partition_by=["hour"])
