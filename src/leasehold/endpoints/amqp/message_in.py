"""A message as an event of the hub: body, key, properties, and what else it says."""

from __future__ import annotations

import base64
import json
import math
from typing import Any, NamedTuple

from leasehold.endpoints.amqp.codec import DecodeError, Int, decode, encode
from leasehold.endpoints.amqp.errors import ARGUMENT, DECODE, DeliveryRejected
from leasehold.endpoints.amqp.sections import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    BODY,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    KEPT,
    KEPT_BODY,
    MESSAGE_ANNOTATIONS,
    OWN_ANNOTATIONS,
    PARTITION_KEY,
    PROPERTIES,
    RAW_BODY,
    Section,
    binary_at,
    map_section,
    pairs_at,
    sections_of,
)

KEY_BYTES_MAX = 256
KINDS = {HEADER: list, DELIVERY_ANNOTATIONS: dict, PROPERTIES: list, FOOTER: dict}


class NewEvent(NamedTuple):
    body: bytes
    key: str | None
    properties: str | None
    """As the hub stores them: a JSON object."""

    @property
    def size(self) -> int:
        return len(self.body) + len(self.key or "") + len(self.properties or "") + 8


def events_of(message: bytes, message_format: int) -> list[NewEvent]:
    """The events of a delivery: one, or those of a batch, which share its key."""
    try:
        if message_format != BATCH_FORMAT:
            return [_event(message, None)]
        key, inner = None, []
        for each in sections_of(message):
            if each.code == DATA:
                inner.append(binary_at(message, each.value, each.end))
            elif each.code == MESSAGE_ANNOTATIONS:
                key, _ = _annotations(message, each)
        return [_event(one, key) for one in inner]
    except DecodeError as error:
        raise DeliveryRejected(DECODE, f"the message cannot be read: {error}") from error


def _event(message: bytes, key: str | None) -> NewEvent:
    kept: list[bytes] = []
    body: list[Section] = []
    properties: dict[str, Any] = {}
    for each in sections_of(message):
        if each.code in BODY:
            body.append(each)
        elif each.code == MESSAGE_ANNOTATIONS:
            own_key, others = _annotations(message, each)
            key = key if own_key is None else own_key
            if others:
                kept.append(map_section(MESSAGE_ANNOTATIONS, others))
        elif each.code == APPLICATION_PROPERTIES:
            properties, exact = _properties(decode(message, each.value)[0])
            if not exact:
                kept.append(message[each.begin : each.end])
        else:
            # So that no reader gets what it cannot read.
            if not isinstance(decode(message, each.value)[0], KINDS[each.code]):
                raise DecodeError(f"section 0x{each.code:x} is of another type")
            kept.append(message[each.begin : each.end])
    content, how = _body(message, body)
    if kept:
        properties[KEPT] = base64.b64encode(b"".join(kept)).decode()
    if how:
        properties[KEPT_BODY] = how
    return NewEvent(content, key, json.dumps(properties) if properties else None)


def _body(message: bytes, found: list[Section]) -> tuple[bytes, str]:
    if len(found) == 1 and found[0].code == DATA:
        return binary_at(message, found[0].value, found[0].end), ""
    if found and all(each.code == DATA for each in found):
        parts = [binary_at(message, each.value, each.end) for each in found]
        return b"".join(parts), ",".join(str(len(part)) for part in parts)
    for each in found:
        decode(message, each.value)
    return b"".join(message[each.begin : each.end] for each in found), RAW_BODY


def _annotations(message: bytes, where: Section) -> tuple[str | None, list[bytes]]:
    """The partition key, and those annotations that are the sender's own."""
    key, others = None, []
    if message[where.value] == 0x40:
        return None, []
    for name, value in pairs_at(message, where.value):
        if name == PARTITION_KEY:
            key = _key(decode(value)[0])
        elif name not in OWN_ANNOTATIONS:
            decode(name)
            decode(value)
            others.append(name + value)
    return key, others


def _key(value: Any) -> str | None:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if text is None or text == "":
        return None
    if not isinstance(text, str) or len(text.encode()) > KEY_BYTES_MAX:
        raise DeliveryRejected(ARGUMENT, f"a partition key is text of up to {KEY_BYTES_MAX} bytes")
    return str(text)


def _properties(value: Any) -> tuple[dict[str, Any], bool]:
    """What of it the hub holds as properties, and whether readers get all of it back from that."""
    if value is None:
        return {}, True
    if not isinstance(value, dict):
        raise DecodeError("application properties are no map")
    plain, exact = {}, True
    for name, each in value.items():
        if not isinstance(name, str) or name in (KEPT, KEPT_BODY):
            exact = False
            continue
        if type(name) is not str or not _is_exact(each):
            exact = False
        if (plainly := _plain(each)) is not None or each is None:
            plain[str(name)] = plainly
    return plain, exact


def _is_exact(value: Any) -> bool:
    """Whether JSON keeps the type: see ``message_out.encode_property``."""
    if type(value) is int:
        return not -(1 << 31) <= value < 1 << 31
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (str, bool, Int)


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str):
        return value if type(value) in (bool, str) else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return None


def encode_key(key: str) -> bytes:
    return PARTITION_KEY + encode(key)
