"""Signing in and out, and who may call what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from math import ceil
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from homes.web.answers import page
from homes.web.audit import Audit
from homes.web.kept_until import KeptUntil
from homes.web.proxies import Proxies
from homes.web.sessions import Limiter, Role, Session, Sessions
from leasehold import LeaseholdError, Registry

COOKIE = "leasehold_session"
TRIES, TRIES_WITHIN_S = 10, 300.0
PASSWORD_TRIES = 300
"""At the operators' password, from all addresses together."""
DAY_S, KNOWN_DAYS = 86_400, 90
"""How long an address that operators signed in from is remembered after the last time."""
KNOWN_MAX = 1000
SIGN_INS = 60
"""Of a home, or of the operators. Only who has the code gets there; it bounds what is written when
signing in and out goes round in a loop."""
START = {"resident": "/home", "operator": "/operations"}

Limits = list[tuple[Limiter, str]]
Handler = Callable[[Request, Session], Awaitable[Response]]


class SignIn:
    def __init__(
        self,
        sessions: Sessions,
        registry: Registry,
        *,
        secure: bool,
        proxies: Proxies,
        known: KeptUntil,
        audit: Audit,
    ) -> None:
        """``secure``: behind TLS. ``known``: networks that operators have signed in from."""
        self._sessions, self._secure, self._proxies = sessions, secure, proxies
        self._known, self._audit = known, audit
        self._cookie = f"__Host-{COOKIE}" if secure else COOKIE
        self._by_address = Limiter(TRIES * 3, TRIES_WITHIN_S)
        self._by_home = Limiter(TRIES, TRIES_WITHIN_S)
        self._by_operator = Limiter(TRIES, TRIES_WITHIN_S)
        self._at_password = Limiter(PASSWORD_TRIES, TRIES_WITHIN_S)
        self._accepted = Limiter(SIGN_INS, TRIES_WITHIN_S)
        self._attempts = registry.counter(
            "leasehold_web_sign_ins_total", "Attempts to sign in.", ("role", "outcome")
        )

    def routes(self) -> Sequence[Route]:
        return [
            Route("/", self.root),
            Route("/sign-in", self.sign_in_page),
            Route("/sign-in", self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    def session(self, request: Request) -> Session | None:
        token = request.cookies.get(self._cookie)
        return None if token is None else self._sessions.verify(token)

    def only(self, role: Role, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """The handler gets the session, or is not called."""

        @wraps(handler)
        async def checked(request: Request) -> Response:
            session = self.session(request)
            if session is not None and session.role == role:
                return await handler(request, session)
            if request.url.path.startswith("/api/"):
                raise HTTPException(401 if session is None else 403, f"sign in as {role} first")
            return RedirectResponse("/sign-in", 303) if session is None else _not_for(session)

        return checked

    def audited(self, handler: Handler) -> Handler:
        """Whatever comes of it, who did it is written down; ``request.state.target``: to what."""

        @wraps(handler)
        async def audited(request: Request, session: Session) -> Response:
            request.state.target, result = None, "failed"
            try:
                answer = await handler(request, session)
                result = "done"
                return answer
            except (HTTPException, LeaseholdError) as error:
                result = error.detail if isinstance(error, HTTPException) else str(error)
                raise
            finally:
                self._audit.write(
                    handler.__name__.replace("_", " "),
                    who=session.name,
                    address=self.address(request),
                    result=result,
                    target=request.state.target,
                )

        return audited

    async def require_password(self, request: Request) -> None:
        """As bearer token: the one for metrics, or the operators' password."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        # Checked before any limit: limits are for guesses, and guessing this one is hopeless.
        if given and self._sessions.is_metrics_token(given):
            return
        if given:
            address = self.address(request)
            limits = self._limits("operator", "", address)
            right = self._sessions.operator(given) is not None
            if wait_s := self._wait_s(limits, right, address):
                self._audit.repeated(
                    "metrics", who="operator", address=address, result="too many tries"
                )
                raise HTTPException(429, "too many tries", {"Retry-After": str(ceil(wait_s))})
            if right:
                await self._remember(address)
                return
            _count(limits)
            self._audit.write("metrics", who="operator", address=address, result="refused")
        raise HTTPException(401, "sign in as operator first", {"WWW-Authenticate": "Bearer"})

    async def root(self, request: Request) -> Response:
        session = self.session(request)
        return RedirectResponse("/sign-in" if session is None else START[session.role], 303)

    async def sign_in_page(self, request: Request) -> Response:
        return _form("resident", "", "")

    async def sign_in(self, request: Request) -> Response:
        try:
            fields = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=8)
        except ValueError:
            raise HTTPException(400, "That is not what the form sends.") from None
        given = {name: values[0] for name, values in fields.items()}
        role: Role = "operator" if given.get("role") == "operator" else "resident"
        home = given.get("home", "").strip().upper()[:32]
        address = self.address(request)
        limits = self._limits(role, home, address)
        if role == "resident":
            session = self._sessions.resident(home, given.get("code", ""))
            why = "That home and access code do not belong together."
        else:
            session = self._sessions.operator(given.get("password", ""))
            why = "That is not the operators' password."
        who = home if role == "resident" else role
        # The secret is compared first, whatever the limit says: see _wait_s.
        if wait_s := self._wait_s(limits, role == "operator" and session is not None, address):
            return self._limited(role, home, wait_s, address)
        if session is None:
            _count(limits)
            self._attempts.add((role, "refused"))
            self._audit.write("sign-in", who=who, address=address, result="refused")
            return _form(role, home, why, 401)
        if wait_s := self._accepted.wait_s(session.home_id or role):
            return self._limited(role, home, wait_s, address)
        self._accepted.add(session.home_id or role)
        self._attempts.add((role, "accepted"))
        self._audit.write("sign-in", who=session.name, address=address, result="accepted")
        if role == "operator":
            await self._remember(address)
        response = RedirectResponse(START[role], 303)
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
            await asyncio.to_thread(self._sessions.end, session)
            self._audit.write(
                "sign-out", who=session.name, address=self.address(request), result="done"
            )
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(
            self._cookie, path="/", secure=self._secure, httponly=True, samesite="strict"
        )
        return response

    def address(self, request: Request) -> str:
        """Behind a proxy, the one that it has seen: its own would be everybody's."""
        peer = request.client.host if request.client else "?"
        seen = request.headers.getlist("x-forwarded-for") if self._secure else []
        return self._proxies.client(peer, seen)

    async def _remember(self, address: str) -> None:
        """An operator was here."""
        day = int(time.time()) // DAY_S
        await asyncio.to_thread(self._known.add, address, (day + KNOWN_DAYS) * DAY_S)

    def _wait_s(self, limits: Limits, right: bool, address: str) -> float:
        """0: go on. Guesses elsewhere must not keep operators out, so a right password from where
        they have been before always gets through. From anywhere else it waits like a wrong one,
        or there would be no limit on guessing."""
        if right and address in self._known:
            return 0.0
        return max(limit.wait_s(key) for limit, key in limits)

    def _limited(self, role: Role, home: str, wait_s: float, address: str) -> Response:
        self._attempts.add((role, "limited"))
        who = home if role == "resident" else role
        self._audit.repeated("sign-in", who=who, address=address, result="too many tries")
        why = f"Too many tries. Please wait {_words(wait_s)}, then try again."
        answer = _form(role, home, why, 429)
        answer.headers["Retry-After"] = str(ceil(wait_s))
        return answer

    def _limits(self, role: Role, home: str, address: str) -> Limits:
        # A home's code has 60 random bits: a thousand guesses a second, from wherever, would take
        # millions of years. So guessing at a home is stopped per address only: a limit on the home
        # would keep nobody out but its resident. The password is ours, with 120 random bits, or
        # one of 12 characters at least: a limit over all addresses is there for one badly chosen,
        # and so high that nobody alone can lock the operators out with it.
        if role == "resident":
            return [(self._by_address, address), (self._by_home, f"{home} {address}")]
        at_password = (self._by_operator, address), (self._at_password, "")
        return [(self._by_address, address), *at_password]


def _count(limits: Limits) -> None:
    for limit, key in limits:
        limit.add(key)


def _form(role: Role, home: str, why: str, status: int = 200) -> Response:
    resident, operator = (why, "") if role == "resident" else ("", why)
    errors = {"resident_error": resident, "operator_error": operator}
    return page("sign-in", status, home=home, role=role, **errors)


def _not_for(session: Session) -> Response:
    """Who is signed in as somebody else learns why, and where to go."""
    if session.role == "resident":
        return page(
            "not-for-you",
            403,
            what="This page is for operators",
            why=f"You are signed in as the resident of home {session.home_id}. "
            "Operators sign in with their own password.",
            start=START[session.role],
            start_name="To my home",
            other="/sign-in#operator",
            other_name="Sign in as an operator",
        )
    return page(
        "not-for-you",
        403,
        what="This page is for residents",
        why="You are signed in as an operator. Residents sign in with the code of their home.",
        start=START[session.role],
        start_name="To operations",
        other="/sign-in",
        other_name="Sign in as a resident",
    )


def _words(seconds: float) -> str:
    minutes = ceil(seconds / 60)
    return "a minute" if minutes <= 1 else f"{minutes} minutes"
