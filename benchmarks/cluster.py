"""``make cluster``: the application on servers, all on loopback and without Docker.

Three Kafka nodes, PostgreSQL, Azurite and a Spark standalone cluster with two workers; on them
``homes demo --config homes.toml`` and ``homes web``, as a user would start them. On the way a
broker, a Spark worker and an instance are killed. In the end every reading is accounted for, or it
fails.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from azure.storage.blob import BlobServiceClient
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from rich.console import Console
from rich.markup import escape
from support import kafka, servers, spark_cluster
from typer import Exit, Option, run

from benchmarks import cluster_report
from benchmarks.cluster_report import ClusterResult, Kill
from benchmarks.watch import Seen, even, watch_group, watch_pages
from homes.local.places import ACTIVITY, Places
from homes.web.secrets import Secrets
from leasehold import Estimator, LeaseholdError, open_feed, open_store, strict_json

PARTITIONS = 16
OUTAGE_S = 30.0
"""How long a broker or a worker is gone before whatever looks after it starts it again."""
KILL_AT = (0.2, 0.45, 0.7)
"""Of the whole time, so that the first minutes and the last are undisturbed."""
LOOK_S, TELL_S = 2.0, 10.0
READY_S = 300.0
SETTLE_S = 420.0
STOP_S = 60.0
NEEDED_GB = 6
LOG = {"delta.logRetentionDuration": "interval 2 minutes", "delta.checkpointInterval": "50"}
console = Console(highlight=False, soft_wrap=True)


class ClusterFailed(Exception):
    """For the user to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    kafka: kafka.Kafka
    spark: spark_cluster.SparkCluster
    urls: dict[str, str]
    """By their names in ``homes.toml``. The secrets are in the environment."""


def cluster(
    *,
    homes: Annotated[int, Option(help="How many homes.", min=1, max=1_000_000)] = 100_000,
    minutes: Annotated[float, Option(help="How long they send.", min=0.1)] = 10.0,
    instances: Annotated[int, Option(help="Spark applications.", min=1, max=2)] = 2,
    brokers: Annotated[int, Option(help="Kafka nodes.", min=1, max=3)] = 3,
    malformed: Annotated[float, Option(help="The share of malformed readings.")] = 1e-5,
    report: Annotated[Path, Option(help="Where the report goes.")] = Path("build/cluster"),
    folder: Annotated[
        Path | None, Option(help="The application's own folder; else a temporary one.")
    ] = None,
) -> None:
    """Run the application on servers that are started for it, kill some, and account for all."""
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    try:
        _require_memory()
        with ExitStack() as stack:
            place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            there = stack.enter_context(_servers(brokers))
            app = stack.enter_context(
                ClusterApp(there, place, homes=homes, instances=instances, malformed=malformed)
            )
            result = _watched(app, 60 * minutes)
    except KeyboardInterrupt:
        console.print("stopped before its end; there is no report")
        raise Exit(130) from None
    except (ClusterFailed, servers.ServerFailed, LeaseholdError) as error:
        console.print(f"[red]failed:[/] {escape(str(error))}")
        raise Exit(1) from error
    cluster_report.write(result, report)
    console.print(cluster_report.text(result), markup=False)
    console.print(f"report: {report / 'README.md'}")
    if result.troubles:
        raise Exit(1)


def _stop(*_: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # once is enough
    console.print("stopping everything in order")
    raise KeyboardInterrupt


def _require_memory() -> None:
    known = Path("/proc/meminfo")
    if not known.exists():  # no Linux
        return
    with known.open() as lines:
        found = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    free_gb = found["MemAvailable"] / 2**20
    if free_gb < NEEDED_GB:
        raise ClusterFailed(f"{free_gb:.1f} GB of memory are free; about {NEEDED_GB} GB are needed")


@contextmanager
def _servers(brokers: int) -> Iterator[Servers]:
    with ExitStack() as stack:

        def start(what: str, context: Any) -> Any:
            began = time.monotonic()
            started = stack.enter_context(context)
            console.print(f"{what}: up after {time.monotonic() - began:.0f} s")
            return started

        database: servers.Postgres = start("PostgreSQL", servers.postgres())
        blobs: servers.Azurite = start("Azurite", servers.azurite())
        nodes: kafka.Kafka = start(f"Kafka, nodes: {brokers}", kafka.cluster(brokers))
        env = {
            "PGPASSWORD": database.password,
            "AZURE_STORAGE_KEY": blobs.key,
            # So the table's client knows that it is the emulator, which cannot list from a blob on.
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": blobs.url.removesuffix(f"/{blobs.account}"),
        }
        os.environ.update(env)
        # A worker has room for all instances, should the other one be gone.
        spark: spark_cluster.SparkCluster = start(
            "Spark, a master and 2 workers",
            spark_cluster.spark_cluster(workers=2, cores=2, memory="2g", env=env),
        )
        with BlobServiceClient.from_connection_string(blobs.connection_string) as service:
            service.create_container("homes")
        archive = f"azure-blob://{blobs.account}/homes?prefix=archive&endpoint={blobs.url}"
        urls = {
            "feed": nodes.url(nodes.topic(PARTITIONS, "readings")),
            "store": database.url,
            "dead_letters": database.url,
            "table": "az://homes/activity",
            "archive": archive,
            "spark": spark.url,
        }
        yield Servers(kafka=nodes, spark=spark, urls=urls)


class ClusterApp:
    """``homes demo`` and ``homes web`` as processes, on the servers."""

    def __init__(
        self, there: Servers, folder: Path, *, homes: int, instances: int, malformed: float
    ) -> None:
        self.there, self.homes, self.instances = there, homes, instances
        self.places = Places(folder / "data")
        self._told = 0
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "homes.toml"
        config.write_text("".join(f'{name} = "{url}"\n' for name, url in there.urls.items()))
        console.print(f"homes demo --config homes.toml, with {homes:,} homes, on", markup=False)
        console.print(config.read_text(), markup=False)
        words = ["demo", "--headless", "--folder", self.places.folder, "--config", config]
        words += ["--homes", str(homes), "--instances", str(instances), "--history-hours", "0"]
        self._demo = _homes(folder / "demo", [*words, "--malformed", str(malformed)])
        self._web: servers._Program | None = None
        self._config = config

    def __enter__(self) -> ClusterApp:
        return self

    def __exit__(self, *_: object) -> None:
        if self._web is not None:
            self._web.end()
        if self._demo.process.poll() is None:
            self._demo.process.terminate()
            time.sleep(1.0)  # the second one: do not wait until all is aggregated
            self._demo.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._demo.process.wait(STOP_S)
            self._demo.end()

    def open_page(self) -> str:
        words = ["web", self.places.folder, "--config", self._config, "--port", "0", "--json"]
        self._web = _homes(self.places.folder.parent / "web", words)
        self.wait(lambda: self._page_url() is not None, "the web page is up", READY_S)
        url = self._page_url()
        assert url is not None
        password = Secrets.load(self.places.secrets).operator_password
        console.print(f"the page: {url}, an operator's password: {password}", markup=False)
        return url

    def _page_url(self) -> str | None:
        return self._web.search(r'"url": "([^"]+)"') if self._web else None

    def wait(self, holds: Callable[[], bool], what: str, bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        while not holds():
            self.require_alive()
            if time.monotonic() > deadline:
                raise ClusterFailed(f"not within {bound_s:g} s: {what}")
            time.sleep(0.5)

    def require_alive(self) -> None:
        for line in self._demo.printed().splitlines()[self._told :]:
            self._told += 1
            if "pipeline-" in line:
                console.print(f"  supervisor: {line}", markup=False)
        for name, each in (("homes demo", self._demo), ("homes web", self._web)):
            if each is not None and each.process.poll() is not None:
                raise ClusterFailed(f"{name} ended too early:\n{each.printed()[-3000:]}")

    def kill_instance(self) -> None:
        """As if its machine were gone; the demo's supervisor starts it again."""
        name = f"pipeline-1-{self._demo.process.pid}"
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended meanwhile
            if b"homes.supervisor.run_part" in words and name.encode() in words:
                os.killpg(int(entry.name), signal.SIGKILL)
                return
        raise ClusterFailed(f"there is no process of {name}")

    def finish(self) -> dict[str, int]:
        """Let the sensors stop, all be aggregated, and every reading be accounted for."""
        self._demo.process.terminate()
        deadline = time.monotonic() + SETTLE_S
        while self._demo.process.poll() is None:
            if time.monotonic() > deadline:
                raise ClusterFailed(f"homes demo has not ended {SETTLE_S:g} s after SIGTERM")
            time.sleep(0.5)
        last = self._demo.printed().strip().splitlines()[-1:]
        try:
            accounts: dict[str, int] = strict_json.loads("".join(last))
        except ValueError:
            raise ClusterFailed(f"homes demo failed:\n{self._demo.printed()[-3000:]}") from None
        return accounts


def _homes(folder: Path, words: list[Any]) -> servers._Program:
    folder.mkdir(parents=True)
    command: servers.Command = [sys.executable, "-m", "homes", *map(str, words)]
    env = spark_cluster.environment(folder) | {"PYTHONUNBUFFERED": "1"}
    return servers._Program(command, folder, stop=signal.SIGTERM, env=env)


def _watched(app: ClusterApp, seconds: float) -> ClusterResult:
    urls = app.there.urls
    feed, over = open_feed(urls["feed"]), threading.Event()
    with closing(feed):
        estimator = Estimator(feed, group=ACTIVITY, store=open_store(urls["store"]))
        began = time.monotonic()
        app.wait(lambda: _joined(estimator, app), "all instances have partitions", READY_S)
        console.print(f"all instances at work after {time.monotonic() - began:.0f} s")
        app.wait(lambda: _keeps_log_short(urls["table"]), "the table is there", READY_S)
        page, seen, cpu = app.open_page(), Seen(), _Cpu()
        pages = (seen, page, app.places.secrets, app.homes, over)
        watchers = [
            threading.Thread(target=watch_group, args=(seen, feed, urls["store"], over, LOOK_S)),
            threading.Thread(target=watch_pages, args=pages),
            threading.Thread(target=_tell, args=(seen, over)),
        ]
        for each in watchers:
            each.start()
        try:
            kills = _kill_all(app, seen, seconds)
            busy, seconds = cpu.busy(), seen.now()
        finally:
            over.set()
            for each in watchers:
                each.join()
            estimator.close()
    console.print("the sensors stop; waiting until all is aggregated")
    return ClusterResult(
        homes=app.homes,
        seconds=seconds,
        brokers=len(app.there.kafka.nodes),
        instances=app.instances,
        seen=seen,
        kills=kills,
        accounts=app.finish(),
        busy_share=busy,
    )


def _keeps_log_short(table: str) -> bool:
    """Whoever commits lists what came since its last look. Azure lists from there on; the emulator
    lists the whole log, which would cost more from minute to minute. False: not there yet."""
    try:
        DeltaTable(table).alter.set_table_properties(LOG)
    except (TableNotFoundError, CommitFailedError):
        return False
    return True


def _joined(estimator: Estimator, app: ClusterApp) -> bool:
    try:
        return even(estimator, app.instances, PARTITIONS)
    except LeaseholdError:  # not begun
        return False


def _kill_all(app: ClusterApp, seen: Seen, seconds: float) -> list[Kill]:
    outage_s, calm_s = min(OUTAGE_S, seconds / 20), seconds / 5
    ways: list[tuple[str, Callable[[], Any] | None]] = [
        ("a Kafka broker", app.there.kafka.nodes[-1].down),
        ("a Spark worker", app.there.spark.workers[0].down),
        ("an instance", None),
    ]
    kills: list[Kill] = []
    for share, (what, down) in zip(KILL_AT, ways, strict=True):
        # A busy machine takes its time to start things again.
        _until(app, seen, max(share * seconds, kills[-1].back + calm_s if kills else 0.0))
        kills.append(Kill(at=seen.now(), back=seen.now(), what=what))
        console.print(f"{_clock(seen.now())} {what} is killed")
        if down is None:
            app.kill_instance()
            continue
        with down():
            _until(app, seen, seen.now() + outage_s)
        kills[-1] = replace(kills[-1], back=seen.now())
        console.print(f"{_clock(seen.now())} {what} is back, {kills[-1].away_s:.0f} s later")
    _until(app, seen, max(seconds, kills[-1].at + calm_s))
    return kills


def _until(app: ClusterApp, seen: Seen, at_s: float) -> None:
    while (left_s := at_s - seen.now()) > 0:
        app.require_alive()
        time.sleep(min(left_s, 0.5))


def _tell(seen: Seen, over: threading.Event) -> None:
    """In a thread of its own: servers take their time to start again."""
    while not over.wait(TELL_S):
        console.print(f"{_clock(seen.now())} {_progress(seen)}", markup=False)


def _progress(seen: Seen) -> str:
    owned = seen.owned[-1][1] if seen.owned else {}
    shares = " + ".join(str(count) for _, count in sorted(owned.items()))
    rate = f"{seen.rate[-1][1]:,.0f} readings/s" if seen.rate else "no readings yet"
    lag = f"{seen.lag[-1][1]:,.0f} behind" if seen.lag else "lag not known"
    fresh = sorted(value for _, value in seen.fresh[-100:])
    newest = f", a reading is visible after {fresh[len(fresh) // 2]:.1f} s" if fresh else ""
    return f"{rate}; {lag}; partitions {shares}{newest}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class _Cpu:
    """How busy all cores were since this was made."""

    def __init__(self) -> None:
        self._before = self._read()

    @staticmethod
    def _read() -> tuple[int, int]:
        with Path("/proc/stat").open() as lines:
            ticks = [int(word) for word in re.findall(r"\d+", lines.readline())]
        return sum(ticks[:8]), ticks[3] + ticks[4]

    def busy(self) -> float:
        now = self._read()
        every, idle = now[0] - self._before[0], now[1] - self._before[1]
        return 1 - idle / max(1, every)


if __name__ == "__main__":
    run(cluster)
