"""The application: its parts put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from homes.supervisor.fleet import Fleet
from homes.view.recent_activity import RecentActivity
from homes.web.alerts import RecentAlerts
from homes.web.answers import ERRORS
from homes.web.audit import Audit
from homes.web.domain_js import DOMAIN_ROUTE
from homes.web.drills import Drills
from homes.web.guard import LOOPBACK, Guard
from homes.web.home_routes import HomeRoutes
from homes.web.kept_until import KeptUntil
from homes.web.live import STREAMS_OF_HOMES, Live
from homes.web.openapi import DESCRIPTION
from homes.web.operations import Operations
from homes.web.operations_routes import CoDetectors, OperationsRoutes
from homes.web.probes import Probes
from homes.web.proxies import Proxies
from homes.web.secrets import Secrets
from homes.web.sessions import Sessions
from homes.web.sign_in import KNOWN_MAX, SignIn
from homes.web.waiting import Waiting
from leasehold import Documents

STATIC = Path(__file__).parent / "static"


def make_app(
    *,
    activity: RecentActivity,
    secrets: Secrets,
    alerts: Documents | None = None,
    operations: Operations | None = None,
    fleet: Fleet | None = None,
    co_detectors: CoDetectors | None = None,
    waiting: Waiting | None = None,
    drills: Drills | None = None,
    sessions: Sessions | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    secure: bool = False,
    origin: str | None = None,
    proxies: Proxies | None = None,
    known: KeptUntil | None = None,
    audit: Audit | None = None,
    streams_max: int = STREAMS_OF_HOMES,
) -> Starlette:
    """``activity`` is started and closed by whoever made it; ``operations`` looks while the
    application runs. ``hosts``: names that are answered to; None: any. ``secure``: behind TLS.
    ``origin``: of the page in browsers, if it is not what they name as host. ``proxies``: who may
    say for whom they ask. ``known``: where operators have signed in from. ``streams_max``: live
    pages of all homes together."""
    watched = operations or Operations(())
    waiting = waiting or Waiting(watched, fleet)
    sessions = sessions or Sessions(secrets)
    live = Live(sessions, streams_max)
    proxies = proxies or Proxies()
    sign_in = SignIn(
        sessions,
        watched.registry,
        secure=secure,
        proxies=proxies,
        known=known or KeptUntil(None, time.time, what="known addresses", most=KNOWN_MAX),
        audit=audit or Audit(None),
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(watched.run())
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    app = Starlette(
        routes=[
            *sign_in.routes(),
            *HomeRoutes(
                activity=activity,
                alerts=RecentAlerts(alerts),
                live=live,
                waiting=waiting,
                drills=drills,
            ).routes(sign_in),
            *OperationsRoutes(
                operations=watched,
                activity=activity,
                fleet=fleet,
                co_detectors=co_detectors,
                live=live,
                waiting=waiting,
            ).routes(sign_in),
            *Probes(watched.registry, activity, live, sign_in).routes(),
            Route("/openapi.json", _openapi),
            DOMAIN_ROUTE,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, hosts=hosts, secure=secure, proxies=proxies, origin=origin)],
        exception_handlers=ERRORS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # to addresses that a proxy may not know
    app.state.web = live  # for the server that stops it
    return app


async def _openapi(request: Request) -> Response:
    return JSONResponse(DESCRIPTION)
