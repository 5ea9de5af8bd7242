"""Signing in and out, and who may call what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from ipaddress import IPv6Address, IPv6Network
from math import ceil
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from leasehold.homes.web.answers import page
from leasehold.homes.web.sessions import Limiter, Role, Session, Sessions
from leasehold.processor.prometheus import Registry

log = logging.getLogger("leasehold")
COOKIE = "leasehold_session"
TRIES, TRIES_WITHIN_S = 10, 300.0
PASSWORD_TRIES = 300
"""At the operators' password, from all addresses together."""
SIGN_INS = 60
"""Of a home, or of the operators. Only who has the code gets there; it bounds what is written when
signing in and out goes round in a loop."""
START = {"resident": "/home", "operator": "/operations"}

Limits = list[tuple[Limiter, str]]
Handler = Callable[[Request, Session], Awaitable[Response]]


class SignIn:
    def __init__(self, sessions: Sessions, registry: Registry, *, secure: bool) -> None:
        self._sessions, self._secure = sessions, secure
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
            return RedirectResponse("/sign-in", 303)

        return checked

    def require_password(self, request: Request) -> None:
        """The operators', as bearer token."""
        limits = self._limits("operator", "", self._address(request))
        wait_s = _wait_s(limits)
        if wait_s:
            raise HTTPException(429, "too many tries", {"Retry-After": str(ceil(wait_s))})
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and given:
            if self._sessions.operator(given.strip()) is not None:
                return
            _count(limits)
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
        address = self._address(request)
        limits = self._limits(role, home, address)
        if wait_s := _wait_s(limits):
            return self._limited(role, home, wait_s)
        if role == "resident":
            session = self._sessions.resident(home, given.get("code", ""))
            why = "That home and access code do not belong together."
        else:
            session = self._sessions.operator(given.get("password", ""))
            why = "That is not the operators' password."
        if session is None:
            _count(limits)
            self._attempts.add((role, "refused"))
            log.info("sign-in refused: %s, from %s", role, address)
            return _form(role, home, why, 401)
        if wait_s := self._accepted.wait_s(session.home_id or role):
            return self._limited(role, home, wait_s)
        self._accepted.add(session.home_id or role)
        self._attempts.add((role, "accepted"))
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
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(
            self._cookie, path="/", secure=self._secure, httponly=True, samesite="strict"
        )
        return response

    def _limited(self, role: Role, home: str, wait_s: float) -> Response:
        self._attempts.add((role, "limited"))
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

    def _address(self, request: Request) -> str:
        """Behind a proxy, the one that it has seen: its own would be everybody's."""
        seen = request.headers.getlist("x-forwarded-for") if self._secure else []
        peer = request.client.host if request.client else "?"
        return _network(seen[-1].rpartition(",")[2].strip()[:64] if seen else peer)


def _network(address: str) -> str:
    """Whoever has one IPv6 address has the 64 bits below it, too."""
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))


def _wait_s(limits: Limits) -> float:
    return max(limit.wait_s(key) for limit, key in limits)


def _count(limits: Limits) -> None:
    for limit, key in limits:
        limit.add(key)


def _form(role: Role, home: str, why: str, status: int = 200) -> Response:
    resident, operator = (why, "") if role == "resident" else ("", why)
    errors = {"resident_error": resident, "operator_error": operator}
    return page("sign-in", status, home=home, role=role, **errors)


def _words(seconds: float) -> str:
    minutes = ceil(seconds / 60)
    return "a minute" if minutes <= 1 else f"{minutes} minutes"
