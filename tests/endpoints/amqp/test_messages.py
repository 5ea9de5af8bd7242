"""A message goes into the hub and comes out as it was, with what the hub knows about it."""

from __future__ import annotations

import base64
import contextlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import Hub
from leasehold.endpoints.amqp.codec import (
    Described,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    decode,
    encode,
)
from leasehold.endpoints.amqp.errors import DeliveryRejected
from leasehold.endpoints.amqp.message_in import NewEvent, events_of
from leasehold.endpoints.amqp.message_out import RuntimeInfo, encoded_events
from leasehold.endpoints.amqp.sections import BATCH_FORMAT, KEPT, KEPT_BODY, sections_of

OWN = {"x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"}
Sections = list[tuple[int, Any]]


def message(*parts: tuple[int, Any]) -> bytes:
    return b"".join(encode(Described(ULong(code), value)) for code, value in parts)


def parts_of(data: bytes) -> Sections:
    return [(each.code, decode(data, each.value)[0]) for each in sections_of(data)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("hub") / "hub.db"
    with Hub.create(path, name="sensors", namespace="local", partitions=1) as made:
        yield made


def through(hub: Hub, data: bytes, info: RuntimeInfo | None = None) -> Sections:
    """What a consumer gets of what a producer sent."""
    (event,) = events_of(data, 0)
    keys = None if event.key is None else [event.key]
    (stored,) = hub.send_columns(keys, [event.body], [event.properties], partition_id=0)
    (out,) = encoded_events(hub.read_arrow(0, stored.first_sequence), info)
    return parts_of(out.message)


def without_own(sections: Sections) -> Sections:
    kept = [
        (code, {name: each for name, each in value.items() if name not in OWN})
        if code == 0x72
        else (code, value)
        for code, value in sections
    ]
    return [(code, value) for code, value in kept if not (code == 0x72 and not value)]


RICH: Sections = [
    (0x70, [True, UByte(4), UInt(1000)]),
    (0x71, {Symbol("x-mine"): "delivery"}),
    (0x72, {Symbol("x-opt-partition-key"): "home 7", Symbol("x-other"): 5}),
    (0x73, ["id", b"user", "to", "subject", None, uuid.UUID(int=7), Symbol("text/plain")]),
    (
        0x74,
        {"long": 5, "uuid": uuid.UUID(int=9), "when": Timestamp(7), "raw": b"\xff", "n": Int(3)},
    ),
    (0x75, b"body"),
    (0x78, {Symbol("foot"): "note"}),
]


def test_every_section_comes_back_with_its_types(hub: Hub) -> None:
    assert without_own(through(hub, message(*RICH))) == RICH


def test_readers_of_the_hub_see_the_plain_part() -> None:
    (event,) = events_of(message(*RICH), 0)
    properties = json.loads(event.properties or "")
    assert (event.body, event.key) == (b"body", "home 7")
    assert {name: each for name, each in properties.items() if name != KEPT} == {
        "long": 5,
        "when": 7,
        "n": 3,
    }


def test_a_message_of_body_and_key_takes_no_more_than_these() -> None:
    key = {Symbol("x-opt-partition-key"): "home 7"}
    assert events_of(message((0x72, key), (0x75, b"body")), 0) == [
        NewEvent(b"body", "home 7", None)
    ]


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int),
    st.integers(1 << 31, (1 << 63) - 1),
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), PLAIN, max_size=5))
def test_plain_properties_are_the_hubs_own_and_come_back(
    hub: Hub, properties: dict[str, Any]
) -> None:
    sent: Sections = [(0x74, properties)] if properties else []
    data = message(*sent, (0x75, b"x"))
    (event,) = events_of(data, 0)
    held = json.loads(event.properties or "{}")
    assert held == properties or KEPT in held
    assert without_own(through(hub, data)) == [*sent, (0x75, b"x")]


@pytest.mark.parametrize(
    "body",
    [
        [(0x77, "text"), None],
        [(0x77, {"a": [1, None]}), None],
        [(0x76, [1, "two"]), (0x76, [3])],
        [(0x75, b"one"), (0x75, b""), (0x75, b"three")],
        [(0x75, b""), None],
        [None],
    ],
    ids=str,
)
def test_bodies_of_every_kind_come_back(hub: Hub, body: Any) -> None:
    sent = [each for each in body if each]
    assert without_own(through(hub, message(*sent))) == sent


def test_several_data_sections_are_one_body_for_readers_of_the_hub() -> None:
    (event,) = events_of(message((0x75, b"one"), (0x75, b"two")), 0)
    assert event.body == b"onetwo"
    assert json.loads(event.properties or "") == {KEPT_BODY: "3,3"}


def test_properties_with_reserved_names_are_the_senders_all_the_same(hub: Hub) -> None:
    sent = [(0x74, {KEPT: "mine", KEPT_BODY: "mine, too", "other": "x"}), (0x75, b"x")]
    assert without_own(through(hub, message(*sent))) == sent


SCALARS = PLAIN | st.binary(max_size=4) | st.sampled_from([Symbol("s"), ULong(1 << 63), UByte(3)])
NAMES = st.sampled_from([Symbol("x-opt-partition-key"), Symbol("x"), "x", KEPT, KEPT_BODY])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(
    sections=st.lists(st.tuples(st.integers(0x70, 0x78), VALUES), max_size=4),
    message_format=st.sampled_from([0, BATCH_FORMAT]),
)
def test_sections_of_any_values_are_events_that_consumers_can_read_or_rejected(
    hub: Hub, sections: Sections, message_format: int
) -> None:
    with contextlib.suppress(DeliveryRejected):
        for event in events_of(message(*sections), message_format):
            keys = None if event.key is None else [event.key]
            (stored,) = hub.send_columns(keys, [event.body], [event.properties], partition_id=0)
            (out,) = encoded_events(hub.read_arrow(0, stored.first_sequence), None)
            parts_of(out.message)


RESERVED = st.one_of(
    st.integers(), st.none(), st.text(), st.lists(st.integers()), st.sampled_from(["raw", "2,2"])
) | st.binary(max_size=20).map(lambda raw: base64.b64encode(raw).decode())


@given(kept=RESERVED, how=RESERVED, body=st.binary(max_size=8))
def test_whatever_senders_of_the_hub_put_under_reserved_names_consumers_can_read_it(
    hub: Hub, kept: Any, how: Any, body: bytes
) -> None:
    properties = json.dumps({KEPT: kept, KEPT_BODY: how, "mine": "x"})
    (stored,) = hub.send_columns(None, [body], [properties], partition_id=0)
    (out,) = encoded_events(hub.read_arrow(0, stored.first_sequence), None)
    found = parts_of(out.message)
    assert ("mine", "x") in [
        pair for code, value in found if code == 0x74 for pair in value.items()
    ]


def test_what_the_hub_gives_out_replaces_what_a_sender_claims(hub: Hub) -> None:
    claimed = {Symbol("x-opt-sequence-number"): 99, Symbol("x-opt-offset"): "99"}
    annotations = dict(through(hub, message((0x72, claimed), (0x75, b"x"))))[0x72]
    assert annotations["x-opt-sequence-number"] == hub.partition_properties(0).last_sequence
    assert annotations["x-opt-offset"] == hub.partition_properties(0).last_offset


def test_the_end_of_the_partition_is_told_beside_the_senders_own_annotations(hub: Hub) -> None:
    info = RuntimeInfo(7, "70", 1000, 2000)
    for sent in ([], [(0x71, {Symbol("x-mine"): 1})]):
        told = dict(through(hub, message(*sent, (0x75, b"x")), info))[0x71]
        assert told["last_enqueued_sequence_number"] == 7
        assert told["last_enqueued_offset"] == "70"
        assert (told.get("x-mine") == 1) is bool(sent)


def test_a_batch_is_its_events_and_they_share_its_key() -> None:
    key = {Symbol("x-opt-partition-key"): "home 7"}
    inner = [message((0x75, b"%d" % n)) for n in range(3)]
    batch = message((0x72, key), *[(0x75, each) for each in inner])
    assert events_of(batch, BATCH_FORMAT) == [NewEvent(b"%d" % n, "home 7", None) for n in range(3)]


@given(st.binary(max_size=200), st.sampled_from([0, BATCH_FORMAT]))
def test_any_bytes_are_a_message_or_rejected(data: bytes, message_format: int) -> None:
    with contextlib.suppress(DeliveryRejected):
        events_of(data, message_format)


@given(st.data())
def test_a_message_with_a_wrong_byte_can_be_read_by_consumers_or_is_rejected(
    hub: Hub, data: st.DataObject
) -> None:
    wire = bytearray(message(*RICH))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DeliveryRejected):
        through(hub, bytes(wire))
