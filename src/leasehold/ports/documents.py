"""A container of documents, whose changes are a feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from leasehold.core.change import Mode, Page
from leasehold.ports.feed import Feed


class Documents(Protocol):
    """What an application writes to and reads by hand, wherever it is. All of it blocks.

    Besides what is said below, every verb may raise ``FeedUnavailable`` (try again).
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str:
        """Which container of that name: one that was recreated is another."""

    def insert(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store a new document; ``DocumentConflict`` if there is one of that id and key,
        ``BadInput`` if it cannot be stored."""

    def list(
        self, partition_key: Any, *, max_items: int = ..., after: str = ""
    ) -> Sequence[dict[str, Any]]:
        """The documents of one partition key, by id. ``after``: the last id of the page before."""

    def leaves(self) -> Sequence[str]:
        """The ranges as they are now."""

    def changes(self, range: str, continuation: str | None = None, max_items: int = ...) -> Page:
        """A range's changes from a continuation on, or from the beginning."""

    def feed(self, mode: Mode = "latest") -> Feed:
        """The change feed, for a processor, an estimator or a Spark job."""

    def properties(self) -> object:
        """What it is like; raises where it is not there or not to be used."""

    def close(self) -> None: ...
