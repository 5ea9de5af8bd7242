"""What is measured of cycles, at a small scale: that it measures, not what."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bench_rows import rows_of

pytestmark = pytest.mark.takes_s(60)
CYCLES = """
from pathlib import Path
from benchmarks import cycles
cycles.FILE_EVENTS, cycles.BAD, cycles.ROUNDS = 2_000, (0.01,), 1
cycles.WARM_UPS = cycles.SMALL_BATCHES = 1
rows = cycles.run(events=20_000, warm=2_000, folder=Path(sys.argv[1]))
"""


@pytest.mark.timeout(600)
def test_all_ways_are_measured_with_bad_rows(tmp_path: Path) -> None:
    rows = rows_of(CYCLES, tmp_path)
    for way in (
        "plain Spark, warmed up by 1,000 lines",
        "one huge batch",
        "cycles of 2 s",
        "plain Spark, unlimited",
        "plain Spark, 10 files a trigger",
        "polars alone",
    ):
        found = [what for what in rows if what.startswith(f"1 % bad rows: {way}")]
        assert found
        assert rows[found[0]] > 0
    assert rows["2 instances at once, one core each"] > 0
