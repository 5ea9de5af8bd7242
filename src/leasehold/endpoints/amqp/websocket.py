"""WebSocket (RFC 6455) around AMQP, subprotocol AMQPWSB10: the server's side, on bytes alone."""

from __future__ import annotations

import base64
import hashlib
import struct

from leasehold.endpoints.amqp.errors import FRAMING, ConnectionFailed

BEGIN = b"GET "
SUBPROTOCOL = "AMQPWSB10"
HANDSHAKE_BYTES_MAX = 16_384
MESSAGE_BYTES_MAX = 1 << 20
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10


class WebSocket:
    """Bytes from the socket in; what they carry, and what to answer, out."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._open = False
        self.closed = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """What was carried, and an answer to send as it is."""
        self._held += data
        answer = b""
        if not self._open:
            answer = self._handshake()
            if not self._open:
                return b"", answer
        carried = bytearray()
        while (frame := self._frame()) is not None:
            kind, payload = frame
            if kind in (_CONTINUATION, _TEXT, _BINARY):
                carried += payload
            elif kind == _PING:
                answer += _header(_PONG, len(payload)) + payload
            elif kind == _CLOSE:
                self.closed = True
                answer += _header(_CLOSE, len(payload)) + payload
                break
        return bytes(carried), answer

    def wrap(self, data: bytes) -> bytes:
        return _header(_BINARY, len(data)) + data

    def _handshake(self) -> bytes:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            if len(self._held) > HANDSHAKE_BYTES_MAX:
                raise ConnectionFailed(FRAMING, "the WebSocket handshake is too long")
            return b""
        lines = self._held[:end].decode("latin-1").split("\r\n")[1:]
        del self._held[: end + 4]
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        key = headers.get("sec-websocket-key")
        offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
        if key is None or SUBPROTOCOL not in offered:
            self.closed = True
            return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        digest = hashlib.sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()
        self._open = True
        return (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        ).encode()

    def _frame(self) -> tuple[int, bytes] | None:
        held = self._held
        if self.closed or len(held) < 2:
            return None
        size, at = held[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(held) < at + width:
                return None
            size, at = int.from_bytes(held[at : at + width]), at + width
        if size > MESSAGE_BYTES_MAX:
            raise ConnectionFailed(FRAMING, f"a WebSocket frame of {size} bytes is too large")
        if not held[1] & 0x80:
            raise ConnectionFailed(FRAMING, "a WebSocket client masks what it sends")
        begin = at + 4
        if len(held) < begin + size:
            return None
        mask, payload = bytes(held[at:begin]), bytes(held[begin : begin + size])
        kind = held[0] & 0x0F
        del held[: begin + size]
        return kind, _unmasked(payload, mask)


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(pattern)).to_bytes(size)


def _header(kind: int, size: int) -> bytes:
    if size < 126:
        return bytes((0x80 | kind, size))
    if size < 1 << 16:
        return struct.pack(">BBH", 0x80 | kind, 126, size)
    return struct.pack(">BBQ", 0x80 | kind, 127, size)
