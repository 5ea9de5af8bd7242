"""Everything that reads JSON from outside takes the same body for the same thing.

If one reader took the first of two fields and another the last, an alert would go to one home and
its alarm to another. ``ruff`` keeps other parsers out of the sources (banned-api).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from homes.pipelines.alerts import Malformed, parse
from homes.pipelines.signature import signature
from homes.pipelines.webhook_receiver import Receiver
from homes.web.answers import text_field
from leasehold.cli.container import _parsed
from leasehold.cli.hub_input import _key
from leasehold.core.change import Change
from leasehold.core.event import Event
from leasehold.core.strict_json import loads
from leasehold.errors import BadInput
from leasehold.feeds.container.documents import decode as decode_document
from leasehold.feeds.sent_columns import properties_column
from leasehold.spark.reading.decode import Decoder

REFUSED = "refused"


def by_columns(body: bytes) -> Any:
    frame, bad = Decoder(pa.schema({"home_id": pa.string()})).decode(pa.array([body], pa.binary()))
    return REFUSED if bad[0] else frame["home_id"][0]


def by_alerts(body: bytes) -> Any:
    try:
        return parse(body).home_id
    except Malformed:
        return REFUSED


def by_key_field(body: bytes) -> Any:
    try:
        return _key(1, body, "home_id")
    except BadInput:
        return REFUSED


def by_container_input(body: bytes) -> Any:
    try:
        return _parsed("line 1", body)[1]["home_id"]
    except BadInput:
        return REFUSED


def by_web_body(body: bytes) -> Any:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", b"application/json")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    try:
        return asyncio.run(text_field(request, "home_id"))
    except HTTPException:
        return REFUSED


def by_webhook(body: bytes) -> Any:
    receiver = Receiver()
    try:
        if receiver.take(body, "key", signature(receiver.secret, body, int(time.time()))) != 200:
            return REFUSED
        return receiver.recent[0]["home_id"]
    finally:
        receiver.close()


def by_properties(body: bytes) -> Any:
    try:
        text = properties_column(pa.array([body.decode()]))[0].as_py()
    except (BadInput, UnicodeDecodeError):
        return REFUSED
    return loads(text)["home_id"]


def by_documents(body: bytes) -> Any:
    try:
        return decode_document(body.decode())["home_id"]
    except ValueError:
        return REFUSED


def by_dead_changes(body: bytes) -> Any:
    event = Event(
        partition="0",
        sequence=0,
        offset="0",
        enqueued_at=datetime.now(UTC),
        body=body,
        partition_key=None,
        properties={},
    )
    try:
        document = Change.from_event(event).document
    except ValueError:
        return REFUSED
    assert document is not None
    return document["home_id"]


READERS: list[Callable[[bytes], Any]] = [
    by_columns,
    by_alerts,
    by_key_field,
    by_container_input,
    by_web_body,
    by_webhook,
    by_properties,
    by_documents,
    by_dead_changes,
]
REST = b'"id": "1", "sensor_id": "s", "type": "glass", "value": 1, "battery": 9, "ts": 5'
LONG = b",".join(b'"k%d": %d' % (n, n) for n in range(100))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (b'"home_id": "A", "home_id": "B"', "B"),
        (b'"home_id": "A", "\\u0068ome_id": "B"', "B"),
        (b'"\\u0068ome_id": "A", "home_id": "B"', "B"),
        (b'"home_id": 5, "home_id": "B"', "B"),
        (b'"home_id": {"home_id": "A"}, "home_id": "B"', "B"),
        (b'"home_id": "A", %s, "home_id": "B"' % LONG, "B"),
        (b'"home_id": "A", "other": {"home_id": "B", "home_id": "C"}', "A"),
        (b'"home_id": "A", "Home_id": "B"', "A"),
        (b'\n"home_id"\t:\r\n"A"', "A"),
        (b'"home_id": "A", "other": NaN', REFUSED),
        (b'"home_id": "A", "other": "\xff"', REFUSED),
        (b'"home_id": "A", "other": "\\ud83d"', REFUSED),
        (b'"home_id": "A", "home_id": 1e999, "home_id": "B"', REFUSED),
        (b'"home_id": "A", "other": [1,]', REFUSED),
        (b'"home_id": "A", "other": "\n"', REFUSED),
        (b'"home_id": "A", "other": ' + b"[" * 5_000 + b"]" * 5_000, REFUSED),
        (b'"home_id": "A"}{"home_id": "B"', REFUSED),
    ],
)
def test_all_readers_take_a_body_for_the_same(
    reader: Callable[[bytes], Any], fields: bytes, wanted: str
) -> None:
    assert reader(b"{" + fields + b", " + REST + b"}") == wanted


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_skips_a_byte_order_mark(reader: Callable[[bytes], Any]) -> None:
    assert reader(b'\xef\xbb\xbf{"home_id": "A", ' + REST + b"}") == REFUSED
