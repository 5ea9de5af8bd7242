"""What an orchestrator asks of a process: is it alive, is it ready, does it stop in time."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.processing import FAST, PATIENCE_S, make_hub, wait_until

import leasehold as lh
from leasehold.processor.naming import name_for
from leasehold.settings import TIMING

GROUP = lh.Group(namespace="n", feed="f", name="g")
WORKER = """
import sys, threading, time
import leasehold as lh

registry = lh.Registry()
server = lh.serve_metrics(registry, port=0)
hub = lh.Hub.open("hub.db")
store = lh.open_store("sqlite:///leases.db")
{prelude}
processor = lh.Processor(
    hub, group="g", store=store, on_event={handler}, telemetry=registry, {settings}
)
print(server.url.rpartition("/")[0], flush=True)
processor.run()
print("over", flush=True)
"""
HANGS = """
heartbeat = store.heartbeat
async def stuck(group, member):
    if (folder / "stuck").exists():
        time.sleep(600)  # a store that blocks the loop instead of waiting for its answer
    return await heartbeat(group, member)
import pathlib
folder = pathlib.Path(".")
store.heartbeat = stuck
"""
WAITS = """
import pathlib
def wait(event):
    print("in hand", flush=True)
    while not pathlib.Path("go on").exists():
        time.sleep(0.01)
"""


@contextmanager
def worker(
    folder: Path, *, prelude: str = "", handler: str = "lambda event: None", **settings: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    given = ", ".join(f"{name}={value!r}" for name, value in {**FAST, **settings}.items())
    script = WORKER.format(prelude=prelude, handler=handler, settings=given)
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def ask(url: str, path: str, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
    """0: no answer."""
    try:
        with urllib.request.urlopen(url + path, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def test_a_process_is_ready_once_it_has_joined_and_while_it_renews(tmp_path: Path) -> None:
    make_hub(tmp_path, events=1)
    with worker(tmp_path) as (_, url):
        wait_until(lambda: ask(url, "/readyz") == (200, "ok\n"))
        assert ask(url, "/healthz") == (200, "ok\n")
        assert ask(url, "/metrics")[0] == 200
        assert ask(url, "/elsewhere")[0] == 404
        with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nobody else can write to the store
            wait_until(lambda: ask(url, "/readyz")[0] == 503)
            assert "not renewing" in ask(url, "/readyz")[1]
            assert ask(url, "/healthz") == (200, "ok\n"), "a restart would not help"
        wait_until(lambda: ask(url, "/readyz")[0] == 200)


def test_a_process_whose_upkeep_is_stuck_is_not_alive(tmp_path: Path) -> None:
    make_hub(tmp_path, events=1)
    with worker(tmp_path, prelude=HANGS, request_timeout_s=0.5) as (_, url):
        wait_until(lambda: ask(url, "/readyz")[0] == 200)
        (tmp_path / "stuck").touch()
        wait_until(lambda: ask(url, "/healthz")[0] == 503)
        assert "upkeep is stuck" in ask(url, "/healthz")[1]
        assert ask(url, "/readyz")[0] == 503


def test_a_stopped_process_does_not_answer_and_is_alive_again_when_it_goes_on(
    tmp_path: Path,
) -> None:
    make_hub(tmp_path, events=1)
    with worker(tmp_path) as (process, url):
        wait_until(lambda: ask(url, "/readyz")[0] == 200)
        process.send_signal(signal.SIGSTOP)
        assert ask(url, "/healthz", timeout_s=2)[0] == 0
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: ask(url, "/healthz")[0] == 200 and ask(url, "/readyz")[0] == 200)


def test_while_it_stops_it_is_alive_and_not_ready(tmp_path: Path) -> None:
    hub = make_hub(tmp_path, partitions=1, events=1)
    with worker(tmp_path, prelude=WAITS, handler="wait", drain_timeout_s=600.0) as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "in hand\n"
        wait_until(lambda: ask(url, "/readyz")[0] == 200)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: ask(url, "/readyz")[0] == 503)
        assert ask(url, "/healthz")[0] == 200
        (tmp_path / "go on").touch()
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, "over\n")
    hub.close()


def test_by_default_a_stop_fits_into_the_grace_period_of_kubernetes() -> None:
    # What a stop takes at most while the store answers: the work in hand, the round of upkeep that
    # notices, and waiting for what is broken off.
    at_most_s = TIMING.drain_timeout_s + TIMING.balance_interval_s + TIMING.request_timeout_s
    assert at_most_s < 30


def test_several_processors_are_as_well_as_the_worst_of_them(tmp_path: Path) -> None:
    registry, hub = lh.Registry(), make_hub(tmp_path, events=1)

    def made(instance: str, group: str) -> lh.Processor:
        return lh.Processor(
            hub,
            group=group,
            store=lh.open_store("memory://"),
            on_event=lambda event: None,
            telemetry=registry,
            instance=instance,
            **FAST,
        )

    assert registry.health() == lh.Health(alive=True, ready=True)
    running, waiting = made("a", "one"), made("b", "two")
    thread = threading.Thread(target=running.run)
    thread.start()
    wait_until(lambda: running.health is not None and running.health.ready)
    health = registry.health()
    assert (health.alive, health.ready) == (True, False)
    assert health.why == "b in t/h/two: not joined, or not renewing".replace(
        "t/h/two", str(waiting.group)
    )
    running.stop()
    thread.join()
    assert running.health is None
    hub.close()


def test_one_that_ended_by_an_error_is_not_alive(tmp_path: Path) -> None:
    hub, store = make_hub(tmp_path, events=1), lh.open_store("memory://")

    def fail(event: lh.Event) -> None:
        raise ValueError("no")

    processor = lh.Processor(
        hub,
        group="g",
        store=store,
        on_event=fail,
        retry=lh.Retry(attempts=1, then="stop"),
        **FAST,
    )
    with pytest.raises(ValueError, match="no"):
        processor.run()
    assert processor.health is not None
    assert not processor.health.alive
    assert "ended by ValueError" in processor.telemetry.health().why
    hub.close()


class Owner:
    over = False


def test_in_a_pod_that_is_told_its_name_an_instance_has_a_stable_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = {"POD_NAME": "alerts-7d4b9-x2x"}
    first, second = Owner(), Owner()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert name_for(first, GROUP, environ) == "alerts-7d4b9-x2x"
    assert name_for(second, GROUP, environ) == "alerts-7d4b9-x2x-2", "two of one group differ"
    first.over = True
    assert name_for(Owner(), GROUP, environ) == "alerts-7d4b9-x2x"
    monkeypatch.setattr(os, "getpid", lambda: 41)
    assert name_for(Owner(), GROUP, environ) == "alerts-7d4b9-x2x-41", "so do two processes"


def test_elsewhere_no_two_names_are_the_same() -> None:
    names = {name_for(Owner(), GROUP, {}) for _ in range(100)}
    assert len(names) == 100
