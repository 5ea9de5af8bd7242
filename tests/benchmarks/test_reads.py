"""What ``python -m benchmarks reads`` measures, at a small scale: that it measures, not what."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bench_rows import rows_of

SMALL = """
from pathlib import Path
from benchmarks import reads
rows = list(reads.run(homes=40, hours=3, readers=5, seconds=2, folder=Path(sys.argv[1])))
"""


@pytest.mark.timeout(600)
def test_the_page_agrees_with_the_table_and_is_measured(tmp_path: Path) -> None:
    rows = rows_of(SMALL, tmp_path)
    assert 40 * 4 * 170 < rows["readings in 3 hours of history"] <= 40 * 4 * 180
    assert rows["5 readers, without any pause: p95"] > 0
    assert rows["next start: the whole day in memory"] > 0
    assert not list(tmp_path.iterdir())
