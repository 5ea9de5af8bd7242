"""Jobs that end before their time: stops, lost leases, time limits, a second Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from support.processing import open_leases
from support.spark_pipeline import counted, make_hub, per_home_minute, processor, send, sent

import leasehold as lh
from leasehold.core.model import Group
from leasehold.spark import SparkProcessor

LONG_S = 3600.0
PATIENCE_S = 120.0


def sleeping(folder: Path) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Never comes back while there is no file ``awake``; the worker says who it is."""

    def at_source(frame: pl.DataFrame) -> pl.DataFrame:
        if len(frame) and not (folder / "awake").exists():
            (folder / f"worker-{os.getpid()}").touch()
            time.sleep(LONG_S)
        return per_home_minute(frame)

    return at_source


def workers(folder: Path) -> list[int]:
    return [int(each.name.removeprefix("worker-")) for each in folder.glob("worker-*")]


def wait_for(what: Callable[[], Any], said: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def all_ended(folder: Path) -> bool:
    return not any(map(runs, workers(folder)))


def cancelled(worker: SparkProcessor, reason: str) -> int:
    text = worker.telemetry.render()
    (found,) = re.findall(rf'jobs_cancelled_total{{.*reason="{reason}"}} (\d+)', text)
    return int(found)


def leases(folder: Path, hub: lh.Hub) -> list[lh.Lease]:
    async def look() -> list[lh.Lease]:
        store = open_leases(folder)
        group = Group(namespace=hub.namespace, feed=hub.name, name="activity")
        found = (await store.snapshot(group)).leases
        await store.close()
        return list(found)

    return asyncio.run(look())


def running(worker: SparkProcessor) -> threading.Thread:
    thread = threading.Thread(target=worker.run)
    thread.start()
    return thread


def test_a_stop_cancels_a_job_that_takes_too_long_and_lets_its_leases_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 100)
    worker = processor(spark, hub, tmp_path, at_source=sleeping(tmp_path), cycle_s=0.2)
    thread = running(worker)
    wait_for(lambda: workers(tmp_path), "the job has begun")
    worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert cancelled(worker, "stop") >= 1
    found = leases(tmp_path, hub)
    assert {(each.owner, each.attempts, each.checkpoint.next_sequence) for each in found} == {
        (None, 0, 0)
    }, "nothing was handled, nobody is to blame, and everything is free"
    wait_for(lambda: all_ended(tmp_path), "its Python workers have ended")
    (tmp_path / "awake").touch()
    processor(spark, hub, tmp_path, at_source=sleeping(tmp_path)).run(until_drained=True)
    assert counted(tmp_path) == sent(hub)


def test_a_job_whose_leases_are_all_lost_is_cancelled(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 50, partitions=1)
    worker = processor(spark, hub, tmp_path, at_source=sleeping(tmp_path))
    thread = running(worker)
    wait_for(lambda: workers(tmp_path), "the job has begun")
    (tmp_path / "awake").touch()

    async def steal() -> bool:
        store = open_leases(tmp_path)
        (lease,) = leases_now = (await store.snapshot(worker.group)).leases
        assert leases_now
        won = await store.acquire([lease], "thief", 30.0)  # unless it was renewed in between
        await store.release([replace(each, offered_to=None) for each in won])
        await store.close()
        return bool(won)

    wait_for(lambda: asyncio.run(steal()), "the lease is taken away")
    wait_for(lambda: cancelled(worker, "lost"), "the job is cancelled")
    wait_for(lambda: all_ended(tmp_path), "its Python workers have ended")
    wait_for((tmp_path / "table/_delta_log").exists, "the lease came back")
    wait_for(lambda: counted(tmp_path) == sent(hub), "each event counts once")
    worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_job_beyond_its_time_limit_takes_its_workers_along(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 50, partitions=1)
    told: list[BaseException] = []

    def on_error(error: BaseException) -> None:
        told.append(error)
        (tmp_path / "awake").touch()

    worker = processor(
        spark,
        hub,
        tmp_path,
        at_source=sleeping(tmp_path),
        on_error=on_error,
        handler_timeout_s=8.0,
        retry=lh.Retry(backoff_s=0.01),
    )
    worker.run(until_drained=True)
    assert cancelled(worker, "timeout") >= 1
    assert any(isinstance(each, lh.HandlerHung) for each in told)
    wait_for(lambda: all_ended(tmp_path), "its Python workers have ended")
    assert counted(tmp_path) == sent(hub)


def test_a_job_that_became_slow_is_cancelled_and_others_get_it_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 100, partitions=2)
    slow = tmp_path / "slow"

    def at_source(frame: pl.DataFrame) -> pl.DataFrame:
        # Whatever the size of the first job then: on a busy machine all jobs are small.
        if len(frame) and slow.exists():
            with suppress(FileExistsError):
                (tmp_path / "slept").touch(exist_ok=False)
                time.sleep(LONG_S)
        return per_home_minute(frame)

    told: list[BaseException] = []
    worker = processor(spark, hub, tmp_path, at_source=at_source, cycle_s=0.3, on_error=told.append)
    thread = running(worker)
    wait_for((tmp_path / "table/_delta_log").exists, "the table is there")
    wait_for(lambda: counted(tmp_path) == sent(hub), "a first cycle has ended")
    slow.touch()
    send(hub, 5_000)
    wait_for(lambda: counted(tmp_path) == sent(hub), "each event counts once")
    worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert cancelled(worker, "overdue") >= 1
    assert not told
    assert sum(each.checkpoint.next_sequence for each in leases(tmp_path, hub)) == 5_100
    assert {each.attempts for each in leases(tmp_path, hub)} == {0}


TWICE = """
import logging, sys
logging.basicConfig(level=logging.INFO)
logging.getLogger("py4j").setLevel(logging.WARNING)
sys.path.insert(0, {tests!r})
from pathlib import Path
import leasehold as lh
from leasehold.spark import local_session
from support.spark_pipeline import processor
from spark.test_cancel import sleeping
from pyspark import cloudpickle
cloudpickle.register_pickle_by_value(sys.modules["spark.test_cancel"])

folder = Path({folder!r})
spark = local_session(1, settings={{"spark.driver.memory": "512m"}})
print("java", spark.sparkContext._gateway.proc.pid, flush=True)
processor(
    spark, lh.Hub.open(folder / "hub.db"), folder, at_source=sleeping(folder), cycle_s=600.0
).run()
"""


@pytest.mark.timeout(600)
def test_a_second_ctrl_c_ends_java_and_its_python_workers(tmp_path: Path) -> None:
    make_hub(tmp_path, 50, partitions=1).close()
    script = TWICE.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    said = tmp_path / "said"
    with (
        said.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            java = int(process.stdout.readline().split()[1])
            wait_for(lambda: workers(tmp_path), "the job has begun")
            process.send_signal(signal.SIGINT)
            wait_for(lambda: "stopping in order" in said.read_text(), "the first one is heard")
            assert process.poll() is None, "and waits for the job"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
            wait_for(lambda: not runs(java), "Java has ended")
            wait_for(lambda: all_ended(tmp_path), "its Python workers have ended")
        finally:
            process.kill()
