"""Frames: whole ones out of any pieces, and nothing that a peer sends is believed unseen."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.endpoints.amqp.codec import (
    Described,
    Symbol,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)
from leasehold.endpoints.amqp.errors import ConnectionFailed
from leasehold.endpoints.amqp.frames import (
    CODES,
    FRAME_BYTES_MAX,
    AmqpFrame,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    FrameReader,
    Header,
    Open,
    Transfer,
    encode_frame,
)

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SOME = [
    Open("me"),
    Begin(UShort(0), UInt(0), UInt(10), UInt(10)),
    Attach("link", UInt(0), False),
    Flow(None, UInt(1), UInt(2), UInt(3)),
    Transfer(UInt(0)),
    Disposition(True, UInt(0)),
    Detach(UInt(0)),
    End(),
    Close(),
]


def reader() -> FrameReader:
    made = FrameReader()
    made.feed(AMQP_HEADER)
    assert isinstance(made.next(), Header)
    return made


def raw_frame(body: bytes, *, offset: int = 2, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), offset, kind, 0) + body


def all_of(made: FrameReader) -> list[Any]:
    return list(iter(made.next, None))


@pytest.mark.parametrize("performative", SOME, ids=lambda each: type(each).__name__)
def test_a_performative_is_sent_at_full_width(performative: Any) -> None:
    described, _ = decode(encode_frame(0, performative), 8)
    assert described.descriptor == CODES[type(performative)]
    assert len(described.value) == len(performative._fields)


def test_widths_are_those_that_the_python_client_counts_on() -> None:
    widths = [len(type(each)._fields) for each in SOME]
    assert widths == [10, 8, 14, 11, 11, 6, 3, 1, 1]


@given(st.lists(st.sampled_from(SOME), max_size=5), st.binary(max_size=50), st.data())
def test_frames_come_out_whole_however_the_bytes_were_cut(
    sent: list[Any], payload: bytes, data: st.DataObject
) -> None:
    wire = b"".join(encode_frame(7, each, payload) for each in sent)
    made, found, at = reader(), [], 0
    while at < len(wire):
        size = data.draw(st.integers(1, len(wire)))
        made.feed(wire[at : at + size])
        found += all_of(made)
        at += size
    assert found == [AmqpFrame(0, 7, each, payload) for each in sent]


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_end_the_connection(data: bytes) -> None:
    for begin in (b"", AMQP_HEADER):
        made = FrameReader()
        made.feed(begin + data)
        try:
            all_of(made)
        except ConnectionFailed:
            continue


@given(st.sampled_from(SOME), st.data())
def test_a_frame_with_a_wrong_byte_is_read_or_ends_the_connection(
    performative: Any, data: st.DataObject
) -> None:
    wire = bytearray(encode_frame(0, performative))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    made = reader()
    made.feed(bytes(wire))
    try:
        for frame in all_of(made):
            if isinstance(frame.performative, Transfer):
                assert isinstance(frame.performative.handle, int)
    except ConnectionFailed:
        pass


@pytest.mark.parametrize(
    ("wire", "condition"),
    [
        (struct.pack(">IBBH", FRAME_BYTES_MAX + 1, 2, 0, 0), "amqp:connection:framing-error"),
        (struct.pack(">IBBH", 7, 2, 0, 0), "amqp:connection:framing-error"),
        (raw_frame(b"x", offset=1), "amqp:connection:framing-error"),
        (raw_frame(b"x", offset=200), "amqp:connection:framing-error"),
        (raw_frame(b"\x40", kind=9), "amqp:connection:framing-error"),
        (raw_frame(b"\x40"), "amqp:decode-error"),
        (raw_frame(b"\x00\x53\x10\xc0\xff\x01"), "amqp:decode-error"),
        (raw_frame(encode(Described(ULong(0x99), []))), "amqp:decode-error"),
        (raw_frame(encode(Described(ULong(0x14), []))), "amqp:invalid-field"),
        (raw_frame(encode(Described(ULong(0x14), ["0"]))), "amqp:invalid-field"),
        (raw_frame(encode(Described(ULong(0x14), [True]))), "amqp:invalid-field"),
        (raw_frame(encode(Described(ULong(0x14), [-1]))), "amqp:invalid-field"),
    ],
)
def test_a_bad_frame_ends_the_connection_with_a_condition_that_says_why(
    wire: bytes, condition: str
) -> None:
    made = reader()
    made.feed(wire)
    with pytest.raises(ConnectionFailed) as refused:
        made.next()
    assert refused.value.condition == condition


def test_a_frame_that_is_too_large_is_refused_by_its_size_alone() -> None:
    made = reader()
    made.feed(struct.pack(">I", 1 << 31) + b"\x02\x00\x00\x00")
    with pytest.raises(ConnectionFailed, match="65536"):
        made.next()


def test_an_empty_frame_only_says_that_the_peer_is_alive() -> None:
    made = reader()
    made.feed(raw_frame(b""))
    assert made.next() == AmqpFrame(0, 0, None)


def test_fields_that_are_left_out_are_null_and_a_symbol_names_a_performative_too() -> None:
    made = reader()
    made.feed(raw_frame(encode(Described(Symbol("amqp:flow:list"), [None, 1, 2, 3]))))
    found = made.next()
    assert isinstance(found, AmqpFrame)
    assert found.performative == Flow(None, 1, 2, 3)
