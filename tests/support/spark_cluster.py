"""A real Spark standalone cluster on loopback, for tests and measurements: a master and workers.

    with spark_cluster(workers=2, env={"PGPASSWORD": ...}) as cluster: ...    # cluster.url

Executors get their environment from the worker that starts them: give secrets as ``env``. A worker
can be taken away for a while, with its executors, as if its machine were gone:
``with cluster.workers[0].down():``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyspark

from support import servers

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
LISTEN = ("--host", "127.0.0.1", "--webui-port", "0")
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Master and workers only keep books: a second compiler would cost the others their cores."""
START_BOUND_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    down: servers.Outage
    """Killed with its executors, and started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    url: str
    workers: tuple[Worker, ...]


@contextmanager
def spark_cluster(
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    env: Mapping[str, str] | None = None,
) -> Iterator[SparkCluster]:
    """``cores`` and ``memory`` of each worker."""
    with ExitStack() as stack:
        folder = stack.enter_context(servers._folder())
        master = _start(stack, folder / "master", [f"{DEPLOY}.master.Master", "--port", "0"], env)
        servers._wait(master, lambda: _master_url(master) is not None, START_BOUND_S)
        url = _master_url(master)
        assert url is not None
        command: servers.Command = [f"{DEPLOY}.worker.Worker", "--cores", str(cores)]
        command += ["--memory", memory, url]
        programs = [
            _start(stack, folder / f"worker{number}", command, env)
            for number in range(1, workers + 1)
        ]
        for program in programs:
            servers._wait(program, partial(_registered, program), START_BOUND_S)
        yield SparkCluster(
            url=url, workers=tuple(Worker(down=partial(_down, program)) for program in programs)
        )


def environment(folder: Path) -> dict[str, str]:
    """Of whatever runs Spark here and keeps its files in the folder."""
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "POLARS_MAX_THREADS": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_WORKER_DIR": str(folder / "work"),
    }


def _start(
    stack: ExitStack, folder: Path, command: servers.Command, env: Mapping[str, str] | None
) -> servers._Program:
    folder.mkdir()
    daemon = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA}
    program = servers._Program(
        [SPARK_CLASS, command[0], *LISTEN, *command[1:]],
        folder,
        stop=signal.SIGTERM,
        env={**environment(folder), **daemon, **(env or {})},
    )
    stack.callback(_end, program)
    return program


def _end(program: servers._Program) -> None:
    """A worker ends its executors; whatever is left of its session is killed."""
    program.end()
    _kill(program)


def _kill(program: servers._Program) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.process.pid, signal.SIGKILL)
    program.process.wait()


@contextmanager
def _down(program: servers._Program) -> Iterator[None]:
    _kill(program)
    try:
        yield
    finally:
        program.start_again()
        servers._wait(program, partial(_registered, program), START_BOUND_S)


def _master_url(master: servers._Program) -> str | None:
    return master.search(r"Starting Spark master at (spark://\S+)")


def _registered(worker: servers._Program) -> bool:
    return worker.search(r"(Successfully registered with master)") is not None
