"""All processes of the application on this machine: started, looked after, stopped in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leasehold.errors import BadInput
from leasehold.homes.parts import Said
from leasehold.homes.web.fleet import FleetInstance

INSTANCES_MAX = 8
STOP_S = 90.0
LOOK_S = 0.5


@dataclass(slots=True)
class _Part:
    said: Said
    popen: subprocess.Popen[bytes]
    log: Path
    asked: str = ""
    """What it was asked to do: ``stopping``, or ``killed``."""
    started_at: float = 0.0

    @property
    def state(self) -> str:
        if self.popen.poll() is not None:
            return "killed" if self.asked == "killed" else "ended"
        if self.asked:
            return "stopping"
        opened = b"joins " in _head(self.log)
        return "running" if opened else "starting"


class Crew:
    """A ``Fleet`` of pipeline instances, and the other parts beside it."""

    def __init__(self, said: Said, *, told: Callable[[str], None] = lambda text: None) -> None:
        """``said``: what all parts have in common. ``told`` hears what happens."""
        self._said, self._told = said, told
        self._logs = said.places.folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._pipeline: dict[str, _Part] = {}
        self._others: dict[str, _Part] = {}
        self._count = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_after, daemon=True)
        self._watch.start()

    def instances(self) -> Sequence[FleetInstance]:
        with self._lock:
            return [FleetInstance(name, part.state) for name, part in self._pipeline.items()]

    def add(self) -> str:
        with self._lock:
            alive = [part for part in self._pipeline.values() if part.popen.poll() is None]
            if len(alive) >= INSTANCES_MAX:
                raise BadInput(f"{INSTANCES_MAX} instances are as many as this machine is given")
            self._count += 1
            # The process is in the name, so that one of an earlier run is not taken for it.
            name = f"pipeline-{self._count}-{os.getpid()}"
            self._pipeline[name] = self._start("pipeline", name)
        self._told(f"{name} starts")
        return name

    def stop(self, name: str) -> None:
        part = self._known(name)
        part.asked = part.asked or "stopping"
        part.popen.terminate()
        self._told(f"{name} is asked to stop")

    def kill(self, name: str) -> None:
        """With its Java and its Python workers."""
        part = self._known(name)
        part.asked = "killed"
        _signal(part.popen, signal.SIGKILL)
        self._told(f"{name} is killed")

    def start_part(self, part: str) -> None:
        """One of the parts there is one of: alerts, sensors."""
        with self._lock:
            self._others[part] = self._start(part, f"{part}-{os.getpid()}")
        self._told(f"{part} start")

    def stop_part(self, part: str) -> None:
        """Ask it to, and wait."""
        with self._lock:
            found = self._others.pop(part, None)
        if found is not None:
            found.popen.terminate()
            _ended([found])

    def close(self) -> None:
        """Everything, in order; what does not end is killed."""
        self._over.set()
        self.stop_part("sensors")
        with self._lock:
            parts = [*self._pipeline.values(), *self._others.values()]
        for part in parts:
            part.asked = part.asked or "stopping"
            part.popen.terminate()
        _ended(parts)

    def _start(self, part: str, name: str) -> _Part:
        said = replace(self._said, part=part, instance=name)
        log = self._logs / f"{part if part != 'pipeline' else name}.log"
        with log.open("ab" if part != "pipeline" else "wb") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", "leasehold.homes.parts", said.text()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process; and one signal gets them all
            )
        return _Part(said, popen, log, started_at=time.monotonic())

    def _known(self, name: str) -> _Part:
        with self._lock:
            part = self._pipeline.get(name)
        if part is None or part.popen.poll() is not None:
            raise BadInput(f"there is no instance {name!r} running")
        return part

    def _look_after(self) -> None:
        """Parts there is one of come back if they die; pipeline instances are replaceable."""
        while not self._over.wait(LOOK_S):
            with self._lock:
                for name, part in list(self._others.items()):
                    if part.popen.poll() is not None and not self._over.is_set():
                        self._told(f"{name} ended with {part.popen.returncode}: see {part.log}")
                        self._over.wait(min(5.0, 1.0 + time.monotonic() - part.started_at))
                        self._others[name] = self._start(name, f"{name}-{os.getpid()}")


def _head(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def _ended(parts: Sequence[_Part]) -> None:
    deadline = time.monotonic() + STOP_S
    for part in parts:
        try:
            part.popen.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(part.popen, signal.SIGKILL)
            part.popen.wait()


def _signal(popen: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(popen.pid, number)
    except ProcessLookupError:
        return
