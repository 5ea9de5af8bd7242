"""What producers send and handlers receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

Property = str | int | float | bool | None
Properties = Mapping[str, Property]


@dataclass(frozen=True, slots=True)
class EventData:
    """An event to send. Text is sent as UTF-8."""

    body: bytes | str
    properties: Properties = field(default_factory=dict)


class Event(NamedTuple):
    """An event as read. A tuple, because handlers may be given millions of them per second.

    Once it is handled, the group continues at ``sequence + 1``, and ``offset`` is the token that
    belongs to that position.
    """

    body: bytes
    sequence: int
    offset: str
    enqueued_at: datetime
    partition: str
    partition_key: str | None = None
    properties: Properties = {}  # noqa: RUF012
