"""Programs of this folder as processes, none of which outlives the block that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
PATHS = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
BOUND_S = 120.0
"""For noticing what hangs, not for measuring."""
STACKS_S = 5.0
"""A process without Python's stacks (one of another language) may take its time to end."""
PRINTED = 16_000


class WentWrong(Exception):
    """Something hung, or a process ended as it should not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    label: str
    popen: subprocess.Popen[bytes]
    output: Path

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def printed(self) -> str:
        """The end of it."""
        return self.output.read_text(errors="replace")[-PRINTED:]


class Processes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Process] = []

    def start(self, label: str, module: str, *arguments: str) -> Process:
        output = self.folder / f"{label}.out"
        with output.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", f"chaos.{module}", *arguments],
                cwd=self.folder,
                # Where it was, should it end by a fault of a native library.
                env={**os.environ, "PYTHONPATH": PATHS, "PYTHONFAULTHANDLER": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal is for the tests; they end what they started.
                start_new_session=True,
            )
        process = Process(label=label, popen=popen, output=output)
        self._started.append(process)
        return process

    def stacks(self) -> str:
        """What each that still runs is at, in all of its threads; it is ended by that."""
        running = [each for each in self._started if each.running]
        for each in running:
            each.popen.send_signal(signal.SIGCONT)
            each.popen.send_signal(signal.SIGABRT)
        for each in running:
            with suppress(subprocess.TimeoutExpired):
                each.popen.wait(STACKS_S)
        return "\n".join(f"--- {each.label}:\n{each.printed()}" for each in running)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._started:
            each.popen.kill()  # also ends one that is stopped
            each.popen.wait()


def wait_until(
    holds: Callable[[], bool],
    what: str,
    bound_s: float = BOUND_S,
    moves: Callable[[], object] = lambda: None,
) -> None:
    """``moves``: what may go on for as long as it likes, if only it changes within the bound."""
    moved, deadline = moves(), time.monotonic() + bound_s
    while not holds():
        if (now := moves()) != moved:
            moved, deadline = now, time.monotonic() + bound_s
        if time.monotonic() > deadline:
            raise WentWrong(f"not within {bound_s:g} s: {what}")
        time.sleep(0.05)
