"""The web application over a hand-made table, for tests that need no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from activity_rows import NOW_MINUTE, append, row
from processing import wait_until

import leasehold as lh
from leasehold.errors import BadInput
from leasehold.homes.reads import Reads
from leasehold.homes.table import ActivityTable
from leasehold.homes.web import FleetInstance, FleetNews, Secrets, WebServer, make_app
from leasehold.homes.web.operations import Operations, Watched
from leasehold.homes.web.operations_routes import CoDetectors
from leasehold.homes.web.sessions import Sessions

SECRETS = Secrets(
    secret="a secret that only tests know, long enough", operator_password="operators only"
)
MINE, OTHER = "H000001", "H000002"


class PretendedFleet:
    def __init__(self) -> None:
        self.known: dict[str, str] = {"pipeline-1": "running"}
        self.asked: list[tuple[str, str]] = []

    def instances(self) -> list[FleetInstance]:
        return [FleetInstance(name, state) for name, state in self.known.items()]

    def news(self) -> list[FleetNews]:
        return [FleetNews(1_700_000_000.5, "pipeline-1 starts")]

    def add(self) -> str:
        if len(self.known) >= 3:
            raise BadInput("there are 3 instances already; that is all this machine takes")
        name = f"pipeline-{len(self.known) + 1}"
        self.known[name] = "starting"
        return name

    def stop(self, name: str) -> None:
        self.asked.append(("stop", name))

    def kill(self, name: str) -> None:
        self.asked.append(("kill", name))


@dataclass
class Site:
    url: str
    app: Any
    sessions: Sessions
    table: Path
    alerts: lh.Container
    fleet: PretendedFleet
    reads: Reads
    store: lh.LeaseStore
    co: list[bool] = field(default_factory=list)

    def client(self, token: str | None = None, **more: Any) -> httpx.Client:
        cookies = {} if token is None else {"leasehold_session": token}
        headers = {"Origin": self.url} | more.pop("headers", {})
        return httpx.Client(base_url=self.url, cookies=cookies, headers=headers, timeout=30, **more)

    def token(self, home_id: str = MINE) -> str:
        session = self.sessions.resident(home_id, self.sessions.access_code(home_id))
        assert session is not None
        return self.sessions.sign(session)

    def operator_token(self) -> str:
        session = self.sessions.operator(SECRETS.operator_password)
        assert session is not None
        return self.sessions.sign(session)


@contextmanager
def open_site(folder: Path, **more: Any) -> Iterator[Site]:
    ago = NOW_MINUTE - int(time.time() // 60)
    table = folder / "activity"
    append(
        table,
        row(MINE, "door", ago, 1.0),
        row(MINE, "motion", ago + 3, 1.0),
        row(OTHER, "door", ago, 0.0),
        row(OTHER, "motion", ago, 0.0, battery=7.0),
        row(None, "wrong time", ago),
    )
    hub = lh.Hub.create(folder / "sensors.db", name="sensors", namespace="homes", partitions=2)
    alerts = lh.Container.create(
        folder / "alerts.db", name="alerts", namespace="homes", partition_key="/home_id"
    )
    alerts.insert({"id": "a1", "home_id": OTHER, "type": "glass", "value": 1, "ts": 1})
    store = lh.open_store("memory://")
    sessions = Sessions(SECRETS)
    fleet, co = PretendedFleet(), []
    with hub, alerts, Reads(ActivityTable(table)) as reads:
        app = make_app(
            reads=reads,
            secrets=SECRETS,
            sessions=sessions,
            alerts=alerts,
            operations=Operations(
                [Watched(feed=hub, group="activity", store=store)],
                dead_letters=lh.open_dead_letters("memory://"),
            ),
            fleet=fleet,
            co_detectors=CoDetectors(lambda: co.append(True), lambda: bool(co)),
            **more,
        )
        wait_until(lambda: reads.loaded)
        with WebServer(app) as server:
            yield Site(server.url, app, sessions, table, alerts, fleet, reads, store, co)
