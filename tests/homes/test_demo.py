"""The whole application as a user starts it, at a small scale."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

PATIENCE_S = 240.0
SMALL = ("--homes", "60", "--history-hours", "0.2", "--instances", "2")


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    program = Path(sys.executable).with_name("leasehold")
    return subprocess.Popen(
        [str(program), "demo", *SMALL, "--folder", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_over(folder: Path) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "leasehold.homes.parts" in said and str(folder) in said:
            found.append(said)
    return found


@pytest.mark.timeout(2 * PATIENCE_S)
def test_every_reading_is_accounted_for_and_the_next_start_goes_on(tmp_path: Path) -> None:
    before = 0
    for _ in range(2):
        demo = start(tmp_path, "--headless", "--minutes", "0.2", "--malformed", "0.01")
        printed, _ = demo.communicate(timeout=PATIENCE_S)
        assert demo.returncode == 0, printed
        summary = json.loads(printed.splitlines()[-1])
        assert summary["missing"] == 0
        assert summary["sent"] == summary["aggregated"] + summary["dead_letters"] > before
        assert summary["dead_letters"] > 0
        before = summary["sent"]
    assert not left_over(tmp_path)


@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_page_is_served_and_ctrl_c_stops_everything(tmp_path: Path) -> None:
    demo = start(tmp_path, "--port", "0")
    try:
        assert demo.stdout is not None
        url = code = ""
        for line in demo.stdout:
            url = url or "".join(re.findall(r"http://127[^ \n]+", line))
            if "access code" in line:
                code = line.split()[-1]
                break
        assert code
        with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
            assert answer.status == 200
        assert left_over(tmp_path)
        os.kill(demo.pid, signal.SIGINT)
        printed, _ = demo.communicate(timeout=PATIENCE_S)
        assert demo.returncode == 0, printed
        assert "goes on where it was" in printed
    finally:
        if demo.poll() is None:
            demo.kill()
    deadline = time.monotonic() + 30
    while left_over(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left_over(tmp_path)
