"""AMQP messages as events, and events as messages.

What AMQP itself says of a message (its id, its content type …) comes among the properties, under
``amqp:`` and AMQP's own name, and goes back there when such an event is sent again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from azure.eventhub import EventData as Message
from azure.eventhub.amqp import AmqpMessageProperties

from leasehold.core.event import Event, EventData, Property

_system_properties: Any = AmqpMessageProperties
SYSTEM = "amqp:"
_SEQUENCE, _OFFSET = b"x-opt-sequence-number", b"x-opt-offset"
_ENQUEUED, _KEY = b"x-opt-enqueued-time", b"x-opt-partition-key"
_OWN = {_SEQUENCE, _OFFSET, _ENQUEUED, _KEY}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIELDS = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)


def event_of(message: Any, partition: str) -> Event:
    """From a received message as the SDK's AMQP layer decodes it."""
    said: Mapping[Any, Any] = message.message_annotations or {}
    key = said.get(_KEY)
    return Event(
        _body(message),
        int(said[_SEQUENCE]),
        _text(said[_OFFSET]),
        _EPOCH + timedelta(milliseconds=int(said.get(_ENQUEUED) or 0)),
        partition,
        None if key is None else _text(key),
        _properties(message, said),
    )


def size_of(event: Event) -> int:
    """About what it takes up in memory."""
    return len(event.body) + 300 + 100 * len(event.properties)


def message_of(event: EventData) -> Message:
    message = Message(event.body)
    own: dict[str | bytes, Any] = {}
    system: dict[str, Any] = {}
    for name, value in event.properties.items():
        field = name.removeprefix(SYSTEM).replace("-", "_")
        if name.startswith(SYSTEM) and field in FIELDS:
            system[field] = value
        else:
            own[name] = value
    if own:
        message.properties = own
    if system:
        message.raw_amqp_message.properties = _system_properties(**system)
    return message


def _properties(message: Any, said: Mapping[Any, Any]) -> dict[str, Property]:
    found: dict[str, Property] = {}
    if len(said) > len(_OWN) or not said.keys() <= _OWN:
        for name, value in said.items():
            if name not in _OWN:
                found[f"{SYSTEM}{_text(name)}"] = _plain(value)
    if message.properties is not None:
        for field in FIELDS:
            value = getattr(message.properties, field, None)
            if value is not None:
                found[f"{SYSTEM}{field.replace('_', '-')}"] = _plain(value)
    if message.application_properties:
        for name, value in message.application_properties.items():
            found[_text(name)] = _plain(value)
    return found


def _body(message: Any) -> bytes:
    if message.data is not None:
        parts: Iterable[bytes] = message.data
        return bytes(parts) if isinstance(parts, bytes) else b"".join(parts)
    value = message.value if message.sequence is None else message.sequence
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(_jsonable(value)).encode()


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Property:
    """As one of the kinds that a property may be of, and that JSON has."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(_jsonable(value))
    return str(value)  # a UUID, a decimal


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_text(name): _jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    return _plain(value)
