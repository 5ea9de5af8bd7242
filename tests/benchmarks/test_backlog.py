"""What the measurement of a backlog finds in the table."""

from __future__ import annotations

import polars as pl
import pytest

from benchmarks.backlog import counted_twice


@pytest.mark.parametrize(
    ("ranges", "twice"),
    [
        ([("0", 0, 4), ("0", 4, 9), ("1", 0, 5)], 0),
        ([("0", 0, 4), ("0", 4, 9), ("0", 4, 9)], 5),
        ([("0", 0, 4), ("0", 2, 9)], 2),
        ([("0", 0, 9), ("0", 2, 4), ("0", 5, 7)], 4),
        ([("0", 4, 9), ("1", 0, 9)], 0),  # what is missing is not counted twice
    ],
)
def test_events_that_are_counted_twice_are_found_by_the_ranges_of_the_rows(
    ranges: list[tuple[str, int, int]], twice: int
) -> None:
    rows = pl.DataFrame(
        ranges, schema=["partition", "first_sequence", "end_sequence"], orient="row"
    ).with_columns(count=pl.col("end_sequence") - pl.col("first_sequence"))
    assert counted_twice(rows) == twice
