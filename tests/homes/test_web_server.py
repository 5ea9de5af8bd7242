"""The server under the application: what it takes in is bounded."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from leasehold.homes.web.server import HEAD_BYTES_MAX, WebServer

WELL = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class App:
    """The least that a server serves."""

    def __init__(self) -> None:
        self.state = self.web = self
        self.closing = False
        self.asked = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return
        self.asked += 1
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def wire(app: App) -> Iterator[socket.socket]:
    with WebServer(app) as server, socket.create_connection(("127.0.0.1", server.port), 30) as wire:
        yield wire


def answered(wire: socket.socket) -> bytes:
    return wire.recv(1 << 16).split(b"\r\n")[0]


def test_one_connection_serves_many_requests(wire: socket.socket, app: App) -> None:
    for _ in range(2 * HEAD_BYTES_MAX // len(WELL)):
        wire.sendall(WELL)
        assert b"204" in answered(wire)
    assert app.asked > HEAD_BYTES_MAX // len(WELL)


@pytest.mark.parametrize(
    "piece",
    [b"x", b"a: b\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nx: "],
    ids=["a header without an end", "headers without an end", "a first line again and again"],
)
def test_a_head_without_end_is_refused(wire: socket.socket, app: App, piece: bytes) -> None:
    sent, given = WELL[:-2] + (b"" if piece.endswith(b"\n") else b"x: "), 0
    try:
        while given <= 4 * HEAD_BYTES_MAX:
            wire.sendall(sent)
            given, sent = given + len(sent), piece * 100
    except OSError:
        pass
    assert given <= 4 * HEAD_BYTES_MAX or b"400" in answered(wire)
    assert app.asked == 0


def test_a_large_head_in_one_piece_is_refused(wire: socket.socket, app: App) -> None:
    wire.sendall(WELL[:-2] + b"x: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n")
    assert b"400" in answered(wire)
    assert app.asked == 0
