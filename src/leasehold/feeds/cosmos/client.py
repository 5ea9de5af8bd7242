"""Requests about one container's ranges and their changes.

The client's own change feed follows splits by itself and does not keep to a range across them, so
each request names its range and LSN here, in headers that the client is made to send.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from azure.core.exceptions import AzureError
from azure.cosmos.exceptions import CosmosHttpResponseError

from leasehold.core.change import Mode
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.feeds.cosmos.tokens import Bounds
from leasehold.local.cosmos import NOT_HERE_YET, CosmosConnection

GONE = 410
INCREMENTAL = {"A-IM": "Incremental Feed"}
ALL_VERSIONS = {
    "A-IM": "Full-Fidelity Feed",
    "x-ms-cosmos-changefeed-wire-format-version": "2021-09-15",
}


class RangeGone(Exception):
    """The range was split or merged."""


class ContainerRecreated(RangeGone):
    """Another one with the same name answered."""


class PositionRefused(Exception):
    """Cosmos DB does not go on from this position."""


@dataclass(frozen=True, slots=True)
class PhysicalRange:
    id: str
    bounds: Bounds
    parents: tuple[str, ...]
    """The oldest first."""


@dataclass(frozen=True, slots=True)
class ContainerAbout:
    rid: str
    identity: str
    key_paths: tuple[str, ...]
    key_version: int


@dataclass(frozen=True, slots=True)
class ChangesPage:
    items: list[dict[str, Any]]
    lsn: int
    """Where to go on behind."""
    newest_lsn: int | None
    """Of the range; None: it was not told."""
    size_bytes: int
    identity: str | None = None
    """Of the container that answered; None: it was not told."""


class RangeClient:
    def __init__(self, connection: CosmosConnection, mode: Mode) -> None:
        self._connection = connection
        self._mode = mode

    def about(self) -> ContainerAbout:
        with self._explained():
            found = self._connection.container.read(
                raw_response_hook=self._connection.counting("properties")
            )
        key = found.get("partitionKey") or {}
        rid, version = found["_rid"], int(key.get("version", 1))
        return ContainerAbout(rid, _decoded(rid), tuple(key.get("paths", ())), version)

    def ranges(self) -> list[PhysicalRange]:
        """As they are now, by key."""
        with self._explained():
            container = self._connection.container
            found = container.client_connection._ReadPartitionKeyRanges(
                container.container_link,
                raw_response_hook=self._connection.counting("ranges"),
            )
            rows = list(found)
        return sorted(
            (
                PhysicalRange(
                    str(each["id"]),
                    Bounds(each["minInclusive"].upper(), each["maxExclusive"].upper()),
                    tuple(map(str, each.get("parents") or ())),
                )
                for each in rows
            ),
            key=lambda range: range.bounds.low,
        )

    def changes(
        self,
        verb: str,
        range: str,
        *,
        after: int | None = None,
        since: datetime | None = None,
        latest: bool = False,
        within: Bounds | None = None,
        max_items: int = 1,
    ) -> ChangesPage:
        """One page, after an LSN, or since a time, or from the beginning. ``latest``: no changes at
        all, only where the range ends. ``within``: only some keys of the range."""
        headers = dict(INCREMENTAL if self._mode == "latest" else ALL_VERSIONS)
        headers["x-ms-documentdb-partitionkeyrangeid"] = range
        if latest:
            headers["If-None-Match"] = "*"
        elif after is not None:
            headers["If-None-Match"] = f'"{after}"'
        if since is not None:
            headers["If-Modified-Since"] = format_datetime(since, usegmt=True)
        if within is not None:
            headers["x-ms-start-epk"], headers["x-ms-end-epk"] = within
            headers["x-ms-read-key-type"] = "EffectivePartitionKeyRange"
        answers: list[Any] = []
        with self._explained():
            items = self._page(verb, headers, max_items, answers)
        return _page_of(items, answers[-1].headers)

    def _page(
        self, verb: str, headers: Mapping[str, str], max_items: int, answers: list[Any]
    ) -> list[dict[str, Any]]:
        count = self._connection.counting(verb)

        def answered(response: Any) -> None:
            count(response)
            answers.append(response.http_response)

        pages = self._connection.container.query_items_change_feed(
            # A plain number makes the client leave range and position to whoever asks.
            continuation="0",
            max_item_count=max_items,
            raw_request_hook=_sender(headers),
            raw_response_hook=answered,
        ).by_page()
        return list(next(pages, ()))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        where = self._connection.settings.address
        try:
            yield
        except CosmosHttpResponseError as error:
            status = error.status_code
            if status == GONE:
                raise RangeGone(where) from error
            if status == 400:
                raise PositionRefused(_message(error)) from error
            if status in (401, 403):
                raise BadInput(
                    f"{where} refuses the key or the identity ({status}): {_message(error)}"
                ) from error
            if status == 404 and error.sub_status != NOT_HERE_YET:
                raise BadInput(f"there is no container at {where}") from error
            raise FeedUnavailable(f"{where} answered {status}: {_message(error)}") from error
        except AzureError as error:
            raise FeedUnavailable(f"{where} does not answer: {error}") from error


def _sender(headers: Mapping[str, str]) -> Callable[[Any], None]:
    def send(request: Any) -> None:
        sent = request.http_request.headers
        if "a-im" not in {name.lower() for name in sent}:
            return  # not the request for changes, but one that the client makes besides
        for name in [name for name in sent if name.lower() in ("if-none-match", "a-im")]:
            del sent[name]
        sent.update(headers)

    return send


def _page_of(items: list[dict[str, Any]], headers: Mapping[str, str]) -> ChangesPage:
    etag = headers.get("etag", "").strip('"')
    newest = headers.get("lsn", "")
    return ChangesPage(
        items,
        int(etag) if etag.isdigit() else 0,
        int(newest) if newest.isdigit() else None,
        int(headers.get("content-length") or 0),
        _identity_in(headers.get("x-ms-content-path", "")),
    )


def _message(error: CosmosHttpResponseError) -> str:
    return str(error.message or "").split("\n")[0][:300]


def _identity_in(path: str) -> str | None:
    try:
        return _decoded(path) or None
    except ValueError:
        return None


def _decoded(rid: str) -> str:
    return b64decode(rid.replace("-", "/")).hex()
