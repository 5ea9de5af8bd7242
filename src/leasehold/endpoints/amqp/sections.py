"""The sections of an AMQP message, and where the hub keeps those that it has no column for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from leasehold.endpoints.amqp.codec import DecodeError, Symbol, compound, encode, skip

BATCH_FORMAT = 0x80013700
"""A message whose data sections are messages."""

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78
BODY = (DATA, SEQUENCE, VALUE)

KEPT = "$amqp"
"""The property under which the hub keeps sections that say more than its columns: in base64."""
KEPT_BODY = "$amqp-body"
"""How a body is to be read that is not one data section: ``raw`` (sections as they came), or the
lengths of its data sections."""
RAW_BODY = "raw"

SEQUENCE_NUMBER = encode(Symbol("x-opt-sequence-number"))
OFFSET = encode(Symbol("x-opt-offset"))
ENQUEUED_TIME = encode(Symbol("x-opt-enqueued-time"))
PARTITION_KEY = encode(Symbol("x-opt-partition-key"))
OWN_ANNOTATIONS = {SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME, PARTITION_KEY}
"""Given by the hub; what a sender says there is no annotation."""


class Section(NamedTuple):
    code: int
    begin: int
    value: int
    """Where its value begins, behind the descriptor."""
    end: int


def sections_of(message: bytes) -> list[Section]:
    found, at = [], 0
    while at < len(message):
        if message[at] != 0 or at + 2 >= len(message):
            raise DecodeError("a message is a row of sections")
        if message[at + 1] == 0x53:
            code, value = message[at + 2], at + 3
        elif message[at + 1] == 0x80:
            code, value = int.from_bytes(message[at + 2 : at + 10]), at + 10
        else:
            raise DecodeError("the descriptor of a section is no number")
        if not HEADER <= code <= FOOTER:
            raise DecodeError(f"section 0x{code:x} is unknown")
        end = skip(message, value)
        found.append(Section(code, at, value, end))
        at = end
    return found


def binary_at(message: bytes, at: int, end: int) -> bytes:
    code = message[at]
    if code == 0xA0:
        return message[at + 2 : end]
    if code == 0xB0:
        return message[at + 5 : end]
    raise DecodeError("a data section holds no binary")


def pairs_at(message: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a map, both as they are encoded."""
    code, end = message[at], skip(message, at)
    if code == 0xC1:
        begin = at + 3
        count = int.from_bytes(message[at + 2 : begin])
    elif code == 0xD1:
        begin = at + 9
        count = int.from_bytes(message[at + 5 : begin])
    else:
        raise DecodeError("annotations are no map")
    if begin > end or count % 2:
        raise DecodeError("a map is cut off")
    at = begin
    for _ in range(count // 2):
        middle = skip(message, at)
        after = skip(message, middle)
        yield message[at:middle], message[middle:after]
        at = after
    if at != end:
        raise DecodeError("the size of a map is wrong")


def section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def map_section(code: int, pairs: list[bytes]) -> bytes:
    """``pairs`` are keys with their values, encoded."""
    return section(code, compound(0xC1, 2 * len(pairs), b"".join(pairs)))
