"""Kafka's messages as Arrow columns, and events as what Kafka's producer takes.

A body that is null, a key or a header that is no text: an event has no place for these, so they
travel as properties, by which a sender gives them back their form.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.core.event import Property
from leasehold.errors import BadInput
from leasehold.feeds.kafka.positions import offset_text

TOMBSTONE = "kafka-tombstone"
"""This property is true where the message's value is null."""
BINARY = ";base64"
"""Ends the name of a property whose value is bytes that are no text."""
BINARY_KEY = f"kafka-key{BINARY}"
NO_HEADERS = "kafka-headers-unreadable"
"""This property is true where the name of a header is no text: the client library gives none of
them."""
TIME_MAX_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)

SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary()),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("offset", pa.string(), nullable=False),
        pa.field("enqueued_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("partition_key", pa.string()),
        pa.field("properties", pa.string()),
    ]
)
"""Like ``EVENT_SCHEMA``, with bodies that may be null."""
Headers = list[tuple[str, bytes | None]]
_headers_of = methodcaller("headers")
"""Where a name is no text, the library gives a list with a hole and an exception at once. Called as
``message.headers()``, Python does not look for the latter once it runs often, and the hole ends the
process."""


def to_arrow(messages: Sequence[Any], tag: str) -> pa.RecordBatch:
    """Column by column: one attribute of all messages at a time is the fastest that Python does."""
    bodies = pa.array([message.value() for message in messages], pa.binary())
    sequences = pa.array([message.offset() for message in messages], pa.int64())
    times = pa.array([_time_us(message.timestamp()[1]) for message in messages], pa.int64())
    raw_keys = [message.key() for message in messages]
    texts = _headers(messages)
    keys = _texts(raw_keys, texts)
    if bodies.null_count:
        for row in (row for row, valid in enumerate(bodies.is_valid().to_pylist()) if not valid):
            texts.setdefault(row, {})[TOMBSTONE] = True
    columns = [bodies, sequences, _offsets(sequences, tag), times.view(SCHEMA.field(3).type)]
    return pa.RecordBatch.from_arrays([*columns, keys, _json(texts, len(messages))], schema=SCHEMA)


def to_message(
    body: bytes, key: bytes | None, properties: Mapping[str, Property]
) -> tuple[bytes | None, bytes | None, Headers]:
    """Value, key and headers; the inverse of what reading does."""
    headers: Headers = []
    value: bytes | None = body
    for name, told in properties.items():
        if name == TOMBSTONE and told is True and not body:
            value = None
        elif name == BINARY_KEY and key is None:
            key = _decoded(name, told)
        elif name.endswith(BINARY) and name != BINARY_KEY:
            headers.append((name.removesuffix(BINARY), _decoded(name, told)))
        elif told is None:
            headers.append((name, None))
        else:
            text = told if isinstance(told, str) else json.dumps(told)
            headers.append((name, text.encode()))
    return value, key, headers


def _decoded(name: str, told: Property) -> bytes:
    try:
        return base64.b64decode(str(told), validate=True)
    except binascii.Error as error:
        raise BadInput(f"property {name!r} must be base64: {error}") from error


def _headers(messages: Sequence[Any]) -> dict[int, dict[str, Property]]:
    """By row, where there are any."""
    texts: dict[int, dict[str, Property]] = {}
    for row, message in enumerate(messages):
        try:
            found = _headers_of(message)
        except (SystemError, UnicodeDecodeError):
            # Never to be asked again: the library keeps a list with a hole in it.
            texts[row] = {NO_HEADERS: True}
        else:
            if found:
                texts[row] = _properties(found)
    return texts


def _properties(headers: Headers) -> dict[str, Property]:
    """The last of several headers with one name counts, as it does for a JSON object."""
    found: dict[str, Property] = {}
    for name, value in headers:
        found.pop(name, None)
        found.pop(name + BINARY, None)
        if value is None:
            found[name] = None
            continue
        try:
            found[name] = value.decode()
        except UnicodeDecodeError:
            found[name + BINARY] = base64.b64encode(value).decode()
    return found


def _texts(keys: list[bytes | None], texts: dict[int, dict[str, Property]]) -> pa.Array:
    column = pa.array(keys, pa.binary())
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # some of them are no text
        known: list[str | None] = []
        for row, key in enumerate(keys):
            try:
                known.append(None if key is None else key.decode())
            except UnicodeDecodeError:
                known.append(None)
                texts.setdefault(row, {})[BINARY_KEY] = base64.b64encode(key or b"").decode()
        return pa.array(known, pa.string())


def _json(texts: Mapping[int, Mapping[str, Property]], rows: int) -> pa.Array:
    if not texts:
        return pa.nulls(rows, pa.string())
    return pa.array(
        [json.dumps(texts[row]) if row in texts else None for row in range(rows)], pa.string()
    )


def _offsets(sequences: pa.Array, tag: str) -> pa.Array:
    numbers = sequences.cast(pa.string())
    end = offset_text(0, tag).removeprefix("0")
    return pc.binary_join_element_wise(numbers, end, "") if end else numbers


def time_s(message: Any) -> float:
    """Unix time, as ``enqueued_at`` has it."""
    return _time_us(message.timestamp()[1]) / 1e6


def _time_us(unix_ms: int) -> int:
    """Producers write what they like; -1 stands for none."""
    return min(max(unix_ms, 0), TIME_MAX_MS) * 1000
