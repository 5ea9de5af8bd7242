"""What holds for every request, whatever its route: headers, hosts, origins, sizes."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from homes.web.proxies import Proxies

BODY_BYTES_MAX = 4096
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: browsers would then send forms with "Origin: null".
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None,
        secure: bool,
        proxies: Proxies,
        origin: str | None = None,
    ) -> None:
        """``hosts``: the names we answer to, so that no other site's name can be made to point
        here; None: any. ``secure``: we are behind TLS. ``origin``: of the page in browsers, where
        a proxy does not pass it on as ``Host``."""
        self._app, self._hosts, self._secure = app, hosts, secure
        self._proxies, self._origin = proxies, origin
        self._scheme = "https" if secure else "http"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if self._secure:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        scope["scheme"] = self._scheme
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        await self._app(scope, _bounded(receive), guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            return refused(421, "this server does not answer to that name")
        reading = scope["method"] in ("GET", "HEAD")
        if reading and self._in_the_clear(scope, headers):
            return RedirectResponse(self._encrypted(scope, host), 308)
        if reading:
            return None
        if not self._same_origin(headers, host):
            return refused(403, "requests that change something must come from our own pages")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > BODY_BYTES_MAX:
            return refused(413, f"a body has {BODY_BYTES_MAX} bytes at most")
        return None

    def _in_the_clear(self, scope: Scope, headers: Headers) -> bool:
        """Whether the proxy says that it was asked without TLS."""
        peer = (scope.get("client") or ("?",))[0]
        said = headers.getlist("x-forwarded-proto")
        return (
            self._secure
            and bool(said)
            and said[-1].rpartition(",")[2].strip().lower() == "http"
            and self._proxies.trusted(peer)
        )

    def _encrypted(self, scope: Scope, host: str) -> str:
        query = scope["query_string"].decode("latin-1")
        path = quote(scope["path"]) + (f"?{query}" if query else "")
        return (self._origin or f"https://{host}") + path

    def _same_origin(self, headers: Headers, host: str) -> bool:
        """Every browser of today sends an Origin with what is not a GET."""
        origin = headers.get("origin", "")
        return bool(host) and origin in (self._origin, f"{self._scheme}://{host}")


class BodyTooLarge(Exception):
    """A body without a length turned out to be larger than any we take."""


def refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status)


def _bounded(receive: Receive) -> Receive:
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_BYTES_MAX:
            raise BodyTooLarge
        return message

    return bounded


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
