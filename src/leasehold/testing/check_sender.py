"""What everything that can be sent to must do. A ``Sender`` is done when all of these pass.

A check gets a function that makes a sender and the feed that it fills, both new, with at least two
partitions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from leasehold.core.event import EventData
from leasehold.errors import BadInput
from leasehold.ports import Feed, Sender
from leasehold.testing.run_check import run_check


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderUnderTest:
    """A sender and the feed that it fills."""

    sender: Sender
    feed: Feed
    close: Callable[[], Awaitable[None]] | None = None


MakeSender = Callable[[], Awaitable[SenderUnderTest]]
SenderCheck = Callable[[SenderUnderTest], Awaitable[None]]
SENDER_CHECKS: list[SenderCheck] = []
KEYS = [f"H{number % 7}" for number in range(60)]
BODIES = [b"%d:" % number + b"." * (number * 7 % 31) for number in range(60)]


def sender_check(rule: SenderCheck) -> SenderCheck:
    SENDER_CHECKS.append(rule)
    return rule


async def check_sender(make: MakeSender) -> None:
    """Run all rules, each on a new sender."""
    for rule in SENDER_CHECKS:
        await run_check(rule, make)


@sender_check
async def it_has_the_names_of_its_feed(subject: SenderUnderTest) -> None:
    assert isinstance(subject.sender, Sender)
    assert (subject.sender.namespace, subject.sender.name) == (
        subject.feed.namespace,
        subject.feed.name,
    )
    assert subject.sender.identity


@sender_check
async def all_of_a_send_can_be_read_when_it_returns(subject: SenderUnderTest) -> None:
    subject.sender.send_columns(KEYS, BODIES)
    assert sorted(await _bodies(subject)) == sorted(BODIES)
    subject.sender.send([EventData(b"one more"), EventData("text")], partition_key="H1")
    assert sorted(await _bodies(subject)) == sorted([*BODIES, b"one more", b"text"])


@sender_check
async def the_events_of_a_key_are_in_one_partition_and_in_order(subject: SenderUnderTest) -> None:
    subject.sender.send_columns(KEYS[:30], BODIES[:30])
    subject.sender.send_columns(KEYS[30:], BODIES[30:])
    subject.sender.send(EventData(b"last"), partition_key="H3")
    found: dict[str, list[Any]] = {}
    for event in await _events(subject):
        found.setdefault(str(event.partition_key), []).append(event)
    for key, events in found.items():
        sent = [body for name, body in zip(KEYS, BODIES, strict=True) if name == key]
        assert [event.body for event in events] == sent + [b"last"] * (key == "H3")
        assert len({event.partition for event in events}) == 1


@sender_check
async def a_partition_that_is_named_gets_all_of_it(subject: SenderUnderTest) -> None:
    first, second, *_ = [partition.id for partition in await subject.feed.partitions()]
    subject.sender.send_columns(KEYS, BODIES, partition_id=second)
    subject.sender.send(EventData(b"x"), partition_id=first)
    events = await _events(subject)
    assert [event.body for event in events if event.partition == second] == BODIES
    assert [event.body for event in events if event.partition == first] == [b"x"]


@sender_check
async def without_a_key_all_of_it_arrives_somewhere(subject: SenderUnderTest) -> None:
    subject.sender.send_columns(None, BODIES)
    events = await _events(subject)
    assert sorted(event.body for event in events) == sorted(BODIES)
    assert {event.partition_key for event in events} == {None}


@sender_check
async def texts_among_the_properties_come_back(subject: SenderUnderTest) -> None:
    told = {"kind": "d\u00f6or", "empty": "", "none": None}
    subject.sender.send(EventData(b"one", told), partition_key="H1")
    subject.sender.send_columns(["H1", "H1"], [b"two", b"three"], [json.dumps(told), None])
    found = {event.body: dict(event.properties) for event in await _events(subject)}
    assert found == {b"one": told, b"two": told, b"three": {}}


@sender_check
async def what_cannot_be_sent_is_refused_and_nothing_sent(subject: SenderUnderTest) -> None:
    send, columns = subject.sender.send, subject.sender.send_columns
    calls: list[Callable[[], Any]] = [
        lambda: send(EventData(b"x"), partition_key="H1", partition_id="0"),
        lambda: send(EventData(b"x"), partition_id="no-such-partition"),
        lambda: send([EventData(b"x"), EventData(b"y", {"a": float("nan")})]),
        lambda: columns(["H1"], [b"x", b"y"]),
        lambda: columns(["H1", None], [b"x", b"y"]),
        lambda: columns(["H1", "H1"], [b"x", None]),
        lambda: columns(["H1", "H1"], [b"x", b"y"], ["{}", "no JSON"]),
        lambda: columns(["H1"], [b"x"], partition_id="999999"),
    ]
    for number, call in enumerate(calls):
        _refused(call, f"call {number}")
    assert await _events(subject) == []
    assert list(columns([], [])) == []


@sender_check
async def a_closed_sender_says_so(subject: SenderUnderTest) -> None:
    subject.sender.close()
    _refused(lambda: subject.sender.send(EventData(b"x"), partition_key="H1"), "send")
    _refused(lambda: subject.sender.send_columns(["H1"], [b"x"]), "send_columns")


async def _events(subject: SenderUnderTest) -> list[Any]:
    events: list[Any] = []
    for partition in await subject.feed.partitions():
        position = await subject.feed.locate(partition.id, "earliest")
        while len((batch := await subject.feed.read(partition.id, position, 1000)).events):
            events += batch.events
            position = batch.next
    return events


async def _bodies(subject: SenderUnderTest) -> list[bytes]:
    return [event.body for event in await _events(subject)]


def _refused(call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except BadInput:
        return
    raise AssertionError(f"{what} was answered where BadInput was due")
