"""The application: pages, the JSON behind them, and server-sent events.

A home's id is never in an address: it comes from the session alone, so there is nothing to guess.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import wraps
from math import ceil
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from leasehold.errors import BadInput, LeaseholdError
from leasehold.feeds.container import Container
from leasehold.homes.reads import Reads
from leasehold.homes.web.alerts import RecentAlerts
from leasehold.homes.web.fleet import Fleet
from leasehold.homes.web.guard import LOOPBACK, BodyTooLarge, Guard, refused
from leasehold.homes.web.home_json import home_dict, series_dict
from leasehold.homes.web.openapi import DESCRIPTION
from leasehold.homes.web.operations import Operations
from leasehold.homes.web.secrets import Secrets
from leasehold.homes.web.sessions import Limiter, Role, Session, Sessions
from leasehold.processor.prometheus import CONTENT_TYPE

log = logging.getLogger("leasehold")
HERE = Path(__file__).parent
COOKIE = "leasehold_session"
LIVE_S = 1.0
KEEP_ALIVE_S = 15.0
STREAMS_PER_SESSION = 8
STREAMS_MAX = 2000
TRIES, TRIES_WITHIN_S = 10, 300.0

Handler = Callable[..., Awaitable[Response]]


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
    operations = operations or Operations(())
    web = Web(
        reads=reads,
        sessions=sessions or Sessions(secrets),
        alerts=RecentAlerts(alerts),
        operations=operations,
        fleet=fleet,
        co_detectors=co_detectors,
        secure=secure,
    )
    app = Starlette(
        routes=web.routes(),
        middleware=[Middleware(Guard, hosts=hosts, secure=secure)],
        exception_handlers={
            HTTPException: _refuse,
            BodyTooLarge: _too_large,
            LeaseholdError: _unavailable,
            Exception: _failed,
        },
        lifespan=web.lifespan,
    )
    app.state.web = web
    return app


class CoDetectors:
    """The switch that gives every home a carbon monoxide detector."""

    def __init__(self, add: Callable[[], None], added: Callable[[], bool]) -> None:
        self.add, self.added = add, added


def signed_in(role: Role) -> Callable[[Handler], Handler]:
    """A handler gets the session as its last argument, or is not called."""

    def wrap(handler: Handler) -> Handler:
        @wraps(handler)
        async def checked(self: Web, request: Request) -> Response:
            session = self.session(request)
            if session is None or session.role != role:
                if request.url.path.startswith("/api/"):
                    status = 401 if session is None else 403
                    raise HTTPException(status, f"sign in as {role} first")
                return RedirectResponse("/sign-in", 303)
            return await handler(self, request, session)

        return checked

    return wrap


class Web:
    def __init__(
        self,
        *,
        reads: Reads,
        sessions: Sessions,
        alerts: RecentAlerts,
        operations: Operations,
        fleet: Fleet | None,
        co_detectors: CoDetectors | None,
        secure: bool,
    ) -> None:
        self._reads, self._sessions, self._alerts = reads, sessions, alerts
        self._operations, self._fleet, self._co = operations, fleet, co_detectors
        self._secure = secure
        self.closing = False
        """Set it to let pages that are open go, so that a server can stop."""
        self._cookie = f"__Host-{COOKIE}" if secure else COOKIE
        self._by_address = Limiter(TRIES * 3, TRIES_WITHIN_S)
        self._by_name = Limiter(TRIES, TRIES_WITHIN_S)
        self._streams: Counter[str] = Counter()
        self._registry = registry = operations.registry
        self._requests = registry.counter(
            "leasehold_web_sign_ins_total", "Attempts to sign in.", ("role", "outcome")
        )
        self._homes = registry.gauge("leasehold_web_homes", "Homes known to the web process.")
        self._version = registry.gauge(
            "leasehold_web_table_version", "Version of the activity table that is known."
        )
        self._open = registry.gauge("leasehold_web_streams", "Pages that are updated live.")
        self._rejected = registry.gauge(
            "leasehold_web_rejected_readings", "Readings that were not believed.", ("reason",)
        )

    def routes(self) -> Sequence[Route | Mount]:
        return [
            Route("/", self.root),
            Route("/sign-in", self.sign_in_page),
            Route("/sign-in", self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Route("/home", self.home_page),
            Route("/operations", self.operations_page),
            Route("/api/home", self.home),
            Route("/api/home/day", self.day),
            Route("/api/home/live", self.home_live),
            Route("/api/operations", self.operate),
            Route("/api/operations/live", self.operate_live),
            Route("/api/operations/instances", self.add_instance, methods=["POST"]),
            Route("/api/operations/instances/stop", self.stop_instance, methods=["POST"]),
            Route("/api/operations/instances/kill", self.kill_instance, methods=["POST"]),
            Route("/api/operations/co-detectors", self.add_co, methods=["POST"]),
            Route("/metrics", self.metrics),
            Route("/healthz", self.health),
            Route("/openapi.json", self.openapi),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._operations.run())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    def session(self, request: Request) -> Session | None:
        token = request.cookies.get(self._cookie)
        return None if token is None else self._sessions.verify(token)

    async def root(self, request: Request) -> Response:
        session = self.session(request)
        if session is None:
            return RedirectResponse("/sign-in", 303)
        return RedirectResponse("/home" if session.role == "resident" else "/operations", 303)

    async def sign_in_page(self, request: Request) -> Response:
        return _page("sign-in", resident_error="", operator_error="", home="", role="resident")

    async def sign_in(self, request: Request) -> Response:
        fields = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=8)
        given = {name: values[0] for name, values in fields.items()}
        role: Role = "operator" if given.get("role") == "operator" else "resident"
        home = given.get("home", "").strip().upper()[:32]
        address = request.client.host if request.client else "?"
        name = f"home {home}" if role == "resident" else "operator"
        wait_s = max(self._by_address.wait_s(address), self._by_name.wait_s(name))
        if wait_s:
            self._requests.add((role, "limited"))
            why = f"Too many tries. Please wait {_words(wait_s)}, then try again."
            return _sign_in_again(role, home, why, 429, {"Retry-After": str(ceil(wait_s))})
        if role == "resident":
            session = self._sessions.resident(home, given.get("code", ""))
            why = "That home and access code do not belong together."
        else:
            session = self._sessions.operator(given.get("password", ""))
            why = "That is not the operators' password."
        if session is None:
            self._by_address.failed(address)
            self._by_name.failed(name)
            self._requests.add((role, "refused"))
            log.info("sign-in refused: %s, from %s", role, address)
            return _sign_in_again(role, home, why, 401)
        self._requests.add((role, "accepted"))
        response = RedirectResponse("/home" if role == "resident" else "/operations", 303)
        response.set_cookie(
            self._cookie,
            self._sessions.sign(session),
            max_age=self._sessions.session_s,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def sign_out(self, request: Request) -> Response:
        session = self.session(request)
        if session is not None:
            self._sessions.end(session)
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(
            self._cookie, path="/", secure=self._secure, httponly=True, samesite="strict"
        )
        return response

    @signed_in("resident")
    async def home_page(self, request: Request, session: Session) -> Response:
        return _page("home", home=session.home_id or "")

    @signed_in("operator")
    async def operations_page(self, request: Request, session: Session) -> Response:
        return _page("operations")

    @signed_in("resident")
    async def home(self, request: Request, session: Session) -> Response:
        return _json(await self._about(session))

    @signed_in("resident")
    async def day(self, request: Request, session: Session) -> Response:
        assert session.home_id is not None
        return _json(series_dict(await self._read(self._reads.last_day, session.home_id)))

    @signed_in("resident")
    async def home_live(self, request: Request, session: Session) -> Response:
        return self._stream(session, "home", lambda: self._about(session))

    @signed_in("operator")
    async def operate(self, request: Request, session: Session) -> Response:
        return _json(await self._about_operations())

    @signed_in("operator")
    async def operate_live(self, request: Request, session: Session) -> Response:
        return self._stream(session, "operations", self._about_operations)

    @signed_in("operator")
    async def add_instance(self, request: Request, session: Session) -> Response:
        name = await asyncio.to_thread(self._the_fleet().add)
        log.info("an operator added instance %s", name)
        return _json({"name": name}, 202)

    @signed_in("operator")
    async def stop_instance(self, request: Request, session: Session) -> Response:
        return await self._end_instance(request, self._the_fleet().stop)

    @signed_in("operator")
    async def kill_instance(self, request: Request, session: Session) -> Response:
        return await self._end_instance(request, self._the_fleet().kill)

    @signed_in("operator")
    async def add_co(self, request: Request, session: Session) -> Response:
        if self._co is None:
            raise HTTPException(404, "there are no sensors to switch here")
        await asyncio.to_thread(self._co.add)
        log.info("an operator added the carbon monoxide detectors")
        return _json({"added": True}, 202)

    async def metrics(self, request: Request) -> Response:
        """For operators; a scraper gives their password as bearer token."""
        session = self.session(request)
        if session is None or session.role != "operator":
            self._require_password(request)
        window = self._reads.window
        self._homes.set((), len(window))
        self._version.set((), self._reads.version)
        self._open.set((), self._streams.total())
        for reason, count in list(window.rejected.items()):
            self._rejected.set((reason,), count)
        return Response(self._registry.render(), media_type=CONTENT_TYPE)

    async def health(self, request: Request) -> Response:
        """Whether this process works; not how much it has read yet."""
        failing = bool(self._reads.failing)
        text = "the activity table cannot be read" if failing else "ok"
        return PlainTextResponse(text + "\n", 503 if failing else 200)

    async def openapi(self, request: Request) -> Response:
        return _json(DESCRIPTION)

    def _require_password(self, request: Request) -> None:
        address = request.client.host if request.client else "?"
        wait_s = self._by_address.wait_s(address)
        if wait_s:
            raise HTTPException(429, "too many tries", {"Retry-After": str(ceil(wait_s))})
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and given:
            if self._sessions.operator(given.strip()) is not None:
                return
            self._by_address.failed(address)
        raise HTTPException(401, "sign in as operator first", {"WWW-Authenticate": "Bearer"})

    async def _about(self, session: Session) -> dict[str, Any]:
        home_id = session.home_id
        assert home_id is not None
        state = await self._read(self._reads.home_state, home_id)
        hour = await self._read(self._reads.last_hour, home_id)
        return home_dict(state, hour, self._alerts.of(home_id), failing=self._trouble())

    async def _read(self, read: Callable[[str], Any], home_id: str) -> Any:
        """Memory answers at once; the table is asked in a thread."""
        return read(home_id) if self._reads.loaded else await asyncio.to_thread(read, home_id)

    def _trouble(self) -> str:
        """In words that tell a resident enough and nobody too much."""
        if self._reads.failing:
            return "New readings cannot be shown right now."
        return "Alerts cannot be shown right now." if self._alerts.failing else ""

    async def _about_operations(self) -> dict[str, Any]:
        fleet = self._fleet
        instances = [] if fleet is None else await asyncio.to_thread(fleet.instances)
        window = self._reads.window
        return self._operations.as_dict() | {
            "fleet": {
                "available": fleet is not None,
                "instances": [{"name": each.name, "state": each.state} for each in instances],
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
        return _json({"name": name}, 202)

    def _stream(
        self, session: Session, event: str, about: Callable[[], Awaitable[dict[str, Any]]]
    ) -> Response:
        if self._streams[session.nonce] >= STREAMS_PER_SESSION:
            raise HTTPException(429, "too many open pages", {"Retry-After": "10"})
        if self._streams.total() >= STREAMS_MAX:
            raise HTTPException(503, "too many open pages", {"Retry-After": "30"})

        async def events() -> AsyncIterator[str]:
            self._streams[session.nonce] += 1
            try:
                sent, quiet_s = "", 0.0
                while self._sessions.valid(session) and not self.closing:
                    try:
                        found = await about()
                    except LeaseholdError as error:
                        log.warning("a page could not be updated: %s", error)
                    else:
                        # Time alone is no news.
                        text = json.dumps(found | {"now_ms": 0})
                        if text != sent or quiet_s >= KEEP_ALIVE_S:
                            sent, quiet_s = text, 0.0
                            yield f"event: {event}\ndata: {json.dumps(found)}\n\n"
                    await asyncio.sleep(LIVE_S)
                    quiet_s += LIVE_S
                if not self.closing:
                    yield "event: signed-out\ndata: {}\n\n"
            finally:
                self._streams[session.nonce] -= 1
                if not self._streams[session.nonce]:
                    del self._streams[session.nonce]

        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


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


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith("/api/") or request.url.path == "/metrics":
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    text = {404: "There is nothing here.", 405: "That cannot be done here."}
    page = _page("error", what=text.get(error.status_code, error.detail))
    page.status_code = error.status_code
    page.headers.update(error.headers or {})
    return page


async def _too_large(request: Request, error: Exception) -> Response:
    return refused(413, "the body is too large")


async def _unavailable(request: Request, error: Exception) -> Response:
    if isinstance(error, BadInput):
        return refused(409, str(error))
    log.warning("%s: %s", request.url.path, error)
    return refused(503, "not available right now; try again")


async def _failed(request: Request, error: Exception) -> Response:
    return refused(500, "something went wrong; it is in the server's log")


def _sign_in_again(
    role: Role, home: str, why: str, status: int, headers: dict[str, str] | None = None
) -> Response:
    page = _page(
        "sign-in",
        resident_error=why if role == "resident" else "",
        operator_error=why if role == "operator" else "",
        home=home,
        role=role,
    )
    page.status_code = status
    page.headers.update(headers or {})
    return page


def _page(name: str, **values: str) -> HTMLResponse:
    text = (HERE / "pages" / f"{name}.html").read_text()
    return HTMLResponse(Template(text).substitute({k: _escaped(v) for k, v in values.items()}))


def _escaped(text: str) -> str:
    for plain, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(plain, written)
    return text


def _json(content: Any, status: int = 200) -> Response:
    return JSONResponse(content, status)


def _words(seconds: float) -> str:
    minutes = ceil(seconds / 60)
    return "a minute" if minutes <= 1 else f"{minutes} minutes"
