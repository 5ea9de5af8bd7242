"""Pages that are updated while they are open, by server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from homes.web.sessions import Session, Sessions
from leasehold import LeaseholdError

log = logging.getLogger("leasehold")
LIVE_S = 1.0
KEEP_ALIVE_S = 15.0
STREAMS_PER_HOME = 16
STREAMS_OF_OPERATORS = 64
STREAMS_OF_HOMES = 2000
"""Of all homes together; operators come in all the same."""

About = Callable[[], Awaitable[dict[str, Any]]]


class Live:
    def __init__(self, sessions: Sessions, streams_max: int = STREAMS_OF_HOMES) -> None:
        self._sessions, self._streams_max = sessions, min(streams_max, STREAMS_OF_HOMES)
        self._open: Counter[str] = Counter()
        self.closing = False
        """Set it to let pages that are open go, so that a server can stop."""

    @property
    def open(self) -> int:
        return self._open.total()

    def stream(self, session: Session, event: str, about: About) -> Response:
        """What ``about`` says, again whenever it changes, while the session lasts."""
        return _CountedStream(self._events(session, event, about), self._counted(session))

    @contextmanager
    def _counted(self, session: Session) -> Iterator[None]:
        # Not by session: anybody may begin many.
        who, home = session.home_id or session.role, session.home_id is not None
        if self._open[who] >= (STREAMS_PER_HOME if home else STREAMS_OF_OPERATORS):
            raise HTTPException(429, "too many open pages", {"Retry-After": "10"})
        if home and self._open.total() - self._open["operator"] >= self._streams_max:
            raise HTTPException(503, "too many open pages", {"Retry-After": "30"})
        self._open[who] += 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    async def _events(self, session: Session, event: str, about: About) -> AsyncIterator[str]:
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


class _CountedStream(StreamingResponse):
    """Counted around the whole answer, not in its events: those begin later, so that many requests
    at once would all be let in, and never if the client has gone by then."""

    def __init__(self, events: AsyncIterator[str], counted: AbstractContextManager[None]) -> None:
        headers = {"X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)
