"""All processes of the application on this machine: started, looked after, stopped in order."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from homes.supervisor.part_config import PartConfig
from leasehold import BadInput

log = logging.getLogger("leasehold")
INSTANCES_MAX = 8
NEWS_KEPT = 50
STOP_S = 90.0
LOOK_S = 0.5
AGAIN_S, AGAIN_MAX_S = 0.5, 30.0
LIVED_S = 20.0
"""A part that lived so long is started again at once; others wait twice as long each time."""
FAILURES_MAX = 3
"""A part that fails so often in a row without ever working will not work the next time."""
TAIL_LINES = 8
FULL_BYTES = 1 << 20
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class FleetInstance(NamedTuple):
    name: str
    state: str
    """Such as ``running``, ``starting``, ``stopping``, ``ended``."""


class FleetNews(NamedTuple):
    """Something that happened to a process, in words."""

    at: float
    text: str


@dataclass(slots=True)
class _Part:
    config: PartConfig
    popen: subprocess.Popen[bytes]
    log: Path
    log_begin: int
    """Where in the log this life of it begins."""
    started_at: float
    pause_s: float
    """How long to wait before it is started again."""
    asked: str = ""
    """What it was asked to do: ``stopping``, or ``killed``."""
    again_at: float | None = None
    """Ended by itself: when it is to be started again."""
    failures: int = 0
    """How often in a row it has failed without ever working."""

    @property
    def ended(self) -> bool:
        return self.popen.poll() is not None

    @property
    def over(self) -> bool:
        """Ended, and meant to be."""
        return self.ended and bool(self.asked)

    @property
    def state(self) -> str:
        if self.ended:
            return "ended" if self.asked else "starting again"
        if self.asked:
            return "stopping"
        return "running" if b"joins " in _head(self.log, self.log_begin) else "starting"


class Fleet:
    """The pipeline's instances, and the other parts beside them. Whatever ends without being asked
    to is started again, under its name, so that it takes its leases back at once. Verbs may take a
    while; ``BadInput`` is for the user to read."""

    def __init__(
        self, config: PartConfig, *, on_news: Callable[[str], None] = lambda text: None
    ) -> None:
        """``config``: what all parts have in common. ``on_news`` hears what happens."""
        self._config, self._on_news = config, on_news
        self._news: deque[FleetNews] = deque(maxlen=NEWS_KEPT)
        self._logs = config.places.logs
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._pipeline: dict[str, _Part] = {}
        self._others: dict[str, _Part] = {}
        self._count = 0
        self._full = False
        self._failed = ""
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_after, daemon=True)
        self._watch.start()

    def instances(self) -> Sequence[FleetInstance]:
        with self._lock:
            return [FleetInstance(name, part.state) for name, part in self._pipeline.items()]

    def news(self) -> Sequence[FleetNews]:
        """The last few, the newest first."""
        return list(self._news)

    @property
    def failed(self) -> str:
        """What cannot work, with its own error text; empty while everything may."""
        return self._failed

    def add(self) -> str:
        """Start one more instance of the pipeline; its name."""
        with self._lock:
            if sum(not part.over for part in self._pipeline.values()) >= INSTANCES_MAX:
                raise BadInput(f"{INSTANCES_MAX} instances are as many as this machine is given")
            self._count += 1
            # The process is in the name, so that one of an earlier run is not taken for it.
            name = f"pipeline-{self._count}-{os.getpid()}"
            self._pipeline[name] = self._start("pipeline", name)
        self._note(f"{name} starts")
        return name

    def stop(self, name: str) -> None:
        """In good order: it hands its partitions on."""
        self._ask(name, "stopping", signal.SIGTERM)
        self._note(f"{name} is asked to stop")

    def kill(self, name: str) -> None:
        """At once, as if its machine were gone, with its Java and its Python workers."""
        self._ask(name, "killed", signal.SIGKILL)
        self._note(f"{name} is killed")

    def start_part(self, part: str) -> None:
        """One of the parts there is one of: alerts, sensors."""
        with self._lock:
            self._others[part] = self._start(part, f"{part}-{os.getpid()}")
        self._note(f"{part} start")

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

    def _note(self, text: str) -> None:
        self._news.appendleft(FleetNews(time.time(), text))
        self._on_news(text)

    def _start(self, part: str, name: str) -> _Part:
        config = replace(self._config, part=part, instance=name, starter=os.getpid())
        path = self._logs / f"{part if part != 'pipeline' else name}.log"
        try:
            with os.fdopen(os.open(path, APPEND, 0o600), "ab") as file:
                begin = file.tell()
                popen = subprocess.Popen(
                    [sys.executable, "-m", "homes.supervisor.run_part", part, name],
                    env=config.environ(),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for us; and one signal gets them all
                )
        except OSError as error:  # no room for its log, or no memory
            raise BadInput(f"{name} cannot be started now: {error}") from error
        return _Part(config, popen, path, begin, time.monotonic(), AGAIN_S)

    def _ask(self, name: str, what: str, number: signal.Signals) -> None:
        with self._lock:
            part = self._pipeline.get(name)
            if part is None or part.over:
                raise BadInput(f"there is no instance {name!r} running")
            if what == "killed" or not part.asked:
                part.asked = what
            if number != signal.SIGKILL:
                part.popen.send_signal(number)
            elif not part.ended:
                _signal(part.popen, number)

    def _look_after(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self._look_at_disk()
                with self._lock:
                    for parts in (self._others, self._pipeline):
                        for name, part in parts.items():
                            parts[name] = self._looked_after(name, part)
            except Exception:  # a watch that ends unseen would look after nothing any more
                log.exception("looking after the processes failed; it goes on")

    def _looked_after(self, name: str, part: _Part) -> _Part:
        """The part, or its next life."""
        if not part.ended or part.asked or self._over.is_set():
            return part
        now = time.monotonic()
        if part.again_at is None:
            if now - part.started_at >= LIVED_S:
                part.pause_s = AGAIN_S
            part.again_at = now + part.pause_s
            how = _words(part.popen.returncode)
            part.failures = part.failures + 1 if self._never_worked(part, now) else 0
            if part.failures >= FAILURES_MAX and not self._failed:
                tail = _tail(part.log, part.log_begin)
                self._failed = f"{name} failed {part.failures} times in a row:\n{tail}"
            self._note(f"{name} ended by itself ({how}) and is started again; see {part.log}")
        if now < part.again_at:
            return part
        pause_s = min(2 * part.pause_s, AGAIN_MAX_S)
        try:
            started = self._start(part.config.part, part.config.instance)
        except BadInput as error:
            self._note(str(error))
            part.again_at, part.pause_s = now + pause_s, pause_s
            return part
        started.pause_s, started.failures = pause_s, part.failures
        return started

    def _never_worked(self, part: _Part, now: float) -> bool:
        """It gave up itself, at once. A kill, or a full disk, is not its own fault."""
        at_once = now - part.started_at < LIVED_S and b"joins " not in _head(
            part.log, part.log_begin
        )
        return part.popen.returncode > 0 and at_once and not self._full

    def _look_at_disk(self) -> None:
        """Every part says so in its log, but that is on the same disk."""
        folder = self._config.places.folder
        full = shutil.disk_usage(folder).free < FULL_BYTES * (2 if self._full else 1)
        if full != self._full:
            self._full = full
            if full:
                self._note(f"the disk of {folder} is full: everything waits; make room")
            else:
                self._note(f"the disk of {folder} has room again: everything goes on")


def _head(log: Path, begin: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(begin)
            return file.read(1 << 16)
    except OSError:
        return b""


def _tail(log: Path, begin: int) -> str:
    """The last lines that this life of a part has written."""
    lines = _head(log, begin).decode(errors="replace").splitlines()
    return "\n".join(line for line in lines[-TAIL_LINES:] if line.strip())


def _words(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


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
