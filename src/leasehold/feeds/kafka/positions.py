"""Positions in a topic. The sequence is Kafka's offset; the token says of which topic it is, as one
that was deleted and created again counts from 0 again."""

from __future__ import annotations

from typing import NamedTuple

from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, Gone, PositionGone

TAG_CHARS = 8


def tag_of(topic_id: str) -> str:
    """A part of the topic's id is enough to tell a topic from the one before it."""
    return topic_id[:TAG_CHARS]


def offset_text(offset: int, tag: str) -> str:
    """An event's offset as the feed gives it out: ``1234@Xk3b9QpA``."""
    return f"{offset}@{tag}" if tag else str(offset)


def position_at(next_offset: int, tag: str) -> Checkpoint:
    return Checkpoint(next_sequence=next_offset, token=offset_text(next_offset - 1, tag))


def parse_offset(text: str) -> tuple[int, str]:
    """What ``offset_text`` gave, or a plain number; with the tag, if there is one."""
    number, _, tag = text.partition("@")
    if not (number.isascii() and number.isdigit()) or len(number) > 19:
        raise BadInput(f"offset {text!r} is none of a Kafka topic: give a number, such as 1234")
    return int(number), tag


class Kept(NamedTuple):
    """What a partition holds."""

    first: int
    end: int


def why_gone(position: Checkpoint, kept: Kept, tag: str) -> Gone | None:
    _, at, told = position.token.partition("@")
    if at and tag and told != tag:
        return "other feed"
    if position.next_sequence < kept.first:
        return "retention"
    return "beyond end" if position.next_sequence > kept.end else None


REASONS = {
    "retention": "its events were removed",
    "beyond end": "the topic ends before it",
    "other feed": "the topic was deleted and created again since",
}


def gone(
    topic: str, partition: int, position: Checkpoint, reason: Gone, *, kept: Kept, tag: str
) -> PositionGone:
    return PositionGone(
        f"{topic}, partition {partition}: position {position.next_sequence} is gone: "
        f"{REASONS[reason]}; there are offsets {kept.first} to {kept.end}",
        partition=str(partition),
        position=position,
        reason=reason,
        earliest=position_at(kept.first, tag),
        latest=position_at(kept.end, tag),
    )
