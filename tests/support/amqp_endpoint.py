"""``leasehold hub serve`` in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.feeds.hub import Hub
from support.command_line import PROGRAM


@dataclass(kw_only=True)
class ServedHub:
    """A hub's file with an endpoint in front. ``stop`` and ``start`` keep the port."""

    path: Path
    words: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def connection_string(self) -> str:
        return Path(f"{self.path}.connection").read_text().strip()

    def start(self) -> None:
        command = [*PROGRAM, "hub", "serve", str(self.path), "--port", str(self.port), "--json"]
        self.process = subprocess.Popen(
            [*command, *self.words], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout
        said = self.process.stdout.readline()
        assert said, f"the endpoint ended with {self.process.wait()}"
        self.port = int(json.loads(said)["port"])

    def stop(self, *, kill: bool = False) -> int:
        """Its exit code."""
        assert self.process
        assert self.process.stdout
        (self.process.kill if kill else self.process.terminate)()
        code = self.process.wait(60)
        self.process.stdout.close()
        self.process = None
        return code


@contextmanager
def served_hub(folder: Path, *words: str, partitions: int = 4) -> Iterator[ServedHub]:
    """A new hub, ``sensors`` in ``local``, and its endpoint on a free loopback port."""
    path = folder / "sensors.db"
    Hub.create(path, name="sensors", namespace="local", partitions=partitions).close()
    served = ServedHub(path=path, words=words)
    served.start()
    try:
        yield served
    finally:
        if served.process is not None:
            served.stop()
