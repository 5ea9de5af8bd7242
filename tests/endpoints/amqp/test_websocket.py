"""WebSocket around AMQP, as the endpoint speaks it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.endpoints.amqp.errors import ConnectionFailed
from leasehold.endpoints.amqp.websocket import MESSAGE_BYTES_MAX, WebSocket

HANDSHAKE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
ACCEPTED = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # as RFC 6455 has it


def opened() -> WebSocket:
    made = WebSocket()
    carried, answer = made.receive(HANDSHAKE)
    assert (carried, made.closed) == (b"", False)
    assert ACCEPTED in answer
    assert b"Sec-WebSocket-Protocol: AMQPWSB10" in answer
    return made


def frame(kind: int, payload: bytes, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    size = len(payload)
    head = bytes((0x80 | kind,))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size < 1 << 16:
        head += bytes((0x80 | 126,)) + size.to_bytes(2)
    else:
        head += bytes((0x80 | 127,)) + size.to_bytes(8)
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + mask + masked


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(1, 50))
def test_what_is_carried_comes_out_however_the_bytes_were_cut(sent: list[bytes], size: int) -> None:
    made, found = opened(), b""
    wire = b"".join(frame(2, each) for each in sent)
    for at in range(0, len(wire), size):
        carried, answer = made.receive(wire[at : at + size])
        found += carried
        assert not answer
    assert found == b"".join(sent)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 200_000])
def test_messages_of_every_size_are_wrapped_and_unwrapped(size: int) -> None:
    carried, _ = opened().receive(frame(2, b"x" * size))
    assert len(carried) == size
    wrapped = opened().wrap(b"x" * size)
    assert wrapped.endswith(b"x" * size)
    assert len(wrapped) - size == (2 if size < 126 else 4 if size < 65_536 else 10)


def test_a_ping_is_answered_and_a_close_ends_it() -> None:
    made = opened()
    assert made.receive(frame(9, b"hello")) == (b"", b"\x8a\x05hello")
    carried, answer = made.receive(frame(2, b"last") + frame(8, b"\x03\xe8") + frame(2, b"more"))
    assert (carried, answer) == (b"last", b"\x88\x02\x03\xe8")
    assert made.closed


@pytest.mark.parametrize(
    "wire",
    [
        b"\x82\x05hello",
        b"\x82\xff" + (MESSAGE_BYTES_MAX + 1).to_bytes(8),
    ],
    ids=["not masked", "too large"],
)
def test_a_frame_that_is_not_masked_or_too_large_ends_the_connection(wire: bytes) -> None:
    with pytest.raises(ConnectionFailed):
        opened().receive(wire)


def test_a_handshake_without_the_subprotocol_is_refused_and_an_endless_one_ends() -> None:
    made = WebSocket()
    _, answer = made.receive(HANDSHAKE.replace(b"AMQPWSB10", b"other"))
    assert answer.startswith(b"HTTP/1.1 400")
    assert made.closed
    with pytest.raises(ConnectionFailed, match="too long"):
        WebSocket().receive(b"GET /" + b"x" * 20_000)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_end_the_connection(data: bytes) -> None:
    made = opened()
    with contextlib.suppress(ConnectionFailed):
        made.receive(data)
