"""Programs of this folder as processes, none of which outlives the block that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
PATHS = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
BOUND_S = 120.0
"""For noticing what hangs, not for measuring."""


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
        return self.output.read_text(errors="replace")[-4_000:]


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
