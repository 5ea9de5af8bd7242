"""One client's connection: bytes in, frames to their sessions, bytes out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leasehold.endpoints.amqp import sasl
from leasehold.endpoints.amqp.codec import Symbol, UInt, UShort
from leasehold.endpoints.amqp.errors import (
    FORCED,
    FRAMING,
    INTERNAL,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
    AmqpError,
    ConnectionFailed,
    LinkFailed,
)
from leasehold.endpoints.amqp.frames import (
    EMPTY_FRAME,
    FRAME_BYTES_MAX,
    AmqpFrame,
    Begin,
    Close,
    End,
    FrameReader,
    Header,
    Open,
    SaslInit,
    encode_frame,
)
from leasehold.endpoints.amqp.links import Link
from leasehold.endpoints.amqp.session import AmqpSession
from leasehold.endpoints.amqp.tokens import Granted, covers
from leasehold.endpoints.amqp.websocket import BEGIN, WebSocket

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.endpoint import AmqpEndpoint

log = logging.getLogger("leasehold")
CHANNEL_MAX = 4999
LINKS_MAX = 5000
UNKNOWN_MAX = 16
"""Sessions and links, each, of a peer that has not brought a token yet."""
GRANTS_MAX = 256
OPEN_WITHIN_S = 30.0
SILENT_MAX_S = 240.0
"""Said to the peer, which then sends an empty frame in time; twice as long is tolerated."""
PARTS_BYTES_MAX = 16 << 20
WRITE_BUFFER_BYTES = 1 << 20
UNREAD_BYTES_MAX = 4 << 20
"""Of answers that the peer does not read. Deliveries wait before there are so many."""
CLOSE_WITHIN_S = 10.0
SASL_PROTOCOL = 3


class AmqpConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, endpoint: AmqpEndpoint) -> None:
        self.endpoint = endpoint
        self.peer_frame_bytes = FRAME_BYTES_MAX
        self.queued_bytes = 0
        """Of what it sent and is not stored yet."""
        self.writable = asyncio.Event()
        self.writable.set()
        self._parts_bytes = 0
        self._reader = FrameReader()
        self._begun = False
        self._websocket: WebSocket | None = None
        self._sessions: dict[int, AmqpSession] = {}
        self._granted: list[Granted] = []
        self._opened = self._closed = False
        self._tag = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._heard_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if not self.endpoint.admit(self):
            self._closed = True
            transport.abort()
            return
        self._later(OPEN_WITHIN_S, self._require_open)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self.writable.set()
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()
        for timer in self._timers:
            timer.cancel()
        self.endpoint.dismiss(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._heard_at = time.monotonic()
        try:
            self._reader.feed(self._unwrapped(data))
            while not self._closed and (found := self._reader.next()) is not None:
                self._handle(found)
        except AmqpError as error:
            self.close(error)
        except Exception as error:
            self.close(self.internal(error))

    def _unwrapped(self, data: bytes) -> bytes:
        if not self._begun:
            self._begun = True
            if data[: len(BEGIN)] == BEGIN:
                self._websocket = WebSocket()
        if self._websocket is None:
            return data
        carried, answer = self._websocket.receive(data)
        if answer:
            self._to_socket(answer)
        if self._websocket.closed:
            self._closed = True
            self.transport.close()
        return carried

    def _handle(self, found: Header | AmqpFrame) -> None:
        if isinstance(found, Header):
            self._write_now(found.raw)
            if found.protocol == SASL_PROTOCOL:
                self.send(0, sasl.mechanisms())
            return
        what = found.performative
        if isinstance(what, SaslInit):
            self._authenticate(what)
        elif isinstance(what, Open):
            self._open(what)
        elif what is None:
            return
        elif not self._opened:
            raise ConnectionFailed(NOT_ALLOWED, "a connection begins with open")
        elif isinstance(what, Begin):
            self._begin(found.channel, what)
        elif isinstance(what, Close):
            self.close(None)
        elif (session := self._sessions.get(found.channel)) is None:
            if not isinstance(what, End):  # which crossed ours
                raise ConnectionFailed(NOT_ALLOWED, f"channel {found.channel} has no session")
        elif isinstance(what, End):
            session.close()
            self.forget(session)
            self.send(found.channel, End())
        else:
            session.handle(what, found.payload)

    def _authenticate(self, init: SaslInit) -> None:
        outcome, trusted = sasl.answer(init, self.endpoint.access)
        self.send(0, outcome)
        if outcome.code:
            self._closed = True
            self.transport.close()
            return
        if trusted:
            self._granted.append(Granted("", float("inf")))
        self._reader.expects_header = True

    def _open(self, what: Open) -> None:
        if self._opened:
            raise ConnectionFailed(NOT_ALLOWED, "the connection is open already")
        self._opened = True
        size = what.max_frame_size or FRAME_BYTES_MAX
        if size < 512:
            raise ConnectionFailed(FRAMING, "frames of 512 bytes must be allowed")
        self.peer_frame_bytes = min(size, FRAME_BYTES_MAX)
        self.send(
            0,
            Open(
                "leasehold",
                what.hostname,
                UInt(FRAME_BYTES_MAX),
                UShort(CHANNEL_MAX),
                UInt(int(SILENT_MAX_S * 1000)),
                properties={Symbol("product"): "leasehold"},
            ),
        )
        if what.idle_time_out:
            self._beat(max(0.1, what.idle_time_out / 2000))
        self._watch()

    def _begin(self, channel: int, what: Begin) -> None:
        if channel in self._sessions or channel > CHANNEL_MAX:
            raise ConnectionFailed(NOT_ALLOWED, f"channel {channel} cannot be used")
        self._require_known(len(self._sessions))
        self._sessions[channel] = AmqpSession(self, channel, what)

    def forget(self, session: AmqpSession) -> None:
        if self._sessions.get(session.channel) is session:
            del self._sessions[session.channel]

    def links(self) -> Iterator[Link]:
        for session in self._sessions.values():
            yield from session.links.values()

    def count_link(self) -> None:
        links = sum(len(session.links) for session in self._sessions.values())
        if links >= LINKS_MAX:
            raise ConnectionFailed(RESOURCE_LIMIT, f"a connection has at most {LINKS_MAX} links")
        self._require_known(links)

    def _require_known(self, count: int) -> None:
        """Whoever has no token gets little of our memory."""
        if count >= UNKNOWN_MAX and not self._granted:
            raise ConnectionFailed(
                RESOURCE_LIMIT, f"without a token, {UNKNOWN_MAX} sessions and links must do"
            )

    def send(self, channel: int, performative: Any) -> None:
        self._write_now(encode_frame(channel, performative))

    def write(self, frames: bytes) -> None:
        if frames:
            self._write_now(frames)

    def _write_now(self, data: bytes) -> None:
        self._to_socket(data if self._websocket is None else self._websocket.wrap(data))

    def _to_socket(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(data)
        if self.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            log.warning("an AMQP client does not read what it asked for: it is disconnected")
            self._closed = True
            self.transport.abort()

    def next_tag(self) -> bytes:
        """Short and from a small space: azure-eventhub for Python remembers every tag that it saw,
        and what is settled needs none of its own."""
        self._tag = (self._tag + 1) % 256
        return bytes((self._tag,))

    def hold_parts(self, more_bytes: int) -> None:
        """Count what deliveries that are not complete, and answers that nobody takes, take up."""
        self._parts_bytes += more_bytes
        room = self.endpoint.hold_parts(more_bytes) and self._parts_bytes <= PARTS_BYTES_MAX
        if more_bytes > 0 and not room:
            raise ConnectionFailed(
                RESOURCE_LIMIT, "too many messages are begun and not finished, or not taken"
            )

    def pause_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def grant(self, granted: Granted) -> None:
        now = time.time()
        kept = [each for each in self._granted if each.expires_at > now]
        self._granted = [*kept[-GRANTS_MAX:], granted]
        self._later(granted.expires_at - now + 0.01, self._expire, granted)

    def require_token(self, path: str) -> None:
        now = time.time()
        if not any(covers(each.path, path) and each.expires_at > now for each in self._granted):
            raise LinkFailed(
                UNAUTHORIZED, f"Unauthorized access. 'Send' or 'Listen' needs a token for '{path}'."
            )

    def _expire(self, granted: Granted) -> None:
        """Links whose token ran out end; those that were renewed in time stay."""
        if (left_s := granted.expires_at - time.time()) > 0:
            self._later(left_s + 0.01, self._expire, granted)
            return
        for link in list(self.links()):
            wanted = link.needs_token
            if wanted is None:
                continue
            try:
                self.require_token(wanted)
            except LinkFailed:
                link.fail(LinkFailed(UNAUTHORIZED, "ExpiredToken: The token is expired."))

    def close(self, error: AmqpError | None) -> None:
        """Say goodbye, and hang up once that is sent."""
        if self._closed and error is None:
            return
        self._closed = True
        if self._opened:
            self.send(0, Close(None if error is None else error.described()))
        self.transport.close()
        # Whoever does not read it is not waited for.
        asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self.transport.abort)

    def internal(self, error: BaseException) -> LinkFailed:
        log.error("an AMQP connection met an error of ours", exc_info=error)
        return LinkFailed(INTERNAL, f"the endpoint failed: {type(error).__name__}: {error}")

    def _require_open(self) -> None:
        if not self._opened:
            self._closed = True
            self.transport.abort()

    def _beat(self, every_s: float) -> None:
        self._write_now(EMPTY_FRAME)
        self._later(every_s, self._beat, every_s)

    def _watch(self) -> None:
        silent_s = time.monotonic() - self._heard_at
        if silent_s > 2 * SILENT_MAX_S:
            self.close(ConnectionFailed(FORCED, f"nothing was heard for {silent_s:.0f} s"))
            return
        self._later(SILENT_MAX_S / 4, self._watch)

    def _later(self, delay_s: float, call: Any, *arguments: Any) -> None:
        loop = asyncio.get_running_loop()
        delay_s = min(max(delay_s, 0.0), 86_400.0)

        def now() -> None:
            self._timers.discard(timer)
            if not self.transport.is_closing():
                call(*arguments)

        timer = loop.call_later(delay_s, now)
        self._timers.add(timer)
