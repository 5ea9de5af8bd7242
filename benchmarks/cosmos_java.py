"""Hosts of Azure's Java change feed processor, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyspark

ROOT = Path(__file__).parents[1]
JARS = ROOT / ".tools" / "jars" / "cosmos-java"
SOURCE = Path(__file__).with_name("CosmosHost.java")


class JavaHost:
    def __init__(
        self,
        served: Any,
        name: str,
        kind: str,
        feed: str,
        leases: str,
        *,
        interval_s: float = 1.0,
        ttl_s: float = 8.0,
        max_items: int = 20,
    ) -> None:
        """``served`` has the ``url`` and ``key`` of an account with the database ``homes``."""
        assert JARS.exists(), "make .tools/cosmos-java.ready fetches Azure's Java client"
        home = os.environ.get("JAVA_HOME")
        spark = Path(pyspark.__file__).parent / "jars"
        compiler = [*spark.glob("janino-*.jar"), *spark.glob("commons-compiler-*.jar")]
        path = os.pathsep.join(map(str, [*JARS.glob("*.jar"), *compiler]))
        words = [
            str(Path(home) / "bin" / "java") if home else "java",
            "-Xmx256m",
            "-DCOSMOS.HTTP_CONNECTION_WITHOUT_TLS_ALLOWED=true",
            "-cp",
            path,
            "org.codehaus.janino.SimpleCompiler",
            str(SOURCE),
            "CosmosHost",
        ]
        times = [int(seconds * 1000) for seconds in (interval_s, ttl_s)]
        self.process = subprocess.Popen(
            [*words, name, kind, feed, leases, *map(str, times), str(max_items)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ENDPOINT": served.url, "KEY": served.key},
        )
        self.lines: list[str] = []
        self.complaints: list[str] = []
        self._threads = [
            threading.Thread(target=self._follow, args=each, daemon=True)
            for each in ((self.process.stdout, self.lines), (self.process.stderr, self.complaints))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ids(self) -> list[str]:
        return [line for line in self.lines if line not in ("started", "stopped")]

    @property
    def started(self) -> bool:
        assert self.process.poll() is None, "".join(self.complaints[-30:])
        return "started" in self.lines

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> None:
        """In order: it lets its leases go."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            for thread in self._threads:
                thread.join(10)

    def _follow(self, stream: Any, into: list[str]) -> None:
        for line in stream:
            into.append(line.rstrip("\n"))
