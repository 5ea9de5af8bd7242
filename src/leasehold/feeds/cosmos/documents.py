"""A Cosmos DB container as an application writes to it and reads it by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from azure.core.exceptions import AzureError
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceExistsError

from leasehold.core.change import Mode, Page
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, DocumentConflict, FeedUnavailable
from leasehold.feeds.cosmos.feed import CosmosFeed
from leasehold.feeds.cosmos.reader import CosmosReader
from leasehold.local.cosmos import CosmosConnection, CosmosSettings

ITEMS_MAX = 100
REFUSED = (400, 413)


class CosmosContainer:
    """``Documents`` in Azure Cosmos DB."""

    def __init__(self, settings: CosmosSettings) -> None:
        self._settings = settings
        self._connection = CosmosConnection(settings)
        self._reader = CosmosReader(self._connection, "latest")
        self._feeds: dict[Mode, CosmosFeed] = {}
        self.requests = self._connection.requests
        self.request_units = self._connection.request_units

    @classmethod
    def from_url(cls, url: str) -> CosmosContainer:
        return cls(CosmosSettings.from_url(url))

    @property
    def name(self) -> str:
        return self._settings.container

    @property
    def identity(self) -> str:
        return self._reader.about.identity

    def insert(self, document: Mapping[str, Any]) -> dict[str, Any]:
        with self._explained():
            try:
                return dict(
                    self._connection.container.create_item(
                        dict(document), raw_response_hook=self._connection.counting("insert")
                    )
                )
            except CosmosResourceExistsError as error:
                id = str(document.get("id"))
                text = f"{self._settings.address}: document {id!r} is there already"
                raise DocumentConflict(text, id=id, reason="exists") from error

    def list(
        self, partition_key: Any, *, max_items: int = ITEMS_MAX, after: str = ""
    ) -> Sequence[dict[str, Any]]:
        """Their ``_lsn`` is 0 where Cosmos DB does not tell it."""
        if max_items < 1:
            raise BadInput(f"max_items is {max_items}; at least 1 document must be allowed")
        with self._explained():
            found = self._connection.container.query_items(
                f"SELECT TOP {max_items} * FROM c WHERE c.id > @after ORDER BY c.id",
                parameters=[{"name": "@after", "value": after}],
                partition_key=partition_key,
                raw_response_hook=self._connection.counting("list"),
            )
            return [{"_lsn": 0, **each} for each in found]

    def leaves(self) -> Sequence[str]:
        return [each.id for each in self._reader.partitions()]

    def changes(
        self, range: str, continuation: str | None = None, max_items: int = ITEMS_MAX
    ) -> Page:
        at = _parsed(continuation) if continuation else self._reader.locate(range, "earliest")
        batch = self._reader.read(range, at, max_items)
        children = {id: _written(each) for id, each in batch.children.items()}
        return Page(changes=batch.events, continuation=_written(batch.next), children=children)

    def feed(self, mode: Mode = "latest") -> CosmosFeed:
        if mode not in self._feeds:
            self._feeds[mode] = CosmosFeed(self._settings, mode)
        return self._feeds[mode]

    def properties(self) -> Mapping[str, Any]:
        with self._explained():
            return dict(self._connection.container.read())

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._reader.close()
        self._connection.close()

    def __repr__(self) -> str:
        return f"CosmosContainer({self._settings.address})"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        where = self._settings.address
        try:
            yield
        except CosmosHttpResponseError as error:
            status, told = error.status_code, str(error.message or "").split("\n")[0][:300]
            if status in REFUSED:
                raise BadInput(f"{where} does not take it: {told}") from error
            if status in (401, 403):
                raise BadInput(f"{where} refuses the key or the identity ({status})") from error
            if status == 404:
                raise BadInput(f"there is no container at {where}") from error
            raise FeedUnavailable(f"{where} answered {status}: {told}") from error
        except AzureError as error:
            raise FeedUnavailable(f"{where} does not answer: {error}") from error


def _written(position: Checkpoint) -> str:
    return f"{position.next_sequence}:{position.token}"


def _parsed(continuation: str) -> Checkpoint:
    number, colon, token = continuation.partition(":")
    if not colon or not (number.isascii() and number.isdigit()):
        raise BadInput(f"continuation {continuation!r:.80} is none of this container")
    return Checkpoint(next_sequence=int(number), token=token)
