"""Aggregates per home and minute, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from benchmarks.peers.member import MINUTE_MS, Partial

SCHEMA = {"home": pl.String, "time_ms": pl.Int64, "value": pl.Int64}


def per_home_minute(bodies: Sequence[bytes]) -> Iterable[Partial]:
    if not bodies:
        return
    frame = pl.read_ndjson(b"\n".join(bodies), schema=SCHEMA)
    value = pl.col("value")
    grouped = frame.group_by("home", (pl.col("time_ms") // MINUTE_MS).alias("minute")).agg(
        value.count().alias("count"),
        value.sum().alias("total"),
        value.min().alias("least"),
        value.max().alias("most"),
    )
    for home, minute, count, total, least, most in grouped.iter_rows():
        yield (home, minute), count, total, least, most
