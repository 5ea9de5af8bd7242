"""An event of the hub as a message: the other way round of ``message_in``."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from leasehold.core import strict_json
from leasehold.endpoints.amqp.codec import Int, Symbol, Timestamp, compound, decode, encode
from leasehold.endpoints.amqp.message_in import encode_key
from leasehold.endpoints.amqp.sections import (
    APPLICATION_PROPERTIES,
    BODY,
    DATA,
    DELIVERY_ANNOTATIONS,
    ENQUEUED_TIME,
    HEADER,
    KEPT,
    KEPT_BODY,
    MESSAGE_ANNOTATIONS,
    OFFSET,
    PROPERTIES,
    RAW_BODY,
    SEQUENCE_NUMBER,
    map_section,
    pairs_at,
    section,
    sections_of,
)

_SEQUENCE = struct.Struct(">Bq")
_DATA = struct.Struct(">BBBBI")
_ENQUEUED = ENQUEUED_TIME + b"\x83"


class EncodedEvent(NamedTuple):
    sequence: int
    message: bytes


class RuntimeInfo(NamedTuple):
    """What a receiver may ask to be told with each event about the end of the partition."""

    last_sequence: int
    last_offset: str
    last_enqueued_ms: int
    retrieved_ms: int

    def pairs(self) -> list[bytes]:
        values = {
            "last_enqueued_sequence_number": self.last_sequence,
            "last_enqueued_offset": self.last_offset,
            "last_enqueued_time_utc": Timestamp(self.last_enqueued_ms),
            "runtime_info_retrieval_time_utc": Timestamp(self.retrieved_ms),
        }
        return [encode(Symbol(name)) + encode(value) for name, value in values.items()]


def encoded_events(arrow: pa.RecordBatch, info: RuntimeInfo | None) -> Iterator[EncodedEvent]:
    """Rows of the hub (``EVENT_SCHEMA``) as messages."""
    told = info.pairs() if info else []
    plain_head = map_section(DELIVERY_ANNOTATIONS, told) if told else b""
    times = arrow.column(3).view(pa.int64()).to_pylist()
    columns = (arrow.column(place).to_pylist() for place in (0, 1, 2, 4, 5))
    for body, sequence, offset, key, properties, time_us in zip(*columns, times, strict=True):
        own = _own_annotations(sequence, offset, time_us // 1000)
        pairs = 3
        if key is not None:
            own += encode_key(key)
            pairs += 1
        if properties is None:
            annotations = section(MESSAGE_ANNOTATIONS, compound(0xC1, 2 * pairs, own))
            message = plain_head + annotations + _data(body)
        else:
            message = _full(body, own, pairs, strict_json.loads(properties), told)
        yield EncodedEvent(sequence, message)


def _own_annotations(sequence: int, offset: Any, time_ms: int) -> bytes:
    text = str(offset).encode()
    return b"".join(
        (
            SEQUENCE_NUMBER,
            _SEQUENCE.pack(0x81, sequence),
            OFFSET,
            bytes((0xA1, len(text))),
            text,
            _ENQUEUED,
            time_ms.to_bytes(8, signed=True),
        )
    )


def _data(body: bytes) -> bytes:
    return _DATA.pack(0, 0x53, DATA, 0xB0, len(body)) + body


def _full(body: bytes, own: bytes, pairs: int, properties: Any, told: list[bytes]) -> bytes:
    """A message with properties, maybe with sections that the hub only keeps."""
    raw, how = b"", ""
    reserved = properties.get(KEPT, ""), properties.get(KEPT_BODY, "")
    if reserved != ("", "") and _is_ours(*reserved, body):
        raw, how = base64.b64decode(properties.pop(KEPT, "")), properties.pop(KEPT_BODY, "")
    kept = {each.code: each for each in sections_of(raw)}

    def as_it_came(code: int) -> bytes:
        return raw[kept[code].begin : kept[code].end] if code in kept else b""

    if DELIVERY_ANNOTATIONS in kept:
        told = [
            name + value for name, value in pairs_at(raw, kept[DELIVERY_ANNOTATIONS].value)
        ] + told
    if MESSAGE_ANNOTATIONS in kept:
        others = [b"".join(pair) for pair in pairs_at(raw, kept[MESSAGE_ANNOTATIONS].value)]
        own, pairs = own + b"".join(others), pairs + len(others)
    application = as_it_came(APPLICATION_PROPERTIES)
    if not application and properties:
        application = map_section(
            APPLICATION_PROPERTIES,
            [encode(name) + encode_property(value) for name, value in properties.items()],
        )
    footers = b"".join(raw[each.begin : each.end] for code, each in kept.items() if code > DATA)
    return b"".join(
        (
            as_it_came(HEADER),
            map_section(DELIVERY_ANNOTATIONS, told) if told else b"",
            section(MESSAGE_ANNOTATIONS, compound(0xC1, 2 * pairs, own)),
            as_it_came(PROPERTIES),
            application,
            _body(body, how),
            footers,
        )
    )


def _is_ours(kept: Any, how: Any, body: bytes) -> bool:
    """Whether ``message_in`` wrote these two: senders that know nothing of AMQP may use the same
    names, and a message that nobody can read would end every reader of the partition."""
    try:
        raw = base64.b64decode(kept, validate=True)
        for each in sections_of(raw):
            decode(raw, each.value)
            if each.code in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS):
                list(pairs_at(raw, each.value))
        if how == RAW_BODY:
            return all(each.code in BODY and decode(body, each.value) for each in sections_of(body))
        lengths = [int(length) for length in how.split(",")] if how else [len(body)]
    except (ValueError, TypeError, AttributeError):
        return False
    return min(lengths) >= 0 and sum(lengths) == len(body)


def _body(body: bytes, how: str) -> bytes:
    if how == RAW_BODY:
        return body
    if not how:
        return _data(body)
    parts, at = [], 0
    for length in map(int, how.split(",")):
        parts.append(_data(body[at : at + length]))
        at += length
    return b"".join(parts)


def encode_property(value: Any) -> bytes:
    """As official clients encode plain values: whole numbers are 32 bits wide if they fit."""
    if type(value) is int and -(1 << 31) <= value < 1 << 31:
        return encode(Int(value))
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return encode(str(value))
    if isinstance(value, list | dict):
        return encode(str(value))
    return encode(value)
