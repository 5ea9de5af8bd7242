"""*Operations*: the page, what it shows, and what operators do from it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leasehold.homes.reads import Reads
from leasehold.homes.web.answers import page
from leasehold.homes.web.fleet import Fleet, FleetInstance, FleetNews
from leasehold.homes.web.live import Live
from leasehold.homes.web.operations import Operations
from leasehold.homes.web.sessions import Session
from leasehold.homes.web.sign_in import Handler, SignIn

log = logging.getLogger("leasehold")


class CoDetectors:
    """The switch that gives every home a carbon monoxide detector."""

    def __init__(self, add: Callable[[], None], added: Callable[[], bool]) -> None:
        self.add, self.added = add, added


class OperationsRoutes:
    def __init__(
        self,
        operations: Operations,
        reads: Reads,
        fleet: Fleet | None,
        co_detectors: CoDetectors | None,
        live: Live,
    ) -> None:
        self._operations, self._reads, self._live = operations, reads, live
        self._fleet, self._co = fleet, co_detectors

    def routes(self, sign_in: SignIn) -> Sequence[Route]:
        def route(path: str, handler: Handler, method: str = "GET") -> Route:
            return Route(path, sign_in.only("operator", handler), methods=[method])

        return [
            route("/operations", self.page),
            route("/api/operations", self.operations),
            route("/api/operations/live", self.live),
            route("/api/operations/instances", self.add_instance, "POST"),
            route("/api/operations/instances/stop", self.stop_instance, "POST"),
            route("/api/operations/instances/kill", self.kill_instance, "POST"),
            route("/api/operations/co-detectors", self.add_co, "POST"),
        ]

    async def page(self, request: Request, session: Session) -> Response:
        return page("operations")

    async def operations(self, request: Request, session: Session) -> Response:
        return JSONResponse(await self._about())

    async def live(self, request: Request, session: Session) -> Response:
        return self._live.stream(session, "operations", self._about)

    async def add_instance(self, request: Request, session: Session) -> Response:
        name = await asyncio.to_thread(self._the_fleet().add)
        log.info("an operator added instance %s", name)
        return JSONResponse({"name": name}, 202)

    async def stop_instance(self, request: Request, session: Session) -> Response:
        return await self._end_instance(request, self._the_fleet().stop)

    async def kill_instance(self, request: Request, session: Session) -> Response:
        return await self._end_instance(request, self._the_fleet().kill)

    async def add_co(self, request: Request, session: Session) -> Response:
        if self._co is None:
            raise HTTPException(404, "there are no sensors to switch here")
        await asyncio.to_thread(self._co.add)
        log.info("an operator added the carbon monoxide detectors")
        return JSONResponse({"added": True}, 202)

    async def _about(self) -> dict[str, Any]:
        fleet = self._fleet
        instances, news = ([], []) if fleet is None else await asyncio.to_thread(_asked, fleet)
        window = self._reads.window
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
            "table": {
                "version": self._reads.version,
                "loaded": self._reads.loaded,
                "homes": len(window),
                "failing": self._reads.failing,
                "rejected": dict(window.rejected),
            },
        }

    def _the_fleet(self) -> Fleet:
        if self._fleet is None:
            raise HTTPException(404, "instances are not started and stopped from here")
        return self._fleet

    async def _end_instance(self, request: Request, end: Callable[[str], None]) -> Response:
        name = await _field(request, "name")
        known = await asyncio.to_thread(self._the_fleet().instances)
        if name not in {each.name for each in known}:
            raise HTTPException(404, "there is no such instance")
        await asyncio.to_thread(end, name)
        log.info("an operator ended instance %s (%s)", name, end.__name__)
        return JSONResponse({"name": name}, 202)


def _asked(fleet: Fleet) -> tuple[Sequence[FleetInstance], Sequence[FleetNews]]:
    return fleet.instances(), fleet.news()


async def _field(request: Request, name: str) -> str:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body is application/json")
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is no JSON") from None
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, str) or not value or len(value) > 256:
        raise HTTPException(400, f"the body is an object with {name}, a text")
    return value
