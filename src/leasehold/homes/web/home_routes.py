"""*My home*: the page and what it shows.

A home's id is never in an address: it comes from the session alone, so there is nothing to guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leasehold.homes.reads import Reads
from leasehold.homes.web.alerts import RecentAlerts
from leasehold.homes.web.answers import page
from leasehold.homes.web.home_json import home_dict, series_dict
from leasehold.homes.web.live import Live
from leasehold.homes.web.sessions import Session
from leasehold.homes.web.sign_in import Handler, SignIn


class HomeRoutes:
    def __init__(self, reads: Reads, alerts: RecentAlerts, live: Live) -> None:
        self._reads, self._alerts, self._live = reads, alerts, live

    def routes(self, sign_in: SignIn) -> Sequence[Route]:
        def route(path: str, handler: Handler) -> Route:
            return Route(path, sign_in.only("resident", handler))

        return [
            route("/home", self.page),
            route("/api/home", self.home),
            route("/api/home/day", self.day),
            route("/api/home/live", self.live),
        ]

    async def page(self, request: Request, session: Session) -> Response:
        return page("home", home=_home(session))

    async def home(self, request: Request, session: Session) -> Response:
        return JSONResponse(await self._about(_home(session)))

    async def day(self, request: Request, session: Session) -> Response:
        return JSONResponse(series_dict(await self._read(self._reads.last_day, _home(session))))

    async def live(self, request: Request, session: Session) -> Response:
        return self._live.stream(session, "home", lambda: self._about(_home(session)))

    async def _about(self, home_id: str) -> dict[str, Any]:
        state = await self._read(self._reads.home_state, home_id)
        alerts = await self._alerts.of(home_id)
        return home_dict(state, alerts, failing=self._trouble())

    async def _read(self, read: Callable[[str], Any], home_id: str) -> Any:
        """Memory answers at once; the table is asked in a thread."""
        return read(home_id) if self._reads.loaded else await asyncio.to_thread(read, home_id)

    def _trouble(self) -> str:
        """In words that tell a resident enough and nobody too much."""
        if self._reads.failing:
            return "New readings cannot be shown right now."
        return "Alerts cannot be shown right now." if self._alerts.failing else ""


def _home(session: Session) -> str:
    assert session.home_id is not None
    return session.home_id
