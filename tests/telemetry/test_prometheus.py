"""The server of metrics: whoever is slow, greedy or many keeps no scraper out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.request import urlopen

import pytest
from support.processing import wait_until

import leasehold as lh
from leasehold.telemetry import prometheus
from leasehold.telemetry.prometheus import (
    HEAD_BYTES_MAX,
    SCRAPES_MAX,
    SCRAPES_PER_ADDRESS,
    MetricsServer,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(prometheus, "SCRAPE_S", 600.0)  # nobody is let go for being slow
    registry = lh.Registry()
    registry.gauge("up", "Whether it is.").set((), 1)
    with lh.serve_metrics(registry, 0) as server:
        yield server


def wire(server: MetricsServer, source: str = "127.0.0.2") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 60, (source, 0))


def ended(wire: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while more := wire.recv(1 << 16):
            found += more
    return found


def scraped(server: MetricsServer) -> bool:
    with urlopen(server.url, timeout=60) as answer:
        return b"up 1\n" in answer.read()


def handlers(server: MetricsServer) -> int:
    """Of this server alone: others may have left some in this process."""
    working = [each for each in threading.enumerate() if "process_request_thread" in each.name]
    targets = [getattr(each, "_target", None) for each in working]
    return sum(getattr(each, "__self__", None) is server._server for each in targets)


@pytest.mark.parametrize("half", [b"", b"GET /metrics HTTP/1.1\r\nX: "], ids=["idle", "head"])
def test_many_connections_of_one_address_leave_room_for_others(
    server: MetricsServer, half: bytes
) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(wire(server)) for _ in range(100)]
        for each in wires:
            with suppress(OSError):
                each.sendall(half)
        for each in wires[:-SCRAPES_PER_ADDRESS]:
            assert ended(each) == b""
        wait_until(lambda: handlers(server) == SCRAPES_PER_ADDRESS)
        assert scraped(server)
    wait_until(lambda: handlers(server) == 0)


def test_a_local_user_who_stays_silent_does_not_keep_the_scraper_out(
    server: MetricsServer,
) -> None:
    with ExitStack() as stack:
        for n in range(4 * SCRAPES_MAX):
            stack.enter_context(wire(server, f"127.0.0.{1 + n % 40}"))
        for _ in range(SCRAPES_PER_ADDRESS):
            stack.enter_context(wire(server, "127.0.0.1"))
        assert scraped(server)


def test_a_byte_now_and_then_does_not_prolong_it(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "SCRAPE_S", 0.3)
    with wire(server) as slow:
        slow.settimeout(0.05)
        over = False
        while not over:
            try:
                slow.sendall(b"G")
                over = slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                over = True
    wait_until(lambda: handlers(server) == 0)


def test_who_does_not_read_its_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "SCRAPE_S", 2.0)
    registry = lh.Registry()
    large = registry.gauge("large", "Much.", ("n",))
    for n in range(2_000):  # few, so that the answer begins long before its time is over
        large.set(("x" * 5_000 + str(n),), n)
    with lh.serve_metrics(registry, 0) as server, wire(server) as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert deaf.recv(5) == b"HTTP/"
        wait_until(lambda: handlers(server) == 0)


def test_a_head_without_end_is_refused(server: MetricsServer) -> None:
    with wire(server) as greedy:
        with suppress(OSError):
            for _ in range(1000):
                greedy.sendall(b"x" * HEAD_BYTES_MAX)
        assert ended(greedy)[:12] in (b"HTTP/1.1 431", b"")
    assert scraped(server)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (b"HEAD /metrics HTTP/1.1", b"HTTP/1.1 200 OK"),
        (b"POST /metrics HTTP/1.1", b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET /metrics?x=1 HTTP/1.1", b"HTTP/1.1 200 OK"),
        (b"GET /../etc/passwd HTTP/1.1", b"HTTP/1.1 404 Not Found"),
        (b"\xff\x00", b"HTTP/1.1 405 Method Not Allowed"),
    ],
)
def test_only_metrics_can_be_had(server: MetricsServer, asked: bytes, said: bytes) -> None:
    with wire(server) as client:
        client.sendall(asked + b"\r\nHost: x\r\n\r\n")
        answer = ended(client)
    assert answer.startswith(said + b"\r\n")
    assert (b"up 1" in answer) == (said.endswith(b"OK") and asked.startswith(b"GET"))
