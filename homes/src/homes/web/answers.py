"""Pages, and answers to what went wrong: they say enough, and nothing about our insides."""

from __future__ import annotations

import logging
from html import escape
from pathlib import Path
from string import Template

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from homes.web.guard import BodyTooLarge, refused
from leasehold import BadInput, LeaseholdError, strict_json

log = logging.getLogger("leasehold")
PAGES = Path(__file__).parent / "pages"


def page(name: str, status: int = 200, **values: str) -> Response:
    text = Template((PAGES / f"{name}.html").read_text())
    return HTMLResponse(text.substitute({k: escape(v) for k, v in values.items()}), status)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith("/api/") or request.url.path == "/metrics":
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    text = {404: "There is nothing here.", 405: "That cannot be done here."}
    answer = page("error", error.status_code, what=text.get(error.status_code, error.detail))
    answer.headers.update(error.headers or {})
    return answer


async def _too_large(request: Request, error: Exception) -> Response:
    return refused(413, "the body is too large")


async def _unavailable(request: Request, error: Exception) -> Response:
    if isinstance(error, BadInput):
        return refused(409, str(error))
    log.warning("%s: %s", request.url.path, error)
    return refused(503, "not available right now; try again")


async def _gone(request: Request, error: Exception) -> Response:
    """The client went away in the middle of its request: nobody hears the answer, and there is
    nothing to look into."""
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    return refused(500, "something went wrong; it is in the server's log")


ERRORS = {
    HTTPException: _refuse,
    BodyTooLarge: _too_large,
    ClientDisconnect: _gone,
    LeaseholdError: _unavailable,
    Exception: _failed,
}


async def text_field(request: Request, name: str) -> str:
    """A field of a JSON body; whatever else it may be is refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body is application/json")
    try:
        body = strict_json.loads(await request.body())
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is no JSON") from None
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, str) or not value or len(value) > 256:
        raise HTTPException(400, f"the body is an object with {name}, a text")
    return value
