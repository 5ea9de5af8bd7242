"""The disk of the running application is full for a while; all of it waits, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from application import Account, demo, parts, wait_for
from sent_readings import SentReadings

from homes.simulator.flaws import Flaws

pytestmark = [pytest.mark.takes_s(50), pytest.mark.timeout(600)]
SIZE = "64m"
FULL_S = 12.0
APPLICATION = Path(__file__).resolve().parents[1] / "support" / "application.py"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")


class Disk:
    """A small one, that only processes see which are started ``through`` it."""

    def __init__(self, pid: int, folder: Path) -> None:
        ours = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        self.through = ["nsenter", "--target", str(pid), *ours, "--mount"]
        self.folder = folder
        self.seen = Path(f"/proc/{pid}/root{folder}")
        """The same folder, as others see it."""
        self._filler = self.seen.parent / "filler"

    def fill(self) -> None:
        with self._filler.open("wb", 0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError as error:
                    assert error.errno == errno.ENOSPC  # noqa: PT017
                    return

    def free(self) -> None:
        self._filler.unlink()

    def account(self) -> Account:
        command = [*self.through, sys.executable, str(APPLICATION), str(self.folder)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, check=False, env=env
        )
        assert done.returncode == 0, done.stderr
        return Account(**json.loads(done.stdout))


@contextmanager
def small_disk(mount: Path, contents: Path) -> Iterator[Disk]:
    mount.mkdir()
    private = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    script = f'mount -t tmpfs -o size={SIZE} tmpfs "$0" && echo ready && cat'
    with subprocess.Popen(
        [*private, "sh", "-c", script, str(mount)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n", "this machine cannot mount a small disk"
        disk = Disk(holder.pid, mount / "demo")
        shutil.copytree(contents, disk.seen)
        yield disk
        assert holder.stdin is not None
        holder.stdin.close()


def test_a_full_disk_is_said_waited_for_and_costs_nothing(tmp_path: Path) -> None:
    sent = SentReadings.begin(tmp_path / "begun", Flaws())
    with (
        small_disk(tmp_path / "mount", sent.folder) as disk,
        demo(disk.folder, "--speed", "60", instances=1, through=disk.through) as town,
    ):
        url = town.until("http://127").strip()
        wait_for(lambda: all(disk.account().done.values()), "the pipeline")
        # It fills up while everybody is at work, and while one part is being started again.
        disk.fill()
        (sensors,) = parts(disk.folder, "sensors")
        os.kill(sensors, signal.SIGKILL)
        town.until("is full: everything waits")
        time.sleep(FULL_S)
        assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
        assert set(parts(disk.folder, "sensors")) - {sensors}
        disk.free()
        town.until("has room again")
        before = disk.account()
        wait_for(lambda: disk.account().total > before.total, "the sensors")
        then = disk.account()
        wait_for(lambda: disk.account().reaches(then), "the pipeline")
        assert disk.account().missing == {}

        assert town.end(signal.SIGINT) == 0, town.text
        after = disk.account()
        assert after.missing == {}
        assert after.letters == {}
        logs = {path.stem: path.read_text() for path in (disk.seen / "logs").iterdir()}
        # Not all need notice: what fits into pages that are there already is written all the same.
        assert "readings not sent" in logs["sensors"]
        assert "disk is full" in logs["sensors"]
        assert not [line for log in logs.values() for line in log.splitlines() if torn(line)]
        shutil.copytree(disk.seen, tmp_path / "ended")
    replace(sent, folder=tmp_path / "ended").require_all(kills=1, running=False)


def torn(line: str) -> bool:
    """Two lines in one. Only of ours: Java cuts its own short."""
    return bool(LINE.match(line)) and len(LINE.findall(line)) > 1
