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
from support.processing import wait_until

import leasehold as lh
from homes.supervisor.fleet import FleetInstance, FleetNews
from homes.view.recent_activity import RecentActivity
from homes.view.table import ActivityTable
from homes.web.app import make_app
from homes.web.operations import Operations, WatchedGroup
from homes.web.operations_routes import CoDetectors
from homes.web.secrets import Secrets
from homes.web.server import WebServer
from homes.web.sessions import Sessions
from leasehold.errors import BadInput

SECRETS = Secrets(
    secret="a secret that only tests know, long enough", operator_password="operators only"
)
MINE, OTHER = "H000001", "H000002"
RESIDENT = ["/api/home", "/api/home/day", "/api/home/live"]
OPERATOR = ["/api/operations", "/api/operations/live"]
POSTS = [
    "/api/operations/instances",
    "/api/operations/instances/stop",
    "/api/operations/instances/kill",
    "/api/operations/co-detectors",
]
PAGES = {"/home": "resident", "/operations": "operator"}
OPEN = {
    "/": 303,
    "/sign-in": 200,
    "/healthz": 200,
    "/openapi.json": 200,
    "/static/style.css": 200,
    "/static/domain.js": 200,
}


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
    activity: RecentActivity
    store: lh.LeaseStore
    co: list[bool] = field(default_factory=list)
    secure: bool = False

    @property
    def origin(self) -> str:
        """Of the page in a browser: behind a proxy, it has been asked by HTTPS."""
        return self.url.replace("http:", "https:") if self.secure else self.url

    def client(self, token: str | None = None, **more: Any) -> httpx.Client:
        cookies = {} if token is None else {"leasehold_session": token}
        headers = {"Origin": self.origin} | more.pop("headers", {})
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
    # It stays the same minute: no sensor falls silent however long a test takes.
    now = time.time()
    ago = NOW_MINUTE - int(now // 60)
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
    with hub, alerts, RecentActivity(ActivityTable(table), clock=lambda: now) as activity:
        app = make_app(
            activity=activity,
            secrets=SECRETS,
            sessions=sessions,
            alerts=alerts,
            operations=Operations(
                [WatchedGroup(feed=hub, group="activity", store=store)],
                dead_letters=lh.open_dead_letters("memory://"),
            ),
            fleet=fleet,
            co_detectors=CoDetectors(lambda: co.append(True), lambda: bool(co)),
            **more,
        )
        wait_until(lambda: activity.loaded)
        with WebServer(app) as server:
            yield Site(
                server.url,
                app,
                sessions,
                table,
                alerts,
                fleet,
                activity,
                store,
                co,
                more.get("secure", False),
            )


def status(client: httpx.Client, method: str, path: str, **more: Any) -> int:
    """Without waiting for a stream's end."""
    with client.stream(method, path, **more) as answer:
        return answer.status_code


def sign_in(client: httpx.Client, **fields: str) -> httpx.Response:
    return client.post("/sign-in", data={"role": "resident", "home": MINE, **fields})


def seen_from(address: str) -> dict[str, str]:
    """What a proxy adds; what the client made up comes before it."""
    return {"X-Forwarded-For": f"192.0.2.1, {address}"}


def guess(client: httpx.Client, password: str = "wrong") -> int:
    return sign_in(client, role="operator", password=password).status_code


def bearer(client: httpx.Client, password: str = "wrong") -> int:
    given = {"Authorization": f"Bearer {password}"}
    return client.get("/metrics", headers=given).status_code
