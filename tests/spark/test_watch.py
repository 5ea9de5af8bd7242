"""Jobs under watch: what takes too long is cancelled, and a Spark that does nothing is noticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.processing import open_leases
from support.spark_pipeline import make_hub

import leasehold as lh
from leasehold.clock import SystemClock
from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import HandlerHung
from leasehold.processor.handlers import NotHandled
from leasehold.processor.threads import HandlerThreads
from leasehold.spark import watch as watch_module
from leasehold.spark.jobs import Jobs, Overdue, SparkGone, SparkJob
from leasehold.spark.pacer import Pacer
from leasehold.spark.watch import Pulse, SparkPulse, Watch

LONG_S = 3600.0
JOB = SparkJob(tag="leasehold-test", ranges=(Range(partition="0", first=0, end=1),))


class FakePulse:
    """Spark as it is told to be."""

    def __init__(self) -> None:
        self.cancelled, self.end = 0, threading.Event()
        self.progress: Callable[[], Any] = lambda: {1: 0}
        self.beat: Callable[[], Any] = lambda: None

    def cancel(self, tag: str) -> None:
        self.cancelled += 1
        self.end.set()


@pytest.fixture
def pulse() -> Iterator[FakePulse]:
    pulse = FakePulse()
    yield pulse
    pulse.end.set()


def watched(
    pulse: Pulse,
    job: Callable[[], Any],
    *,
    limit_s: float | None = None,
    stall_s: float = LONG_S,
    told: list[SparkGone] | None = None,
    overdue_s: float = inf,
    **more: Any,
) -> None:
    """Raises what the watch raises; ``told`` is what the processor is told."""
    threads = HandlerThreads("test")

    async def main() -> None:
        watch = Watch(
            pulse,
            threads=threads,
            clock=SystemClock(),
            limit_s=limit_s,
            stall_s=stall_s,
            gone=([] if told is None else told).append,
            **more,
        )
        running = asyncio.get_running_loop().run_in_executor(threads, job)
        await watch(running, replace(JOB, overdue_s=overdue_s))

    asyncio.run(main())


def fail_when(event: threading.Event) -> None:
    event.wait()
    raise RuntimeError("cancelled")


def test_a_job_that_takes_too_long_is_cancelled(pulse: FakePulse) -> None:
    with pytest.raises(HandlerHung, match=r"handler_timeout_s=0\.01"):
        watched(pulse, lambda: fail_when(pulse.end), limit_s=0.01)
    assert pulse.cancelled == 1


def test_a_job_that_nobody_wants_any_more_is_cancelled_and_blames_nothing(
    pulse: FakePulse,
) -> None:
    told: list[str] = []
    with pytest.raises(NotHandled, match="stop"):
        watched(
            pulse,
            lambda: fail_when(pulse.end),
            unwanted=lambda job: "stop",
            cancels=told.append,
        )
    assert pulse.cancelled == 1
    assert told == ["stop"]


def test_a_job_that_was_done_in_the_moment_of_its_cancelling_is_done(pulse: FakePulse) -> None:
    watched(pulse, pulse.end.wait, limit_s=0.01)
    assert pulse.cancelled == 1


def test_a_job_that_spark_had_not_begun_is_cancelled_again(
    pulse: FakePulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "CANCEL_EVERY_S", 0.01)
    begun = count()
    stop = threading.Event()
    monkeypatch.setattr(pulse, "cancel", lambda tag: stop.set() if next(begun) >= 2 else None)
    with pytest.raises(HandlerHung):
        watched(pulse, lambda: fail_when(stop), limit_s=0.01)
    assert next(begun) >= 3


def test_a_job_that_no_cancelling_ends_gives_the_instance_up(
    pulse: FakePulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "CANCEL_EVERY_S", 0.01)
    monkeypatch.setattr(watch_module, "CANCEL_S", 0.05)
    monkeypatch.setattr(pulse, "cancel", lambda tag: None)
    with pytest.raises(SparkGone, match="does not end"):
        watched(pulse, pulse.end.wait, limit_s=0.01)


def test_an_overdue_job_is_cancelled_and_blames_nothing(pulse: FakePulse) -> None:
    told: list[str] = []
    with pytest.raises(Overdue):
        watched(pulse, lambda: fail_when(pulse.end), overdue_s=0.01, cancels=told.append)
    assert pulse.cancelled == 1
    assert told == ["overdue"]


def test_an_overdue_job_that_is_not_in_spark_is_waited_for(
    pulse: FakePulse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its events must not be in two jobs at once. It is done, so nothing of it comes again. The log
    tells of it, for it may never end."""
    monkeypatch.setattr(watch_module, "CANCEL_EVERY_S", 0.01)
    monkeypatch.setattr(watch_module, "CANCEL_S", 0.02)
    asked, over = count(), threading.Event()
    monkeypatch.setattr(pulse, "cancel", lambda tag: over.set() if next(asked) >= 3 else None)
    watched(pulse, over.wait, overdue_s=0.01)
    assert next(asked) >= 4
    assert "partitions 0 has run for" in caplog.text
    assert "handler_timeout_s" in caplog.text


def test_spark_is_gone_when_nothing_ends_and_a_job_of_no_work_does_not_either(
    pulse: FakePulse,
) -> None:
    pulse.beat = pulse.end.wait
    told: list[SparkGone] = []
    with pytest.raises(SparkGone, match="raise stall_s") as raised:
        watched(pulse, pulse.end.wait, stall_s=0.01, told=told)
    assert told == [raised.value]


def test_the_job_of_no_work_is_no_progress_itself(pulse: FakePulse) -> None:
    """Its own stage comes up beside those of the job, and nothing of it ends either."""
    stages = count(2)
    pulse.beat = pulse.end.wait
    pulse.progress = lambda: {1: 5} | dict.fromkeys(range(2, next(stages)), 0)
    with pytest.raises(SparkGone):
        watched(pulse, pulse.end.wait, stall_s=0.01)


def test_spark_that_does_not_answer_at_all_is_gone(pulse: FakePulse) -> None:
    pulse.beat = pulse.progress = pulse.end.wait
    with pytest.raises(SparkGone):
        watched(pulse, pulse.end.wait, stall_s=0.01)


def test_spark_that_is_busy_with_other_tasks_is_not_gone(pulse: FakePulse) -> None:
    """The job of no work stands behind them in the queue."""
    numbers = count()

    def progress() -> Any:
        if next(numbers) > 10:
            pulse.end.set()
        return {1: next(numbers)}

    pulse.beat, pulse.progress = pulse.end.wait, progress
    watched(pulse, pulse.end.wait, stall_s=0.01)


def test_spark_that_gives_a_sign_of_life_is_not_gone(pulse: FakePulse) -> None:
    numbers = count()
    pulse.beat = lambda: pulse.end.set() if next(numbers) > 5 else None
    watched(pulse, pulse.end.wait, stall_s=0.05)
    assert next(numbers) > 5


def test_time_spent_behind_a_slow_job_is_not_counted(pulse: FakePulse) -> None:
    """The limit is of a job, not of who waits for one."""
    ran = []

    def run(job: SparkJob) -> Any:
        ran.append([each.partition for each in job.ranges])
        if job.ranges[0].partition == "slow":
            fail_when(pulse.end)
        return {}

    async def main() -> list[Any]:
        threads, clock = HandlerThreads("test"), SystemClock()
        watch = Watch(
            pulse, threads=threads, clock=clock, limit_s=2, stall_s=LONG_S, gone=lambda gone: None
        )
        pacer = Pacer(target_s=LONG_S, max_events=9, overlap=True)
        jobs = Jobs(run, threads=threads, clock=clock, gather_s=0.01, pacer=pacer, watch=watch)
        wanted = [Range(partition=each, first=0, end=1) for each in ("slow", "1", "2")]
        asked = [jobs.handle(each, alone=True) for each in wanted]
        return await asyncio.gather(*asked, return_exceptions=True)

    slow, *others = asyncio.run(main())
    assert isinstance(slow, HandlerHung)
    assert others == [1, 1]
    assert ran == [["slow"], ["1"], ["2"]]


def test_a_cancelled_job_really_ends_in_spark(spark: SparkSession) -> None:
    pulse = SparkPulse(spark)

    def sleep(batches: Any) -> Any:
        time.sleep(LONG_S)
        yield from batches

    def job() -> None:
        with pulse.tagged(JOB.tag):
            spark.range(1).mapInArrow(sleep, "id long").collect()

    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getActiveJobsIds())
    with pytest.raises(HandlerHung):
        watched(pulse, job, limit_s=2)
    while set(tracker.getActiveJobsIds()) - before:  # Spark tells of a job's end a moment later
        time.sleep(0.05)
    assert spark.range(3).count() == 3


PIPELINE = """
import sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
import leasehold as lh
from leasehold.spark import local_session
from support.spark_pipeline import processor
from support.stop_executor import stop_executor

spark = local_session(1, settings={{"spark.driver.memory": "512m", **{settings!r}}})
spark.range(1).collect()
folder, jobs = Path({folder!r}), []

def on_batch(df, batch):
    if not jobs:
        print("answer", stop_executor(spark))
    jobs.append(batch)
    print("events", df.count())

processor(
    spark,
    lh.Hub.open(folder / "hub.db"),
    folder,
    on_batch=on_batch,
    schema=None,
    at_source=None,
    dead_letters=lh.open_dead_letters(f"sqlite:///{{folder}}/dead.db"),
    retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
    stall_s={stall_s!r},
).run(until_drained=True)
"""


def pipeline_under_attack(folder: Path, stall_s: float, settings: dict[str, str]) -> Any:
    """A process of its own, for its Spark may not live on. Its end is waited for no longer than
    need be: a Spark that is stopped keeps Java from ending."""
    tests = str(Path(__file__).parents[1])
    script = PIPELINE.format(tests=tests, folder=str(folder), stall_s=stall_s, settings=settings)
    end = "\nimport os; sys.stdout.flush(); sys.stderr.flush(); os._exit(code)\n"
    lines = script.replace("\n", "\n    ")
    script = f"code = 1\ntry:\n    {lines}\n    code = 0\nexcept BaseException:\n"
    script += "    import traceback; traceback.print_exc()\n" + end
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=False
    )


def owners(folder: Path, hub: lh.Hub) -> set[str | None]:
    async def look() -> set[str | None]:
        store = open_leases(folder)
        key = Group(namespace=hub.namespace, feed=hub.name, name="activity")
        leases = (await store.snapshot(key)).leases
        await store.close()
        return {each.owner for each in leases}

    return asyncio.run(look())


def test_a_pipeline_whose_spark_was_stopped_says_so_and_lets_its_leases_go(tmp_path: Path) -> None:
    with make_hub(tmp_path, 50, partitions=4) as hub:
        done = pipeline_under_attack(tmp_path, 5, {"spark.authenticate": "false"})
        assert "Spark does nothing any more" in done.stderr, done.stderr[-3000:]
        assert done.returncode != 0
        assert owners(tmp_path, hub) == {None}


def test_nobody_else_on_the_machine_can_stop_a_session_of_ours(tmp_path: Path) -> None:
    with make_hub(tmp_path, 50, partitions=4):
        done = pipeline_under_attack(tmp_path, 60, {})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Sasl" in done.stdout
    assert "events" in done.stdout
