"""What handlers of a change feed receive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from leasehold.core import strict_json
from leasehold.core.event import Event, Properties, Property

Operation = Literal["insert", "replace", "upsert", "delete"]
Mode = Literal["latest", "all"]
"""Of a change feed: each document's newest state, or all versions."""


class Change(NamedTuple):
    """A change of a document. It has all that an ``Event`` has, so a pump treats them alike.

    A feed of newest states cannot tell a new document from a changed one; its operation is
    ``"upsert"``. Only a feed of all versions has ``"insert"``, ``"replace"``, ``"delete"`` and
    ``previous``.
    """

    document: dict[str, Any] | None
    """As it is after the change; None: it was deleted."""
    operation: Operation
    sequence: int
    offset: str
    enqueued_at: datetime
    partition: str
    partition_key: str | None = None
    previous: dict[str, Any] | None = None
    expired: bool = False
    """It was deleted because its time to live was over."""
    more_follow: bool = False
    """Others of the same transaction, with the same LSN."""

    @property
    def lsn(self) -> int:
        """Its place in the order of all changes of the container."""
        return self.sequence

    @property
    def time(self) -> datetime:
        return self.enqueued_at

    @property
    def range(self) -> str:
        """Where it was read: the range of the key space that has the document's key."""
        return self.partition

    @property
    def body(self) -> bytes:
        """The document as JSON; ``null`` if it was deleted."""
        return _text(self.document).encode()

    @property
    def properties(self) -> Properties:
        """What is not in the body, so that ``from_event`` can restore all of it."""
        found: dict[str, Property] = {"operation": self.operation}
        if self.previous is not None:
            found["previous"] = _text(self.previous)
        if self.expired:
            found["expired"] = True
        return found

    @classmethod
    def from_event(cls, event: Event) -> Change:
        """The change that was kept as an event: a dead letter, on its way back to a handler."""
        previous = event.properties.get("previous")
        return cls(
            document=strict_json.loads(event.body),
            operation=cast(Operation, event.properties.get("operation", "upsert")),
            sequence=event.sequence,
            offset=event.offset,
            enqueued_at=event.enqueued_at,
            partition=event.partition,
            partition_key=event.partition_key,
            previous=None if previous is None else strict_json.loads(str(previous)),
            expired=bool(event.properties.get("expired", False)),
        )


def _text(document: dict[str, Any] | None) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one read by hand gave."""

    changes: Sequence[Change]
    continuation: str
    """Where to go on in this range."""
    children: Mapping[str, str] = field(default_factory=dict)
    """Not empty: the range was split and is read to its end. Go on in these, by range, from these
    continuations."""
