"""What ``leasehold bench reads`` measures, at a small scale: that it measures, not what."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = """
import json, sys
from pathlib import Path
from leasehold.bench import reads
rows = list(reads.run(homes=40, hours=3, readers=5, seconds=2, folder=Path(sys.argv[1])))
print(json.dumps([[row.what, row.value] for row in rows]))
"""


@pytest.mark.timeout(600)
def test_the_page_agrees_with_the_table_and_is_measured(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SMALL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = dict(json.loads(done.stdout.splitlines()[-1]))
    assert 40 * 4 * 170 < rows["readings in 3 hours of history"] <= 40 * 4 * 180
    assert rows["5 readers, without any pause: 95 of 100 within"] > 0
    assert rows["next start: the whole day in memory"] > 0
    assert not list(tmp_path.iterdir())
