"""*Operations*: the page, what it shows, and what operators do from it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from homes.supervisor.fleet import Fleet, FleetInstance, FleetNews
from homes.view.recent_activity import RecentActivity
from homes.web.answers import page, text_field
from homes.web.live import Live
from homes.web.operations import Operations
from homes.web.sessions import Session
from homes.web.sign_in import Handler, SignIn
from homes.web.waiting import Waiting
from leasehold import LeaseholdError

ACTIONS_KEPT = 50
WORDS = {
    "add_instance": "add an instance",
    "stop_instance": "stop",
    "kill_instance": "kill",
    "add_co": "add carbon monoxide detectors to every home",
}


class CoDetectors:
    """The switch that gives every home a carbon monoxide detector."""

    def __init__(self, add: Callable[[], None], added: Callable[[], bool]) -> None:
        self.add, self.added = add, added


class OperationsRoutes:
    def __init__(
        self,
        *,
        operations: Operations,
        activity: RecentActivity,
        fleet: Fleet | None,
        co_detectors: CoDetectors | None,
        live: Live,
        waiting: Waiting,
    ) -> None:
        self._operations, self._activity, self._live = operations, activity, live
        self._waiting = waiting
        self._fleet, self._co = fleet, co_detectors
        self._actions: deque[dict[str, Any]] = deque(maxlen=ACTIONS_KEPT)
        """What operators did, for other operators to see; the audit log keeps it for good."""

    def routes(self, sign_in: SignIn) -> Sequence[Route]:
        def route(path: str, handler: Handler) -> Route:
            return Route(path, sign_in.only("operator", handler))

        def action(path: str, handler: Handler) -> Route:
            audited = sign_in.audited(self._shown(handler))
            return Route(path, sign_in.only("operator", audited), methods=["POST"])

        return [
            route("/operations", self.page),
            route("/api/operations", self.operations),
            route("/api/operations/live", self.live),
            action("/api/operations/instances", self.add_instance),
            action("/api/operations/instances/stop", self.stop_instance),
            action("/api/operations/instances/kill", self.kill_instance),
            action("/api/operations/co-detectors", self.add_co),
        ]

    def _shown(self, handler: Handler) -> Handler:
        """What was done to what, and what came of it, in the list on the page."""

        @wraps(handler)
        async def shown(request: Request, session: Session) -> Response:
            said = ""
            try:
                return await handler(request, session)
            except (HTTPException, LeaseholdError) as error:
                said = error.detail if isinstance(error, HTTPException) else str(error)
                raise
            finally:
                words = [session.name + ":", WORDS[handler.__name__], request.state.target or ""]
                text = " ".join(filter(None, words)) + (f" did not work: {said}" if said else "")
                self._actions.appendleft({"at_ms": int(time.time() * 1000), "text": text})

        return shown

    async def page(self, request: Request, session: Session) -> Response:
        return page("operations")

    async def operations(self, request: Request, session: Session) -> Response:
        return JSONResponse(await self._about())

    async def live(self, request: Request, session: Session) -> Response:
        return self._live.stream(session, "operations", self._about)

    async def add_instance(self, request: Request, session: Session) -> Response:
        name = await asyncio.to_thread(self._the_fleet().add)
        request.state.target = name
        return JSONResponse({"name": name}, 202)

    async def stop_instance(self, request: Request, session: Session) -> Response:
        return await self._end_instance(request, self._the_fleet().stop)

    async def kill_instance(self, request: Request, session: Session) -> Response:
        return await self._end_instance(request, self._the_fleet().kill)

    async def add_co(self, request: Request, session: Session) -> Response:
        if self._co is None:
            raise HTTPException(404, "there are no sensors to switch here")
        await asyncio.to_thread(self._co.add)
        return JSONResponse({"added": True}, 202)

    async def _about(self) -> dict[str, Any]:
        fleet = self._fleet
        instances, news = ([], []) if fleet is None else await asyncio.to_thread(_asked, fleet)
        window = self._activity.window
        return self._operations.as_dict() | {
            "fleet": {
                "available": fleet is not None,
                "instances": [{"name": each.name, "state": each.state} for each in instances],
                "news": [{"at_ms": int(each.at * 1000), "text": each.text} for each in news],
            },
            "co_detectors": {
                "available": self._co is not None,
                "added": self._co is not None and self._co.added(),
            },
            "actions": list(self._actions),
            "waiting": self._waiting.text(),
            "table": {
                "version": self._activity.version,
                "loaded": self._activity.loaded,
                "homes": len(window),
                "failing": self._activity.failing,
                "rejected": dict(window.rejected),
            },
        }

    def _the_fleet(self) -> Fleet:
        if self._fleet is None:
            raise HTTPException(404, "instances are not started and stopped from here")
        return self._fleet

    async def _end_instance(self, request: Request, end: Callable[[str], None]) -> Response:
        name = request.state.target = await text_field(request, "name")
        known = await asyncio.to_thread(self._the_fleet().instances)
        if name not in {each.name for each in known}:
            raise HTTPException(404, "there is no such instance")
        await asyncio.to_thread(end, name)
        return JSONResponse({"name": name}, 202)


def _asked(fleet: Fleet) -> tuple[Sequence[FleetInstance], Sequence[FleetNews]]:
    return fleet.instances(), fleet.news()
