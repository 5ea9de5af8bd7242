"""What is measured of a start of the demo, at a small scale: that it measures, not what."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bench_rows import rows_of

START = """
from pathlib import Path
from benchmarks import start
start.STOPS_WITHIN_S = 1
rows = start.run(starts=1, homes=60, folder=Path(sys.argv[1]), through_make=False)
"""


@pytest.mark.timeout(300)
def test_a_home_becomes_live_and_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    rows = rows_of(START, tmp_path)
    served, first, live, stop = (
        rows[f"{what}, worst"]
        for what in (
            "the page is served",
            "the first home with readings",
            "the first home with live data",
            "from Ctrl-C to nothing left",
        )
    )
    assert 0 < served < first <= live
    assert stop > 0
