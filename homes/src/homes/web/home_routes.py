"""*My home*: the page and what it shows.

A home's id is never in an address: it comes from the session alone, so there is nothing to guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from homes.view.recent_activity import RecentActivity
from homes.web.alarm_ends import needs_day, with_ends
from homes.web.alerts import RecentAlerts
from homes.web.answers import page, text_field
from homes.web.drills import DRILLS, Drills
from homes.web.home_json import home_dict, series_dict
from homes.web.live import Live
from homes.web.sessions import Session
from homes.web.sign_in import Handler, SignIn
from homes.web.waiting import Waiting


class HomeRoutes:
    def __init__(
        self,
        *,
        activity: RecentActivity,
        alerts: RecentAlerts,
        live: Live,
        waiting: Waiting,
        drills: Drills | None = None,
    ) -> None:
        self._activity, self._alerts, self._live = activity, alerts, live
        self._waiting, self._drills = waiting, drills

    def routes(self, sign_in: SignIn) -> Sequence[Route]:
        def route(path: str, handler: Handler) -> Route:
            return Route(path, sign_in.only("resident", handler))

        drill = sign_in.only("resident", sign_in.audited(self.drill))
        return [
            Route("/api/home/drill", drill, methods=["POST"]),
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
        return JSONResponse(series_dict(await self._read(self._activity.last_day, _home(session))))

    async def live(self, request: Request, session: Session) -> Response:
        return self._live.stream(session, "home", lambda: self._about(_home(session)))

    async def _about(self, home_id: str) -> dict[str, Any]:
        state = await self._read(self._activity.home_state, home_id)
        alerts = await self._alerts.of(home_id)
        day = None
        if needs_day(alerts, state.hour):
            day = await self._read(self._activity.last_day, home_id)
        return home_dict(
            state,
            with_ends(alerts, state.hour, day, state.now_ms),
            failing=self._trouble(),
            waiting=self._waiting.text(),
            drills=() if self._drills is None else tuple(DRILLS),
        )

    async def drill(self, request: Request, session: Session) -> Response:
        """Raise an alarm in one's own home; in the demo only."""
        if self._drills is None:
            raise HTTPException(404, "there are no drills here: these homes are real")
        kind = request.state.target = await text_field(request, "kind")
        await self._drills.start(_home(session), kind)
        return JSONResponse({"kind": kind}, 202)

    async def _read(self, read: Callable[[str], Any], home_id: str) -> Any:
        """Memory answers at once; the table is asked in a thread."""
        return read(home_id) if self._activity.loaded else await asyncio.to_thread(read, home_id)

    def _trouble(self) -> str:
        """In words that tell a resident enough and nobody too much."""
        if self._activity.failing:
            return "New readings cannot be shown right now."
        return "Alerts cannot be shown right now." if self._alerts.failing else ""


def _home(session: Session) -> str:
    assert session.home_id is not None
    return session.home_id
