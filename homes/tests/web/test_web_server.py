"""The server under the application: what it takes in is bounded, and so is its patience."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from math import inf
from select import select
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processing import wait_until

from homes.web.http import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    TAKEN_BYTES_MIN,
    BoundedHttp,
)
from homes.web.limits import ClientConnections, ServerLimits, connections_possible
from homes.web.server import WebServer
from leasehold.errors import BadInput

WELL = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSE = b"\r\nConnection: close\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
HASTY = ServerLimits(
    head_timeout_s=0.5, body_timeout_s=0.5, idle_timeout_s=0.5, write_timeout_s=0.5
)
MANY = b"y" * (8 << 20)


class App:
    """The least that a server serves. It reads what is posted, and answers /many with a lot."""

    def __init__(self) -> None:
        self.state = self.web = self
        self.closing = False
        self.asked = 0
        self.headers: list[dict[bytes, bytes]] = []
        self.bodies: list[bytes] = []
        self.gone = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return
        self.asked += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            body, more = body + message["body"], message["more_body"]
        self.headers.append(dict(scope["headers"]))
        self.bodies.append(body)
        if scope["path"] == "/hold":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.gone += 1
            return
        many = scope["path"] == "/many"
        await send(
            {"type": "http.response.start", "status": 200 if many else 204, "headers": []},
        )
        for _ in range(64 if many else 0):
            await send({"type": "http.response.body", "body": MANY[: 1 << 17], "more_body": True})
        await send({"type": "http.response.body"})


ADDRESSES = st.sampled_from(["192.0.2.1", "192.0.2.2", "192.0.2.3"])


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def wire(app: App) -> Iterator[socket.socket]:
    with WebServer(app) as server, connected(server) as wire:
        yield wire


@pytest.fixture
def hasty(app: App) -> Iterator[WebServer]:
    """A server that waits for half a second at most."""
    with WebServer(app, limits=HASTY) as server:
        yield server


def connected(server: WebServer, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 60, (source, 0))


def held(server: WebServer, app: App, source: str) -> socket.socket:
    """One that waits for its answer."""
    asked, wire = app.asked, connected(server, source)
    wire.sendall(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: app.asked > asked)
    return wire


def answered(wire: socket.socket) -> bytes:
    return wire.recv(1 << 16).split(b"\r\n")[0]


def rest(wire: socket.socket) -> bytes:
    """Until the server ends it."""
    found = b""
    with suppress(ConnectionError):
        while more := wire.recv(1 << 16):
            found += more
    return found


def pour(wire: socket.socket, piece: bytes, most: int) -> bytes:
    """Send it over and over, until it is refused."""
    given = 0
    with suppress(OSError):
        while given < most:
            wire.sendall(piece)
            given += len(piece)
    return rest(wire)


def test_one_connection_serves_many_requests(wire: socket.socket, app: App) -> None:
    for _ in range(2 * HEAD_BYTES_MAX // len(WELL)):
        wire.sendall(WELL)
        assert b"204" in answered(wire)
    assert app.asked > HEAD_BYTES_MAX // len(WELL)


@pytest.mark.parametrize(
    "piece",
    [b"x", b"a: b\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ", b"\r\n"],
    ids=[
        "a header without an end",
        "headers without an end",
        "a first line again and again",
        "empty lines",
    ],
)
def test_a_head_without_end_is_refused(wire: socket.socket, app: App, piece: bytes) -> None:
    if piece != b"\r\n":
        wire.sendall(WELL[:-2] + (b"" if piece.endswith(b"\n") else b"x: "))
    assert pour(wire, piece * 100, 64 << 20)[:12] in (b"HTTP/1.1 431", b"")
    assert app.asked == 0


def test_a_large_head_in_one_piece_is_refused(wire: socket.socket, app: App) -> None:
    wire.sendall(WELL[:-2] + b"x: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n")
    assert b"431" in answered(wire)
    assert app.asked == 0


def test_a_head_of_many_small_headers_is_refused(wire: socket.socket, app: App) -> None:
    wire.sendall(WELL[:-2] + b"a:\r\n" * HEADERS_MAX + b"\r\n")
    assert b"431" in answered(wire)
    assert app.asked == 0


def test_trailers_are_dropped(wire: socket.socket, app: App) -> None:
    trailers = b"Cookie: forged=1\r\nOrigin: http://localhost\r\nX-Forwarded-For: 192.0.2.1\r\n"
    wire.sendall(CHUNKED + b"3\r\nabc\r\n0\r\n" + trailers + b"\r\n")
    assert b"204" in answered(wire)
    wire.sendall(WELL)  # nor do they become headers of the next
    assert b"204" in answered(wire)
    assert app.bodies == [b"abc", b""]
    for headers in app.headers:
        assert headers.keys() <= {b"host", b"transfer-encoding"}


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"0\r\n", b"Trailer: xxxxxxxxxxxxxxxx\r\n"),
        (b"0\r\nTrailer: ", b"x"),
        (b"", b"1;extension=xxxxxxxx\r\nx\r\n"),
        (b"1;extension=", b"x"),
        (b"", b"1\r\nx\r\n"),
        (b"ffffffff\r\n", b"x"),
    ],
    ids=["trailers", "one trailer", "extensions", "one extension", "chunks", "one chunk"],
)
def test_whatever_follows_the_head_has_one_bound(
    wire: socket.socket, app: App, begin: bytes, piece: bytes
) -> None:
    wire.sendall(CHUNKED + begin)
    assert pour(wire, piece * (BODY_BYTES_MAX // 8 // len(piece)), 64 << 20)[:12] in (
        b"HTTP/1.1 413",
        b"",
    )
    wait_until(lambda: app.gone == app.asked)
    assert app.bodies == []


def test_a_body_up_to_the_bound_is_taken(wire: socket.socket, app: App) -> None:
    body = b"x" * (BODY_BYTES_MAX - 4096)
    wire.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert b"204" in answered(wire)
    assert app.bodies == [body]


def test_who_asks_again_before_the_answer_gets_one_answer(wire: socket.socket, app: App) -> None:
    wire.sendall(WELL * 5000)
    assert rest(wire).count(b"HTTP/1.1 204") == 1
    assert app.asked == 1


def test_the_end_of_a_connection_is_noticed_whatever_was_sent_after_the_request(
    wire: socket.socket, app: App
) -> None:
    wire.sendall(WELL.replace(b"/ ", b"/hold "))
    wait_until(lambda: app.asked == 1)
    wire.sendall(WELL)
    wire.close()
    wait_until(lambda: app.gone == 1)


def test_who_wants_another_protocol_gets_the_answer_in_this_one(
    wire: socket.socket, app: App
) -> None:
    wire.sendall(WELL[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\n")
    assert rest(wire).count(b"HTTP/1.1") == 1
    assert app.asked == 1


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", b"HTTP/1.1 408"),
        (b"\r\n", b"HTTP/1.1 408"),
        (b"GET / HTTP/1.1\r\nHost: loc", b"HTTP/1.1 408"),
        (CHUNKED, b"HTTP/1.1 408"),
        (CHUNKED + b"3\r\nabc\r\n0\r\nTrai", b"HTTP/1.1 408"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n1234", b"HTTP/1.1 408"),
        (WELL, b"HTTP/1.1 204"),
        (WELL + WELL[:9], b"HTTP/1.1 204"),
    ],
    ids=["idle", "a line", "head", "body", "trailer", "length", "kept", "next head"],
)
def test_who_does_not_go_on_is_let_go(hasty: WebServer, app: App, sent: bytes, said: bytes) -> None:
    with connected(hasty) as wire:
        wire.sendall(sent)
        assert rest(wire)[:12] == said
    wait_until(lambda: app.gone + len(app.bodies) == app.asked)


def test_a_byte_now_and_then_does_not_prolong_it(hasty: WebServer) -> None:
    with connected(hasty) as wire:
        wire.sendall(b"GET /")
        wire.settimeout(0.05)
        found = b""
        while not found:
            try:
                wire.sendall(b"x")
                found = wire.recv(12)
            except TimeoutError:
                continue
        assert found == b"HTTP/1.1 408"


def test_who_does_not_read_its_answer_is_let_go(hasty: WebServer, app: App) -> None:
    with connected(hasty) as wire:
        wire.sendall(WELL.replace(b"/ ", b"/many "))
        wait_until(lambda: app.asked == 1)
        wait_until(lambda: len(hasty.connections) == 0)
        assert len(rest(wire)) < len(MANY)


def test_a_slow_reader_that_reads_gets_all(app: App) -> None:
    """However long it takes for all of it: there is always something that it has not taken yet."""
    limits = ServerLimits(write_timeout_s=1.5)
    with WebServer(app, limits=limits) as server, socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # the kernel keeps little
        wire.settimeout(60)
        wire.connect(("127.0.0.1", server.port))
        wire.sendall(WELL.replace(b"/ ", b"/many ").replace(b"\r\n\r\n", CLOSE))
        began, size = time.monotonic(), 0
        while more := wire.recv(1 << 16):
            size += len(more)
            time.sleep(0.03)
    assert time.monotonic() - began > 2 * limits.write_timeout_s, "it was no slow reader"
    assert size > len(MANY)


@pytest.mark.parametrize(("taken_each_s", "ends"), [(1_000, True), (20_000, False)])
def test_a_little_of_the_answer_now_and_then_does_not_keep_a_connection(
    taken_each_s: int, ends: bool
) -> None:
    """The kernel takes as much at a time as it likes, so nothing is sent here."""
    unsent, aborted = 4 << 20, []
    http: Any = SimpleNamespace(
        transport=SimpleNamespace(
            get_write_buffer_size=lambda: unsent, abort=lambda: aborted.append(True)
        ),
        _written=SimpleNamespace(bytes=unsent),
        _limits=ServerLimits(),
        _taken_bytes=-TAKEN_BYTES_MIN,
        _taken_at=inf,
        _deadline=inf,
    )
    for second in range(60):
        BoundedHttp.sweep(http, float(second))
        unsent -= taken_each_s
    assert bool(aborted) == ends


def test_one_address_cannot_take_all_connections(app: App) -> None:
    limits = ServerLimits(connections_max=16, connections_per_address=8)
    with WebServer(app, limits=limits) as server, ExitStack() as stack:
        wires = [stack.enter_context(held(server, app, "127.0.0.2")) for _ in range(8)]
        refused = [stack.enter_context(connected(server, "127.0.0.2")) for _ in range(32)]
        assert {rest(wire)[:12] for wire in refused} == {b"HTTP/1.1 503"}
        with connected(server) as other:
            other.sendall(WELL)
            assert b"204" in answered(other)
        wait_until(lambda: len(server.connections) == 8)
        more = [stack.enter_context(held(server, app, f"127.0.0.{n}")) for n in range(3, 11)]
        late = [stack.enter_context(connected(server, f"127.0.0.{n}")) for n in range(11, 43)]
        assert {rest(wire)[:12] for wire in late} == {b"HTTP/1.1 503"}
        for wire in (*wires, *more):
            wire.close()
        wait_until(lambda: len(server.connections) == 0)
        with connected(server, "127.0.0.2") as again:
            again.sendall(WELL)
            assert b"204" in answered(again)


@pytest.mark.parametrize(
    "half", [b"", b"GET / HT", CHUNKED + b"9", WELL], ids=["nothing", "head", "body", "answered"]
)
@pytest.mark.parametrize("sources", [1, 40], ids=["one address", "many addresses"])
def test_the_longest_silent_connection_gives_way_to_the_next(
    app: App, half: bytes, sources: int
) -> None:
    limits = ServerLimits(connections_max=16, connections_per_address=8)
    with WebServer(app, limits=limits) as server, ExitStack() as stack:
        asking = stack.enter_context(held(server, app, "127.0.0.1"))
        for n in range(40):
            wire = stack.enter_context(connected(server, f"127.0.0.{1 + n % sources}"))
            wire.sendall(half)
            wait_until(lambda: len(server.connections) <= 16)
        with connected(server, "127.0.0.1") as other:
            other.sendall(WELL)
            assert b"204" in answered(other)
        assert not select([asking], [], [], 0)[0]  # who is being answered stays


def test_a_trusted_proxy_has_as_many_as_there_are() -> None:
    limits = ServerLimits(connections_max=16, connections_per_address=8)
    connections = ClientConnections(limits, "192.0.2.1".__eq__)
    assert [admitted(connections, "192.0.2.1") for _ in range(17)] == [True] * 16 + [False]


def test_addresses_of_one_ipv6_network_share_their_connections() -> None:
    connections = ClientConnections(ServerLimits(connections_per_address=2), lambda address: False)
    asked = [admitted(connections, f"2001:db8:1:1::{n}") for n in range(3)]
    assert asked == [True, True, False]
    assert admitted(connections, "2001:db8:1:2::1")


class Silent:
    def __init__(self) -> None:
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


def admitted(connections: ClientConnections, address: str) -> bool:
    """One that sends a whole request at once."""
    connection = Silent()
    here = connections.admit(connection, address)
    connections.answers(connection)
    return here


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "waits", "answers", "leave"]), st.integers(0, 7), ADDRESSES
        ),
        max_size=60,
    )
)
def test_there_are_never_more_connections_than_allowed_and_none_goes_while_it_is_answered(
    steps: list[tuple[str, int, str]],
) -> None:
    limits = ServerLimits(connections_max=4, connections_per_address=3)
    connections = ClientConnections(limits, lambda address: False)
    inside: dict[int, tuple[Silent, str]] = {}
    answering: set[int] = set()
    for step, n, address in steps:
        if step == "admit" and n not in inside:
            connection = Silent()
            of_address = [key for key, (_, its) in inside.items() if its == address]
            crowd = of_address if len(of_address) >= 2 else inside if len(inside) >= 4 else ()
            here = connections.admit(connection, address)
            assert here == (not crowd or not answering.issuperset(crowd))
            if here:
                inside[n] = connection, address
        elif n in inside and step != "admit":
            getattr(connections, step)(inside[n][0])
            answering = answering | {n} if step == "answers" else answering - {n}
            if step == "leave":
                del inside[n]
        gone = {key for key, (connection, _) in inside.items() if connection.gone}
        assert gone.isdisjoint(answering)
        inside = {key: found for key, found in inside.items() if key not in gone}
        assert len(connections) == len(inside) <= 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"head_timeout_s": 0},
        {"body_timeout_s": -1},
        {"idle_timeout_s": float("inf")},
        {"write_timeout_s": float("nan")},
        {"connections_per_address": 0},
        {"connections_max": 0},
        {"connections_max": connections_possible() + 1},
    ],
    ids=str,
)
def test_limits_that_cannot_be_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        ServerLimits(**wrong)


def test_the_default_leaves_descriptors_for_other_files() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < ServerLimits().connections_max < soft
