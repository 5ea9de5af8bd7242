"""``leasehold container serve`` in a process of its own, as a user starts it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from azure.cosmos import CosmosClient

from support.command_line import PROGRAM


@dataclass(kw_only=True)
class ServedContainer:
    """A container's file, and a folder for those that clients make, with an endpoint in front."""

    path: Path
    port: int = 0
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def key_file(self) -> Path:
        return self.path.with_suffix(".key")

    def url_of(self, database: str, container: str) -> str:
        return f"cosmos://127.0.0.1:{self.port}/{database}/{container}"

    def start(self) -> None:
        command = [*PROGRAM, "container", "serve", str(self.path), "--port", str(self.port)]
        more = ["--folder", str(self.path.with_suffix(".d")), "--key-file", str(self.key_file)]
        self.process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError(f"the endpoint ended with {self.process.wait()}")

    def stop(self) -> None:
        assert self.process
        assert self.process.stdout
        self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()
        self.process = None

    @contextmanager
    def down(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        assert self.process
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def served_container(path: Path) -> Iterator[ServedContainer]:
    """With an empty database ``leases``."""
    served = ServedContainer(path=path)
    served.start()
    try:
        url = f"http://127.0.0.1:{served.port}/"
        with CosmosClient(url, served.key_file.read_text().strip()) as client:
            client.create_database("leases")
        yield served
    finally:
        if served.process is not None:
            served.stop()
