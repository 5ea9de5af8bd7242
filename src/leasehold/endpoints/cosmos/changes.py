"""The change feed of a range, in both modes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from leasehold.core.change import Change, Mode
from leasehold.core.model import Checkpoint
from leasehold.endpoints.cosmos.account import Collection
from leasehold.endpoints.cosmos.items import shown
from leasehold.endpoints.cosmos.pages import PAGE_BYTES, items_wanted
from leasehold.endpoints.cosmos.ranges import Scope, leaves
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.container.change_feed import ChangeFeed
from leasehold.feeds.effective_keys import UNDEFINED

STEP = 100
"""Changes that are looked at a time, so that a page stays within its bytes."""
LSN_DIGITS = 18
OPERATIONS = {"insert": "create", "replace": "replace", "delete": "delete", "upsert": "create"}


class ChangePage(NamedTuple):
    changes: list[dict[str, Any]]
    lsn: int
    """The last one that was looked at: where to go on behind."""


def is_change_feed(headers: Mapping[str, str]) -> bool:
    return "a-im" in headers


def changes_of(collection: Collection, scope: Scope, headers: Mapping[str, str]) -> ChangePage:
    mode: Mode = "all" if "full-fidelity" in headers["a-im"].lower() else "latest"
    if mode == "all" and not collection.has_versions:
        raise Refusal(400, "This container keeps no versions: it was made with versions_s=0.")
    feed = collection.container.feed(mode)
    range = scope.range or _single(collection)
    wrapped = mode == "all" or "x-ms-cosmos-changefeed-wire-format-version" in headers
    most = items_wanted(headers)
    found: list[dict[str, Any]] = []
    size = 0
    try:
        at = _begin(feed, range, headers, mode)
        while len(found) < most and size < PAGE_BYTES:
            batch = feed.read_batch(range, at, min(STEP, most - len(found)), scope.hashes)
            for change in batch.events:
                if scope.holds(collection.rules.key_value(_document(change))):
                    found.append(
                        _wrapped(collection, change) if wrapped else _plain(collection, change)
                    )
                    size += batch.size_bytes // len(batch.events)
            at = batch.next
            if not batch.events:
                break
    except PositionGone as gone:
        raise Refusal(400, str(gone)) from gone
    except BadInput as error:
        raise Refusal(400, str(error)) from error
    return ChangePage(found, at.next_sequence - 1)


def _single(collection: Collection) -> str:
    """A client that names no range means all of them, which works while there is one."""
    found = leaves(collection)
    if len(found) > 1:
        raise Refusal(
            400,
            "A change feed is read range by range: x-ms-documentdb-partitionkeyrangeid is missing.",
        )
    return found[0].id


def _begin(feed: ChangeFeed, range: str, headers: Mapping[str, str], mode: Mode) -> Checkpoint:
    etag, since = headers.get("if-none-match"), headers.get("if-modified-since")
    if etag == "*":
        return feed.position_of(range, "latest")
    if etag is not None:
        lsn = etag.strip().strip('"')
        if not lsn.isascii() or not lsn.isdigit() or len(lsn) > LSN_DIGITS:
            raise Refusal(400, f"The continuation {etag!r:.80} is none of this endpoint.")
        return Checkpoint(next_sequence=int(lsn) + 1)
    if since is not None:
        return feed.position_of(range, _time(since))
    return feed.position_of(range, "latest" if mode == "all" else "earliest")


def _time(text: str) -> datetime:
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        raise Refusal(400, f"If-Modified-Since {text!r:.80} is no date.") from None


def _document(change: Change) -> dict[str, Any]:
    return change.document or change.previous or {}


def _plain(collection: Collection, change: Change) -> dict[str, Any]:
    assert change.document is not None
    return shown(collection, change.document, lsn=True)


def _wrapped(collection: Collection, change: Change) -> dict[str, Any]:
    about: dict[str, Any] = {
        "lsn": change.lsn,
        "crts": int(change.time.timestamp()),
        "operationType": OPERATIONS[change.operation],
    }
    result: dict[str, Any] = {"current": {}, "metadata": about}
    if change.document is not None:
        result["current"] = shown(collection, change.document)
    if change.previous is not None:
        about["previousImageLSN"] = change.previous["_lsn"]
        if change.operation == "delete":
            document = change.previous
            result["previous"] = shown(collection, document)
            about["id"] = document["id"]
            key = collection.rules.key_value(document)
            values = key if isinstance(key, tuple) else (key,)
            named = zip(collection.rules.paths, values, strict=True)
            about["partitionKey"] = {
                "/".join(path): value for path, value in named if value is not UNDEFINED
            }
            about["timeToLiveExpired"] = change.expired
    return result
