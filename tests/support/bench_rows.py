"""Runs a measurement in a process of its own, for each wants a Spark session to itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PRINTED = "\nprint(json.dumps([[row.what, row.value] for row in rows]))\n"


def rows_of(script: str, folder: Path) -> dict[str, float]:
    """``script`` leaves what it measured in ``rows``; the folder is its first argument."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{script}{PRINTED}", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))
