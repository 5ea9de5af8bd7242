"""Pages that are updated live: how many, and when they end."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from support.processing import wait_until
from web_site import (
    MINE,
    OTHER,
    SECRETS,
    Site,
    status,
)

from homes.web.live import STREAMS_PER_HOME, Live
from homes.web.sessions import Sessions
from homes.web.sign_in import COOKIE


def hold_streams(site: Site, stack: ExitStack, token: str, path: str, count: int) -> None:
    client = stack.enter_context(site.client(token))
    for _ in range(count):
        lines = stack.enter_context(client.stream("GET", path)).iter_lines()
        next(lines)
        stack.callback(lines.close)


def test_one_home_cannot_hold_all_the_servers_streams_not_even_with_many_sessions(
    site: Site,
) -> None:
    with site.client(site.token()) as client, ExitStack() as stack:
        for _ in range(STREAMS_PER_HOME // 4):
            hold_streams(site, stack, site.token(), "/api/home/live", 4)
        assert status(client, "GET", "/api/home/live") == 429
        with site.client(site.token(OTHER)) as other:
            assert status(other, "GET", "/api/home/live") == 200


def test_operators_have_a_limit_of_their_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.app.state.web, "_streams_max", 2)
    monkeypatch.setattr("homes.web.live.STREAMS_OF_OPERATORS", 3)
    live = "/api/operations/live"
    with ExitStack() as stack, site.client(site.token(OTHER)) as other:
        hold_streams(site, stack, site.operator_token(), live, 2)
        hold_streams(site, stack, site.token(), "/api/home/live", 2)
        assert status(other, "GET", "/api/home/live") == 503
        hold_streams(site, stack, site.operator_token(), live, 1)
        with site.client(site.operator_token()) as operator:
            assert status(operator, "GET", live) == 429


def connections(site: Site, count: int) -> list[socket.socket]:
    """That the server has accepted."""
    name, _, port = site.url.removeprefix("http://").partition(":")
    wires = [socket.create_connection((name, int(port)), timeout=30) for _ in range(count)]
    for wire in wires:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while b"ok\n" not in wire.recv(1 << 16):
            pass
    return wires


def ask_live(wires: list[socket.socket], token: str) -> None:
    request = f"GET /api/home/live HTTP/1.1\r\nHost: localhost\r\nCookie: {COOKIE}={token}\r\n\r\n"
    for wire in wires:
        wire.sendall(request.encode())


def open_streams(site: Site) -> int:
    with site.client(site.operator_token()) as client:
        found = re.search(
            r"^leasehold_web_streams (\d+)", client.get("/metrics").text, re.MULTILINE
        )
    assert found is not None
    return int(found[1])


def test_not_even_by_asking_for_all_of_them_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, sent, read = threading.Event(), threading.Event(), site.activity.home_state

    def slow(home_id: str) -> Any:
        held.set()
        sent.wait(30)
        return read(home_id)

    monkeypatch.setattr(site.activity, "home_state", slow)
    first, *others = wires = connections(site, 61)
    ask_live([first], site.token(OTHER))
    held.wait(30)  # the server stands still until all have been sent
    ask_live(others, site.token(MINE))
    sent.set()
    statuses = sorted(wire.recv(12) for wire in others)
    assert statuses == [b"HTTP/1.1 200"] * 16 + [b"HTTP/1.1 429"] * 44
    assert open_streams(site) == 17
    for wire in wires:
        wire.close()
    wait_until(lambda: open_streams(site) == 0)


def test_who_goes_away_before_the_first_byte_is_not_counted_for_ever(site: Site) -> None:
    token = site.token()
    for _ in range(5):
        wires = connections(site, 20)
        ask_live(wires, token)
        for wire in wires:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.close()  # at once, and rudely
    wait_until(lambda: open_streams(site) == 0)
    (wire,) = connections(site, 1)
    with wire:
        ask_live([wire], token)
        assert wire.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_nor_is_who_could_not_be_sent_even_the_head(version: str) -> None:
    sessions = Sessions(SECRETS)
    live, session = Live(sessions), sessions.operator(SECRETS.operator_password)
    assert session is not None
    counted = []

    async def gone(*_: Any) -> Any:
        counted.append(live.open)
        raise OSError("the client went away")

    async def silent() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": version}}
    for _ in range(20):
        with pytest.raises((OSError, ClientDisconnect)):
            asyncio.run(live.stream(session, "home", gone)(scope, silent, gone))
    assert set(counted) == {1}
    assert live.open == 0
