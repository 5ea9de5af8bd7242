"""An HTTP/1.1 server with bounds: on heads, bodies, connections, and the time for each.

``h11`` takes requests apart: what is ambiguous in HTTP is best left to one well-tested parser.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.errors import MissingExtra

try:
    import h11
except ImportError as error:
    raise MissingExtra(
        "the endpoint needs the package h11: pip install 'leasehold[endpoints]'"
    ) from error

log = logging.getLogger("leasehold")
HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = (2 << 20) + (256 << 10)
BODIES_BYTES_MAX = 64 << 20
"""Of all requests together that are under way."""
CONNECTIONS_MAX = 500
IDLE_S = 120.0
HEAD_S = 15.0
BODY_S = 30.0
WRITE_S = 60.0
READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    """By name in lower case; of several with one name the last."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Answer = Callable[[Request], Awaitable[Reply]]
Refuse = Callable[[Refusal], Reply]


class HttpServer:
    def __init__(self, answer: Answer, refuse: Refuse) -> None:
        self._answer = answer
        self._refuse = refuse
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._body_bytes = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """The port that it listens on."""
        self._server = await asyncio.start_server(
            self._connected, host, port, ssl=tls, limit=READ_BYTES, backlog=128
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = _Connection(reader, writer)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                busy = Refusal(503, f"More than {CONNECTIONS_MAX} connections.")
                await connection.send(self._refuse(busy), closing=True)
                return
            while await self._one(connection):
                pass
        except (TimeoutError, OSError, h11.LocalProtocolError):
            pass  # the client is gone, or never finished
        except asyncio.CancelledError:
            if self._server is not None and self._server.is_serving():
                raise
        finally:
            self._connections.discard(task)
            with suppress(OSError, asyncio.CancelledError):
                writer.close()

    async def _one(self, connection: _Connection) -> bool:
        """Whether there may be another request."""
        held = 0
        try:
            head = await connection.head()
            if head is None:
                return False
            body = bytearray()
            async for data in connection.body():
                self._body_bytes += len(data)
                held += len(data)
                body += data
                if len(body) > BODY_BYTES_MAX:
                    raise Refusal(413, f"A request has {BODY_BYTES_MAX} bytes at most.")
                if self._body_bytes > BODIES_BYTES_MAX:
                    raise Refusal(503, "Too many large requests at once; try again.")
            reply = await self._answer(Request(head.method, head.target, head.headers, bytes(body)))
        except Refusal as refusal:
            await connection.send(self._refuse(refusal), closing=True)
            return False
        except h11.RemoteProtocolError as error:
            status = 431 if error.error_status_hint == 431 else 400
            wrong = Refusal(status, f"This is not HTTP as it should be: {error}")
            await connection.send(self._refuse(wrong), closing=True)
            return False
        finally:
            self._body_bytes -= held
        return await connection.send(reply)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._is_head = False

    async def head(self) -> Request | None:
        """None: the client has nothing more to ask."""
        if not self._http.trailing_data[0]:
            self._http.receive_data(await asyncio.wait_for(self._reader.read(READ_BYTES), IDLE_S))
        async with asyncio.timeout(HEAD_S):
            event = await self._event()
        if not isinstance(event, h11.Request):
            return None
        self._is_head = event.method == b"HEAD"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        return Request(event.method.decode(), event.target.decode("latin-1"), headers)

    async def body(self) -> AsyncIterator[bytes]:
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self._writer.write(self._http.send(go_on) or b"")
        async with asyncio.timeout(BODY_S):
            while not isinstance(event := await self._event(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise ConnectionResetError("the request ended in the middle")
                yield bytes(event.data)

    async def send(self, reply: Reply, *, closing: bool = False) -> bool:
        headers = [*reply.headers.items()]
        has_body = reply.status not in (204, 304)
        if has_body:
            headers.append(("content-length", str(len(reply.body))))
        if closing:
            headers.append(("connection", "close"))
        parts = [self._http.send(h11.Response(status_code=reply.status, headers=headers)) or b""]
        if has_body and reply.body and not self._is_head:
            parts.append(self._http.send(h11.Data(data=reply.body)) or b"")
        parts.append(self._http.send(h11.EndOfMessage()) or b"")
        self._writer.write(b"".join(parts))
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()
            if closing:
                await self._discard()
        if closing or self._http.our_state is not h11.DONE:
            return False
        if self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _discard(self) -> None:
        """A connection that is closed while the client still sends is reset, and the client never
        reads why."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(2.0):
                while await self._reader.read(READ_BYTES):
                    pass

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event
