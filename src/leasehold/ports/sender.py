"""What events can be sent to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from leasehold.core.event import EventData


class Appended(NamedTuple):
    """Where a send put some of its events."""

    partition: str
    first_sequence: int
    events: int


@runtime_checkable
class Sender(Protocol):
    """A feed as producers see it. Any thread may send; the events of one key stay in order.

    A send returns when everything is stored as safely as the outside system does it, and gives back
    where, if it was told. It raises ``BadInput`` where nothing was sent, and ``FeedUnavailable``
    where some of it may be stored: sent again, that may be there twice.
    """

    namespace: str
    name: str

    @property
    def identity(self) -> str:
        """Which feed of that name: one that was recreated is another."""

    def send(
        self,
        events: EventData | Iterable[EventData],
        *,
        partition_key: str | None = None,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        """To one partition: the key's, the given one, or any."""

    def send_columns(
        self,
        keys: Any,
        bodies: Any,
        properties: Any = None,
        *,
        partition_id: str | int | None = None,
    ) -> Sequence[Appended]:
        """Whole columns at once: Arrow arrays, or what makes them. Every event goes to its key's
        partition; with ``keys=None`` to any. ``properties`` are JSON objects as text, or null."""

    def close(self) -> None:
        """Free what it holds. Every call after that raises ``BadInput``."""


@runtime_checkable
class FileBacked(Protocol):
    """What a sender is besides if all it holds is one file of this machine, at ``path``, as a hub
    is. Programs may keep small files of their own beside it."""

    path: Path
