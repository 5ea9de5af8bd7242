"""The application: its parts put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from leasehold.feeds.container import Container
from leasehold.homes.reads import Reads
from leasehold.homes.web.alerts import RecentAlerts
from leasehold.homes.web.answers import ERRORS
from leasehold.homes.web.fleet import Fleet
from leasehold.homes.web.guard import LOOPBACK, Guard
from leasehold.homes.web.home_routes import HomeRoutes
from leasehold.homes.web.live import Live
from leasehold.homes.web.openapi import DESCRIPTION
from leasehold.homes.web.operations import Operations
from leasehold.homes.web.operations_routes import CoDetectors, OperationsRoutes
from leasehold.homes.web.probes import Probes
from leasehold.homes.web.secrets import Secrets
from leasehold.homes.web.sessions import Sessions
from leasehold.homes.web.sign_in import SignIn

STATIC = Path(__file__).parent / "static"


def make_app(
    *,
    reads: Reads,
    secrets: Secrets,
    alerts: Container | None = None,
    operations: Operations | None = None,
    fleet: Fleet | None = None,
    co_detectors: CoDetectors | None = None,
    sessions: Sessions | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    secure: bool = False,
) -> Starlette:
    """``reads`` is started and closed by whoever made it; ``operations`` looks while the
    application runs. ``hosts``: names that are answered to; None: any. ``secure``: behind TLS."""
    watched = operations or Operations(())
    sessions = sessions or Sessions(secrets)
    live = Live(sessions)
    sign_in = SignIn(sessions, watched.registry, secure=secure)

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
            *HomeRoutes(reads, RecentAlerts(alerts), live).routes(sign_in),
            *OperationsRoutes(watched, reads, fleet, co_detectors, live).routes(sign_in),
            *Probes(watched.registry, reads, live, sign_in).routes(),
            Route("/openapi.json", _openapi),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, hosts=hosts, secure=secure)],
        exception_handlers=ERRORS,
        lifespan=lifespan,
    )
    app.state.web = live  # for the server that stops it
    return app


async def _openapi(request: Request) -> Response:
    return JSONResponse(DESCRIPTION)
