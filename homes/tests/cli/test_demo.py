"""The whole application as a user starts it, at a small scale."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from homes_command import PROGRAM, run_homes

from homes.local.lock import Lock
from homes.local.places import Places
from homes.supervisor.data_folder import count_of_homes
from homes.supervisor.part_config import PartConfig
from leasehold import BadInput

pytestmark = pytest.mark.takes_s(60)

PATIENCE_S = 240.0
SMALL = ("--homes", "60", "--history-hours", "0.2", "--instances", "2")


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, "demo", *SMALL, "--folder", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_over(folder: Path) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            command, told = (each / "cmdline").read_bytes(), (each / "environ").read_bytes()
        except OSError:
            continue
        if b"homes.supervisor.run_part" in command and str(folder).encode() in told:
            found.append(int(each.name))
    return found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--history-hours", "nan"), "--history-hours"),
        (("--minutes", "inf"), "--minutes is inf"),
        (("--speed", "0"), "speed is '0'"),
        (("--malformed", "2"), "shares of wrong readings"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    refused = run_homes("demo", *options, "--folder", tmp_path / "data", ok=False)
    assert said in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        refused = run_homes("demo", "--port", "0", "--folder", folder, ok=False)
        assert f"nothing can be kept in {folder}" in refused.stderr


def test_one_demo_at_a_time_runs_in_a_folder(tmp_path: Path) -> None:
    places = Places(tmp_path)
    with Lock(places.lock, "this test runs in this folder"):
        refused = run_homes("demo", "--port", "0", "--folder", tmp_path, ok=False)
    assert "another demo runs in this folder" in refused.stderr
    assert not left_over(tmp_path)


def test_a_port_that_is_taken_or_cannot_be_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = run_homes("demo", "--port", port, "--folder", tmp_path / "data", ok=False)
    assert f"port {port} cannot be used" in refused.stderr
    assert "--port 0" in refused.stderr
    refused = run_homes("demo", "--port", "65536", "--folder", tmp_path / "data", ok=False)
    assert "--port" in refused.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("option", "url", "said"),
    [
        ("--store", "postgresql://u@127.0.0.1:1/x", "PostgreSQL at 127.0.0.1:1, database x"),
        ("--dead-letters", "postgresql://u@127.0.0.1:1/x", "PostgreSQL at 127.0.0.1:1, database x"),
        ("--feed", "kafka://127.0.0.1:1/x?timeout_s=1", "x at 127.0.0.1:1: no answer"),
        ("--spark", "spark://127.0.0.1:1", "no Spark master answers at spark://127.0.0.1:1"),
    ],
)
def test_a_server_that_does_not_answer_is_named_before_anything_starts(
    tmp_path: Path, option: str, url: str, said: str
) -> None:
    words = ("demo", "--port", "0", "--folder", tmp_path / "data", option, url)
    refused = run_homes(*words, ok=False)
    assert said in refused.stderr
    assert not Places(tmp_path / "data").logs.exists()


def test_a_folder_keeps_its_number_of_homes(tmp_path: Path) -> None:
    places = Places(tmp_path)
    assert count_of_homes(places, 60, 100_000) == 60
    assert count_of_homes(places, None, 100_000) == 60
    with pytest.raises(BadInput, match=r"was begun with 60 homes: leave out --homes"):
        count_of_homes(places, 61, 100_000)
    places.town.write_text("{}")
    with pytest.raises(BadInput, match="is damaged"):
        count_of_homes(places, None, 100_000)


def test_homes_are_known_by_their_number() -> None:
    config = PartConfig(part="", folder="", instance="", homes=60)
    homes = ("H000000", "H000059", "H000060", "H00059", "H0000059", "X000059", "H00005x", "")
    assert [home for home in homes if config.has(home)] == ["H000000", "H000059"]


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


@pytest.mark.timeout(3 * PATIENCE_S)
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
    deadline = time.monotonic() + PATIENCE_S
    while left_over(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left_over(tmp_path)
