"""Frames: protocol headers and performatives from bytes, and back.

Performatives are always sent at full width: azure-eventhub for Python finds their fields by place,
and fails where trailing nulls are left out, which AMQP would allow.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from leasehold.endpoints.amqp.codec import (
    DecodeError,
    Described,
    UByte,
    UInt,
    ULong,
    compound,
    decode,
    encode,
)
from leasehold.endpoints.amqp.errors import DECODE, FRAMING, INVALID_FIELD, ConnectionFailed

FRAME_BYTES_MAX = 65_536
HEADER_BYTES = 8
AMQP, SASL = 0, 1
PROTOCOLS = {0: "AMQP", 3: "SASL"}


class Open(NamedTuple):
    container_id: str
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Begin(NamedTuple):
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Attach(NamedTuple):
    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Described | None = None
    target: Described | None = None
    unsettled: Any = None
    incomplete_unsettled: Any = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[Any, Any] | None = None


class Transfer(NamedTuple):
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: Any = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(NamedTuple):
    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: Any = None
    batchable: bool | None = None


class Detach(NamedTuple):
    handle: int
    closed: bool | None = None
    error: Any = None


class End(NamedTuple):
    error: Any = None


class Close(NamedTuple):
    error: Any = None


class SaslMechanisms(NamedTuple):
    mechanisms: Any


class SaslInit(NamedTuple):
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslOutcome(NamedTuple):
    code: int
    additional_data: bytes | None = None


Performative = (
    Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
    | SaslMechanisms | SaslInit | SaslOutcome
)  # fmt: skip

CODES: dict[type[Any], ULong] = {
    Open: ULong(0x10),
    Begin: ULong(0x11),
    Attach: ULong(0x12),
    Flow: ULong(0x13),
    Transfer: ULong(0x14),
    Disposition: ULong(0x15),
    Detach: ULong(0x16),
    End: ULong(0x17),
    Close: ULong(0x18),
    SaslMechanisms: ULong(0x40),
    SaslInit: ULong(0x41),
    SaslOutcome: ULong(0x44),
}

_TEXT, _NUMBER, _FLAG, _MAP = (str,), (int,), (bool,), (dict,)
_BYTE, _LONG, _NODE = (UByte,), (UInt, ULong), (Described,)
_TYPES: dict[type[Any], tuple[tuple[type, ...] | None, ...]] = {
    Open: (_TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, None, None, None, None, _MAP),
    Begin: (_NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, None, None, _MAP),
    Attach: (_TEXT, _NUMBER, _FLAG, _BYTE, _BYTE, _NODE, _NODE, None, None, _NUMBER, _LONG,
             None, None, _MAP),
    Flow: (_NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _FLAG, _FLAG,
           _MAP),
    Transfer: (_NUMBER, _NUMBER, (bytes,), _NUMBER, _FLAG, _FLAG, _NUMBER, None, _FLAG, _FLAG,
               _FLAG),
    Disposition: (_FLAG, _NUMBER, _NUMBER, _FLAG, None, _FLAG),
    Detach: (_NUMBER, _FLAG, None),
    End: (None,),
    Close: (None,),
    SaslInit: (_TEXT, (bytes,), _TEXT),
}  # fmt: skip
_NEEDED: dict[type[Any], tuple[int, ...]] = {
    Open: (0,),
    Begin: (1, 2, 3),
    Attach: (0, 1, 2),
    Flow: (1, 2, 3),
    Transfer: (0,),
    Disposition: (0, 1),
    Detach: (0,),
    SaslInit: (0,),
}
_BY_CODE = {int(code): made for made, code in CODES.items() if made in _TYPES}
_BY_NAME = {f"amqp:{made.__name__.lower()}:list": made for made in _TYPES} | {
    "amqp:sasl-init:list": SaslInit
}


class Header(NamedTuple):
    """What a protocol begins with."""

    protocol: int
    raw: bytes


class AmqpFrame(NamedTuple):
    kind: int
    channel: int
    performative: Any
    """None: an empty frame, which only says that the peer is alive."""
    payload: bytes = b""


class FrameReader:
    """Bytes in, whole frames out. Holds one frame at most."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.expects_header = True

    def feed(self, data: bytes) -> None:
        self._held += data

    def next(self) -> Header | AmqpFrame | None:
        """None: more bytes are needed."""
        held = self._held
        if len(held) < HEADER_BYTES:
            return None
        if self.expects_header:
            raw = bytes(held[:HEADER_BYTES])
            if raw[:4] != b"AMQP" or raw[4] not in PROTOCOLS or raw[5:] != b"\x01\x00\x00":
                raise ConnectionFailed(FRAMING, "this is an endpoint for AMQP 1.0")
            del held[:HEADER_BYTES]
            self.expects_header = False
            return Header(raw[4], raw)
        size = int.from_bytes(held[:4])
        if not HEADER_BYTES <= size <= FRAME_BYTES_MAX:
            raise ConnectionFailed(
                FRAMING, f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are allowed"
            )
        if len(held) < size:
            return None
        raw = bytes(held[:size])
        del held[:size]
        return _frame(raw)


def _frame(raw: bytes) -> AmqpFrame:
    begin, kind, channel = raw[4] * 4, raw[5], int.from_bytes(raw[6:8])
    if begin < HEADER_BYTES or begin > len(raw) or kind not in (AMQP, SASL):
        raise ConnectionFailed(FRAMING, "the header of a frame is wrong")
    if begin == len(raw):
        return AmqpFrame(kind, channel, None)
    try:
        described, end = decode(raw, begin)
    except DecodeError as error:
        raise ConnectionFailed(DECODE, f"a frame cannot be read: {error}") from error
    return AmqpFrame(kind, channel, _performative(described), raw[end:])


def _performative(described: Any) -> Any:
    made = None
    if isinstance(described, Described) and isinstance(described.value, list):
        descriptor = described.descriptor
        if isinstance(descriptor, int):
            made = _BY_CODE.get(descriptor)
        elif isinstance(descriptor, str):
            made = _BY_NAME.get(descriptor)
    if made is None:
        raise ConnectionFailed(DECODE, "a frame holds no performative that is known")
    types = _TYPES[made]
    fields = described.value[: len(types)]
    fields += [None] * (len(types) - len(fields))
    for place, (value, allowed) in enumerate(zip(fields, types, strict=True)):
        if value is None:
            if place in _NEEDED.get(made, ()):
                raise _wrong(made, place, "is missing")
        elif allowed is not None and (
            not isinstance(value, allowed) or (allowed is _NUMBER and not _is_number(value))
        ):
            raise _wrong(made, place, "has another type")
    return made._make(fields)


def _is_number(value: Any) -> bool:
    """It is sent back as 32 bits."""
    return value is not True and value is not False and 0 <= value < 1 << 32


def _wrong(made: Any, place: int, what: str) -> ConnectionFailed:
    return ConnectionFailed(INVALID_FIELD, f"{made._fields[place]} of {made.__name__} {what}")


def encode_frame(channel: int, performative: Performative, payload: bytes = b"") -> bytes:
    kind = type(performative)
    body = b"".join(
        (
            b"\x00",
            encode(CODES[kind]),
            compound(0xC0, len(performative), b"".join(map(encode, performative))),
            payload,
        )
    )
    sasl = SASL if kind in (SaslMechanisms, SaslOutcome) else AMQP
    return struct.pack(">IBBH", HEADER_BYTES + len(body), 2, sasl, channel) + body


EMPTY_FRAME = struct.pack(">IBBH", HEADER_BYTES, 2, AMQP, 0)
