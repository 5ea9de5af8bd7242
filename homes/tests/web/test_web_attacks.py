"""Attacks over raw sockets on the web page as a process of its own: its memory stays bounded, and
it goes on answering others. What counts is that an answer comes, not how soon."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from homes_command import PROGRAM
from support.processing import wait_until

import leasehold as lh
from homes.local.places import Places

DESCRIPTORS = 256
GROWTH_BYTES_MAX = 48 << 20
POURED_BYTES = 48 << 20
ATTACKER = "127.0.0.2"
CHUNKED = (
    b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@dataclass
class Target:
    process: subprocess.Popen[str]
    port: int

    def wire(self, source: str = ATTACKER) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 60, (source, 0))

    def healthy(self, source: str = "127.0.0.1") -> bool:
        with self.wire(source) as wire:
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            found = b""
            with suppress(ConnectionResetError):  # refused before it had asked
                while more := wire.recv(1 << 16):
                    found += more
        return found.startswith(b"HTTP/1.1 200")

    def peak_bytes(self) -> int:
        """The most memory that it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) << 10


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """With few descriptors and default limits."""
    folder = tmp_path_factory.mktemp("homes")
    lh.Hub.create(Places(folder).hub, name="sensors", namespace="homes", partitions=2).close()
    command = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"]
    command += [*PROGRAM, "web", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            found = Target(process, urlsplit(url).port or 0)
            assert found.healthy()
            yield found
        finally:
            process.kill()


def pour(wire: socket.socket, piece: bytes, between: Callable[[], bool]) -> None:
    """As much as it takes; an attacker does not mind being cut off."""
    given = 0
    with suppress(OSError):
        while given < POURED_BYTES:
            wire.sendall(piece)
            given += len(piece)
            if given % (POURED_BYTES // 4) < len(piece):
                assert between()


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (CHUNKED + b"0\r\n", b"X-Forwarded-For: 192.0.2.1\r\n"),
        (CHUNKED + b"0\r\nTrailer: ", b"x"),
        (CHUNKED, b"1;extension=xxxxxxxxxxxxxxxx\r\nx\r\n"),
        (CHUNKED + b"fffffff\r\n", b"x"),
        (b"GET / HTTP/1.1\r\n", b"Header: x\r\n"),
        (b"GET /", b"x"),
        (b"", b"\r\n"),
        (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ],
    ids=["trailers", "trailer", "extensions", "chunk", "headers", "path", "lines", "requests"],
)
def test_pouring_without_end_costs_no_memory_and_holds_nobody_up(
    target: Target, begin: bytes, piece: bytes
) -> None:
    before = target.peak_bytes()
    with ExitStack() as stack:
        for _ in range(2):
            wire = stack.enter_context(target.wire())
            wire.sendall(begin)
            pour(wire, piece * ((1 << 16) // len(piece)), target.healthy)
        assert target.healthy()
    assert target.peak_bytes() - before < GROWTH_BYTES_MAX


@pytest.mark.parametrize(
    "half",
    [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", CHUNKED, CHUNKED + b"9"],
    ids=["nothing", "half a line", "half a head", "no body", "half a body"],
)
def test_many_connections_of_one_address_leave_room_for_others(target: Target, half: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(2 * DESCRIPTORS):
            wire = stack.enter_context(target.wire())
            with suppress(OSError):  # refused by then
                wire.sendall(half)
        assert target.healthy()
    wait_until(lambda: target.healthy(ATTACKER))


def test_connections_of_many_addresses_leave_descriptors_and_keep_nobody_out(
    target: Target,
) -> None:
    with ExitStack() as stack:
        for n in range(2 * DESCRIPTORS):
            stack.enter_context(target.wire(f"127.0.1.{n % 250}"))
        assert target.healthy()
    wait_until(target.healthy)
