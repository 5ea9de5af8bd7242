"""One job, unchanged, on three kinds of Spark, each of real processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.spark_cluster import SPARK_CLASS, environment, spark_cluster

import leasehold as lh

JOB = Path(__file__).with_name("job.py")
EVENTS, HOMES, BAD = 50_000, 100, 3
"""Enough for two tasks."""
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"

PATIENCE_S = 600
"""A machine may have other things to do: this many processes on two cores are slow enough."""
pytestmark = [pytest.mark.takes_s(120), pytest.mark.timeout(2 * PATIENCE_S)]

Start = Callable[..., Path]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    with lh.Hub.create(folder / "hub.db", name="h", namespace="t", partitions=4) as hub:
        hub.send_columns(
            [f"H{n % HOMES}" for n in range(EVENTS)],
            [
                json.dumps({"home_id": f"H{n % HOMES}", "value": n / 4, "ts": n}).encode()
                for n in range(EVENTS)
            ],
        )
        hub.send([lh.EventData(b"no JSON")] * BAD, partition_id=1)
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a class of the installed Spark as a process; gives the file with what it says."""
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str, memory: str = "256m") -> Path:
            folder = tmp_path / name
            folder.mkdir()
            said = folder / "said"
            process = subprocess.Popen(
                [SPARK_CLASS, *command],
                cwd=folder,
                env=environment(folder) | {"SPARK_DAEMON_MEMORY": memory},
                stdout=said.open("wb"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(end, process)
            return said

        yield start


def end(process: subprocess.Popen[bytes]) -> None:
    """A worker ends its executors; whatever is left of its session is killed."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def said(file: Path, pattern: str) -> str:
    """Waits until a process has said it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := re.search(pattern, file.read_text(errors="replace"))):
        assert time.monotonic() < deadline, file.read_text(errors="replace")[-3000:]
        time.sleep(0.1)
    return found[1]


def run(url: str, hub: Path, folder: Path) -> dict[str, Any]:
    shutil.copytree(hub, folder)
    done = subprocess.run(
        [sys.executable, JOB, url, folder],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def require_right(found: dict[str, Any]) -> None:
    """Each of the three is held to the same, so they are the same."""
    each = EVENTS // HOMES
    assert found["homes"] == {
        f"H{n}": [each, (n * each + HOMES * each * (each - 1) / 2) / 4, n / 4, least_last(n)]
        for n in range(HOMES)
    }
    assert len(found["dead"]) == BAD
    assert {partition for partition, _ in found["dead"]} == {"1"}
    assert found["dead unread"] == found["dead"]
    assert found["read"] == found["streamed"] == EVENTS + BAD
    assert found["corrupt"] == BAD


def least_last(home: int) -> float:
    return (EVENTS - HOMES + home) / 4


def test_the_job_on_this_machine(hub: Path, tmp_path: Path) -> None:
    found = run("local[2]", hub, tmp_path / "job")
    require_right(found)
    assert found["executors"] == 1


def test_the_job_on_a_cluster_of_two_workers(hub: Path, tmp_path: Path) -> None:
    with spark_cluster(workers=2) as cluster:
        found = run(cluster.url, hub, tmp_path / "job")
    require_right(found)
    assert found["executors"] == 2


def test_the_job_by_way_of_spark_connect(hub: Path, tmp_path: Path, start: Start) -> None:
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
    }
    server = start(
        "server",
        *("org.apache.spark.deploy.SparkSubmit", "--class", CONNECT, "--master", "local[2]"),
        *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
        "spark-internal",
        memory="1g",
    )
    port = said(server, r"Spark Connect server started at: 127\.0\.0\.1:(\d+)")
    require_right(run(f"sc://127.0.0.1:{port}", hub, tmp_path / "job"))
