"""What ``make bench`` measures on Spark, at a small scale: that it measures, not what."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bench_rows import rows_of

SMALL = """
from pathlib import Path
from benchmarks import spark
spark.LOOP_EVENTS, spark.SMALL_EVENTS, spark.SMALL_CYCLES = 1_000, 200, 6
rows = spark.run(events=20_000, growth=0, folder=Path(sys.argv[1]))
"""


@pytest.mark.timeout(600)
def test_all_ways_come_to_the_same_result_and_are_measured(tmp_path: Path) -> None:
    rows = rows_of(SMALL, tmp_path)
    assert rows["hub to committed aggregates, beside plain Spark"] > 0
    assert rows["200 events of 16 partitions: a cycle, median"] > 0
    parts = [value for what, value in rows.items() if what.startswith("of which: ")]
    assert sum(parts) == pytest.approx(100)
