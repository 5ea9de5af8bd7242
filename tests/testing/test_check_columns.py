"""The rules for feeds that Spark can read notice feeds that break them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import leasehold as lh
from leasehold.core.ranges import Range
from leasehold.feeds.arrow_events import EventChunk
from leasehold.testing.check_columns import COLUMN_CHECKS
from leasehold.testing.check_feed import FeedUnderTest, run_check

Break = Callable[[Any], None]


def hub_in(folder: Path, spoil: Break) -> FeedUnderTest:
    path = folder / f"{uuid4().hex}.db"
    hub = lh.Hub.create(path, name="sensors", namespace="t", partitions=3)
    spoil(hub)

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        hub.send([lh.EventData(body) for body in bodies], partition_id=partition)

    async def open_again() -> lh.Hub:
        return lh.Hub.open(path)

    return FeedUnderTest(feed=hub, send=send, open_again=open_again, secrets=["open-sesame"])


def reading(change: Callable[[EventChunk, Range], EventChunk]) -> Break:
    def spoil(hub: Any) -> None:
        read = hub.read_columns

        def read_columns(ranges: Sequence[Range]) -> Iterator[EventChunk]:
            for each in ranges:
                for chunk in read([each]):
                    yield change(chunk, each)

        hub.read_columns = read_columns

    return spoil


def setting(**values: Any) -> Break:
    return lambda hub: [setattr(hub, name, value) for name, value in values.items()] and None


class Shuffled(EventChunk):
    def columns(self, names: Sequence[str]) -> Any:
        return super().columns(sorted(names))


def one_too_many(chunk: EventChunk, wanted: Range) -> EventChunk:
    first = chunk.arrow.slice(0, 1)
    return replace(chunk, arrow=type(first).from_pylist([*first.to_pylist() * 2], first.schema))


BROKEN: dict[str, Break] = {
    "the last event is left out": reading(
        lambda chunk, wanted: replace(chunk, arrow=chunk.arrow.slice(0, len(chunk) - 1))
    ),
    "an event comes twice": reading(one_too_many),
    "a chunk names another partition": reading(
        lambda chunk, wanted: replace(chunk, partition="another")
    ),
    "columns come in another order": reading(
        lambda chunk, wanted: Shuffled(chunk.arrow, chunk.partition)
    ),
    "the address has a secret": setting(address="file:///data/h.db?key=open-sesame"),
    "the address is no other process's": setting(address="file:///no/such/file.db"),
    "the identity changes with who asks": setting(identity="mine"),
    "there is no identity": setting(identity=""),
    "a part of the port is missing": setting(has_gaps=None, read_columns=None),
}


def found(rule: Any, folder: Path, spoil: Break) -> bool:
    async def make() -> FeedUnderTest:
        return hub_in(folder, spoil)

    try:
        asyncio.run(run_check(rule, make))
    except Exception:  # an assertion, or an error where none is due
        return True
    return False


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_feed_does_not_pass(name: str, tmp_path: Path) -> None:
    assert any(found(rule, tmp_path, BROKEN[name]) for rule in COLUMN_CHECKS)


def test_a_sound_feed_passes(tmp_path: Path) -> None:
    assert not any(found(rule, tmp_path, lambda hub: None) for rule in COLUMN_CHECKS)
