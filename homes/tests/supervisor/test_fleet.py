"""Who looks after the processes, with parts that need no Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.processing import wait_until

from homes.supervisor import fleet as module
from homes.supervisor.fleet import Fleet
from homes.supervisor.part_config import PartConfig
from leasehold.errors import BadInput

PART = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("it joins the others", flush=True)
time.sleep(600)
"""
FAIL = "raise SystemExit(1)"


class Stage:
    def __init__(self, folder: Path) -> None:
        self.news: list[str] = []
        self.started: list[subprocess.Popen[bytes]] = []
        self.fails = 0
        """How many of the next starts fail."""
        self.part = PART
        config = PartConfig(part="", instance="", folder=str(folder), homes=1)
        self.fleet = Fleet(config, on_news=self.news.append)

    def popen(self, command: Any, **settings: Any) -> subprocess.Popen[bytes]:
        if self.fails:
            self.fails -= 1
            raise OSError("no room for another process")
        self.started.append(subprocess.Popen([sys.executable, "-c", self.part], **settings))
        return self.started[-1]

    def kill_last(self) -> None:
        wait_until(lambda: self.states() == ["running"])
        os.kill(self.started[-1].pid, signal.SIGKILL)

    def states(self) -> list[str]:
        return [each.state for each in self.fleet.instances()]

    def has_started(self, count: int) -> bool:
        return len(self.started) == count

    def has_told(self, counts: dict[str, int]) -> bool:
        return all(self.told(text) == count for text, count in counts.items())

    def told(self, text: str) -> int:
        return sum(text in each for each in self.news)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    stage = Stage(tmp_path)

    class Processes:  # in the place of the module, for the fleet alone
        Popen = staticmethod(stage.popen)
        DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT
        TimeoutExpired = subprocess.TimeoutExpired

    monkeypatch.setattr(module, "subprocess", Processes)
    yield stage
    stage.fleet.close()
    assert all(each.poll() is not None for each in stage.started)


def test_an_instance_that_ends_by_itself_is_started_again_under_its_name(stage: Stage) -> None:
    name = stage.fleet.add()
    stage.kill_last()
    wait_until(lambda: len(stage.started) == 2)
    wait_until(lambda: stage.states() == ["running"])
    assert [each.name for each in stage.fleet.instances()] == [name]
    assert stage.told(f"{name} ended by itself (SIGKILL) and is started again") == 1
    os.kill(stage.started[-1].pid, signal.SIGTERM)  # nobody asked the fleet for that
    wait_until(lambda: len(stage.started) == 3)
    assert stage.told(f"{name} ended by itself (exit code 0)") == 1


def test_an_instance_that_an_operator_stops_or_kills_stays_away(stage: Stage) -> None:
    stopped, killed, other = stage.fleet.add(), stage.fleet.add(), stage.fleet.add()
    wait_until(lambda: stage.states() == ["running"] * 3)
    stage.fleet.stop(stopped)
    stage.fleet.kill(killed)
    wait_until(lambda: stage.states() == ["ended", "ended", "running"])
    os.kill(stage.started[-1].pid, signal.SIGKILL)
    wait_until(lambda: len(stage.started) == 4)
    wait_until(lambda: stage.states() == ["ended", "ended", "running"])
    assert len(stage.started) == 4
    with pytest.raises(BadInput, match="no instance"):
        stage.fleet.stop(stopped)
    assert stage.told(f"{other} ended by itself") == 1


def test_one_that_cannot_be_started_is_tried_again_and_can_be_called_off(stage: Stage) -> None:
    name = stage.fleet.add()
    stage.fails = 3
    stage.kill_last()
    wait_until(lambda: len(stage.started) == 2)
    assert stage.told(f"{name} cannot be started now: no room for another process") == 3
    stage.fails = 10**6
    stage.kill_last()
    wait_until(lambda: stage.states() == ["starting again"])
    stage.fleet.stop(name)
    stage.fails = 0
    assert stage.states() == ["ended"]
    assert len(stage.started) == 2


def test_what_dies_at_once_is_started_again_after_longer_and_longer_pauses(stage: Stage) -> None:
    stage.fleet.add()
    while len(stage.started) < 4:
        before = len(stage.started)
        stage.kill_last()
        wait_until(partial(stage.has_started, before + 1))
    (part,) = stage.fleet._pipeline.values()
    assert part.pause_s == pytest.approx(8 * module.AGAIN_S)


def test_a_disk_that_fills_up_is_told_once_and_so_is_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1 << 30]

    class Usage:
        @staticmethod
        def disk_usage(folder: Path) -> Any:
            return type("Usage", (), {"free": free[0]})

    monkeypatch.setattr(module, "shutil", Usage)
    for left, full, room in ((1 << 30, 0, 0), (1000, 1, 0), (1 << 30, 1, 1), (0, 2, 1)):
        free[0] = left
        wait_until(partial(stage.has_told, {"is full": full, "has room again": room}))


def test_what_fails_at_once_again_and_again_is_given_up_with_its_own_error(stage: Stage) -> None:
    stage.part = "import sys; sys.exit('there is no such module')"
    stage.fleet.add()
    wait_until(lambda: bool(stage.fleet.failed))
    assert "failed 3 times in a row" in stage.fleet.failed
    assert "there is no such module" in stage.fleet.failed


def test_what_is_killed_or_has_worked_is_never_given_up(stage: Stage) -> None:
    stage.part = f"print('it joins the others', flush=True); {FAIL}"
    stage.fleet.add()
    wait_until(lambda: len(stage.started) >= 5)
    stage.part = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    begun = len(stage.started)
    wait_until(lambda: len(stage.started) >= begun + 5)
    assert stage.fleet.failed == ""
