"""One connection: what it may send, and how long it may take for it.

The parser under it has no bounds of its own. It also takes the trailers of a chunked body for
headers, which nobody has looked at by then.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from math import inf
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from homes.web.limits import ClientConnections, ServerLimits

HEAD_BYTES_MAX = 16 << 10
HEADERS_MAX = 100
BODY_BYTES_MAX = 32 << 10
"""On the wire: with the frames of its chunks, their extensions and its trailers."""
PIECE_BYTES = 4 << 10
"""What is parsed at a time, so that a bound is noticed no later than this."""
LINGER_S, LINGER_BYTES_MAX = 2.0, 1 << 20
"""For a client to read why it was refused: closed at once, what it still sends would reset the
connection before that."""

TAKEN_BYTES_MIN = 256 << 10
"""What a client must take of its answer within ``write_timeout_s``, unless that is all of it."""


class BoundedHttp(HttpToolsProtocol):
    def __init__(
        self, *, limits: ServerLimits, connections: ClientConnections, **given: Any
    ) -> None:
        super().__init__(**given)
        self._limits, self._admitted = limits, connections
        self._in_head, self._part_bytes = True, 0
        self._deadline = inf
        """When the part of a request that is under way must be here."""
        self._wrong = HTTPStatus.BAD_REQUEST
        self._deaf = False
        """Nothing that comes is read any more."""
        self._dropped_bytes = 0
        self._taken_bytes, self._taken_at = -TAKEN_BYTES_MIN, inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._written = _CountedTransport(transport)
        super().connection_made(self._written)  # type: ignore[arg-type]
        self._await(self._limits.head_timeout_s)
        if not self._admitted.admit(self, self.client[0] if self.client else ""):
            self._deaf = True
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._admitted.leave(self)
        super().connection_lost(exc)

    def give_way(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._deadline == inf and not self._underway:
            self._await(self._limits.head_timeout_s)
        for begin in range(0, len(data), PIECE_BYTES):
            if self._deaf or self.transport.is_closing():
                self._drop(len(data) - begin)
                return
            self._parse(data[begin : begin + PIECE_BYTES])

    def sweep(self, now: float) -> None:
        """Now and then: end what takes too long."""
        unsent = self.transport.get_write_buffer_size()
        taken = self._written.bytes - unsent
        if taken - self._taken_bytes >= TAKEN_BYTES_MIN or not unsent:  # slow is not gone
            self._taken_bytes, self._taken_at = taken, now
        if now - self._taken_at > self._limits.write_timeout_s:
            self.transport.abort()
        elif now >= self._deadline:
            if self._deaf:
                self.transport.abort()
            else:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def on_message_begin(self) -> None:
        if self._underway:
            raise _AnotherRequest
        super().on_message_begin()
        self._in_head, self._part_bytes = True, 0
        self._await(self._limits.head_timeout_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer
            return
        if len(self.headers) >= HEADERS_MAX:
            self._wrong = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(n) + len(v) for n, v in self.headers) > HEAD_BYTES_MAX:
            self._wrong = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("the head is too large")
        super().on_headers_complete()
        self._in_head, self._part_bytes = False, 0
        self._await(self._limits.body_timeout_s)

    def on_message_complete(self) -> None:
        self._in_head, self._part_bytes = True, 0
        self._deadline = inf
        super().on_message_complete()
        if self._underway:
            self._admitted.answers(self)

    def on_response_complete(self) -> None:
        self._admitted.waits(self)
        super().on_response_complete()

    @property
    def _underway(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds

    def _parse(self, piece: bytes) -> None:
        self._part_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._last_answer()
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _AnotherRequest):
                self._last_answer()
            else:
                self._refuse(self._wrong)
        else:
            if self._part_bytes > (HEAD_BYTES_MAX if self._in_head else BODY_BYTES_MAX):
                self._refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                    if self._in_head
                    else HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                )

    def _last_answer(self) -> None:
        """One request at a time: who sends the next before the answer gets the answer, and has to
        ask again. The same for who would like to speak another protocol."""
        self._deaf, self._deadline = True, inf
        self.cycle.keep_alive = False

    def _refuse(self, status: HTTPStatus) -> None:
        begun = self._underway if self._in_head else self.cycle.response_started
        if not begun:
            self._answer(status)
        if self._underway:  # whoever waits for the rest of the request learns that it never comes
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._deaf = True
        self._await(LINGER_S)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _answer(self, status: HTTPStatus) -> None:
        text = f"{status.phrase}\n"
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(text)}\r\n"
            f"connection: close\r\n\r\n{text}".encode()
        )

    def _drop(self, count: int) -> None:
        self._dropped_bytes += count
        if self._dropped_bytes > LINGER_BYTES_MAX:
            self.transport.abort()


class _CountedTransport:
    """Tells how much was ever written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self.bytes = transport, 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _AnotherRequest(Exception):
    """Before the last one is answered."""
