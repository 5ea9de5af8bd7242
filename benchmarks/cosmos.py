"""Our change feed processor beside Azure's for Java: both on one endpoint, each host a process of
its own, with the same intervals, time to live and batch size.

The endpoint is in this process, so that it can be asked what it charged; its charges are estimates,
and the same for both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from azure.cosmos import CosmosClient, PartitionKey

from benchmarks.cosmos_java import JavaHost
from benchmarks.row import Row
from leasehold.endpoints.cosmos import CosmosEndpoint, EndpointThread, keep_key

INTERVAL_S, TTL_S, MAX_ITEMS = 3.0, 10.0, 100
RANGES = 8
NEXT = 1_000_000
"""The number of the first change after a host was killed."""
PATIENCE_S = 240.0
OURS, JAVA = "ours", "azure-cosmos (Java)"


class MeasuredHost(Protocol):
    process: Any

    @property
    def ids(self) -> list[str]: ...


class BenchAccount(NamedTuple):
    endpoint: CosmosEndpoint
    key: str

    @property
    def url(self) -> str:
        return self.endpoint.url

    def cosmos_url(self, container: str) -> str:
        return f"cosmos://127.0.0.1:{self.endpoint.port}/homes/{container}"

    def container(self, name: str) -> Any:
        return self.endpoint.account.database("homes").collection(name).container


class OurHost:
    def __init__(self, account: BenchAccount, name: str, feed: str, leases: str) -> None:
        said = {
            "feed": account.cosmos_url(feed),
            "leases": account.cosmos_url(leases),
            "instance": name,
            "interval_s": INTERVAL_S,
            "ttl_s": TTL_S,
            "max_items": MAX_ITEMS,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.cosmos_app", json.dumps(said)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "AZURE_COSMOS_KEY": account.key},
        )
        self.ids: list[str] = []
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.ids.append(line.rstrip("\n"))


def run(
    *, changes: int = 20_000, balancing: bool = True, folder: Path | None = None
) -> Iterator[Row]:
    """``balancing``: with a second host that joins, and one that is killed."""
    with tempfile.TemporaryDirectory(dir=folder) as place, ExitStack() as stack:
        key = keep_key(Path(place) / "master.key")
        endpoint = CosmosEndpoint(folder=Path(place) / "account", key=key, port=0)
        account = BenchAccount(stack.enter_context(EndpointThread(endpoint)), key)
        with CosmosClient(account.url, key) as client:
            client.create_database("homes")
            kinds: dict[str, Callable[[str, str, str], MeasuredHost]] = {
                JAVA: lambda name, feed, leases: JavaHost(
                    account, name, "plain", feed, leases,
                    interval_s=INTERVAL_S, ttl_s=TTL_S, max_items=MAX_ITEMS,
                ),
                OURS: lambda name, feed, leases: OurHost(account, name, feed, leases),
            }  # fmt: skip
            plain: dict[str, float] = {}
            for number, (kind, start) in enumerate(kinds.items()):
                for what, value, unit in _measured(
                    account, client, number, start, changes, balancing=balancing
                ):
                    beside = plain.setdefault(what, value)
                    yield Row(
                        what=f"{what}, {kind}",
                        value=value,
                        unit=unit,
                        ratio=None if kind == JAVA or not beside else value / beside,
                    )


def _measured(
    account: BenchAccount,
    client: CosmosClient,
    number: int,
    start: Callable[[str, str, str], MeasuredHost],
    changes: int,
    *,
    balancing: bool,
) -> Iterator[tuple[str, float, str]]:
    feed, leases = f"changes-{number}", f"leases-{number}"
    database = client.get_database_client("homes")
    database.create_container(feed, PartitionKey("/home"), offer_throughput=6000 * RANGES)
    database.create_container(leases, PartitionKey("/id" if number == 0 else "/group"))
    container = account.container(feed)
    _write(container, 0, changes)
    before = account.endpoint.charged
    with ExitStack() as stack:

        def started(name: str) -> MeasuredHost:
            host = start(name, feed, leases)
            stack.callback(host.process.kill)
            return host

        first = started("a")
        _until(lambda: len(first.ids) > 0)
        began, had = time.perf_counter(), len(first.ids)
        _until(lambda: len(set(first.ids)) >= changes)
        took_s = time.perf_counter() - began
        yield "one host drains", (changes - had) / took_s, "changes/s"
        charged = account.endpoint.charged - before
        yield "cost, start included", charged / changes * 1000, "RU per 1,000 changes"
        if balancing:
            yield from _balanced(account, feed, leases, first, started)


def _balanced(
    account: BenchAccount,
    feed: str,
    leases: str,
    first: MeasuredHost,
    start: Callable[[str], MeasuredHost],
) -> Iterator[tuple[str, float, str]]:
    second = start("b")
    began = time.perf_counter()
    _until(lambda: _even(account.container(leases)))
    yield "a second host: even after", time.perf_counter() - began, "s"
    owners = _owners(account.container(leases))
    yield "the most leases of a host", float(max(owners.values())), f"of {RANGES}"
    idle = account.endpoint.charged
    time.sleep(2 * INTERVAL_S)
    yield "idle, two hosts", (account.endpoint.charged - idle) / (2 * INTERVAL_S), "RU/s"
    first.process.kill()
    began = time.perf_counter()
    _write(account.container(feed), NEXT, 50 * RANGES)
    wanted = {str(n) for n in range(NEXT, NEXT + 50 * RANGES)}
    _until(lambda: wanted <= {*first.ids, *second.ids})
    yield "a host is killed: all is read again after", time.perf_counter() - began, "s"


def _write(container: Any, first: int, count: int) -> None:
    container.upsert_many(
        {"id": str(n), "home": f"H{n % 5000}", "kind": "motion", "value": n}
        for n in range(first, first + count)
    )


def _even(leases: Any) -> bool:
    owners = _owners(leases)
    return owners.total() == RANGES and sorted(owners.values()) == [RANGES // 2] * 2


def _owners(leases: Any) -> Counter[str]:
    """Leases by owner, from the documents of either processor. Not by requests, which are
    charged."""
    found: Counter[str] = Counter()
    for leaf in leases.leaves():
        page = leases.changes(leaf, max_items=10_000)
        for change in page.changes:
            document = change.document
            owner = document.get("owner") or document.get("Owner")
            if owner and ("LeaseToken" in document or document.get("kind") == "lease"):
                found[owner] += 1
    return found


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("a host did not do what is measured")
        time.sleep(0.02)
