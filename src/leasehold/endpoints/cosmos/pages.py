"""Pages of documents: queries and plain lists, with continuations that outlive splits."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from leasehold.core import strict_json
from leasehold.endpoints.cosmos.account import Collection
from leasehold.endpoints.cosmos.items import shown
from leasehold.endpoints.cosmos.metrics import QueryMeter
from leasehold.endpoints.cosmos.ranges import SHIFT, Scope, leaves
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql import Query, Running
from leasehold.endpoints.cosmos.sql.run import Place, Resume
from leasehold.endpoints.cosmos.sql.values import type_of
from leasehold.feeds.container.documents import KEY_SPACE
from leasehold.feeds.container.file import Place as StoredPlace
from leasehold.feeds.effective_keys import bound_of

PAGE_BYTES = 4 << 20
ITEMS = 100
ITEMS_MAX = 1000
CONTINUATION_CHARS_MAX = 8000
BEHIND_KEYS = b"z"
"""Sorts behind every key that a file holds."""


class ItemPage(NamedTuple):
    values: list[Any]
    continuation: str | None


def items_wanted(headers: Mapping[str, str]) -> int:
    text = headers.get("x-ms-max-item-count", str(ITEMS)).strip()
    if text in ("-1", ""):
        return ITEMS_MAX
    if not text.isascii() or not text.isdigit():
        raise Refusal(400, f"x-ms-max-item-count is a number, not {text!r:.40}.")
    return min(int(text[:9]) or ITEMS_MAX, ITEMS_MAX)


def page_of(
    collection: Collection,
    query: Query,
    scope: Scope,
    headers: Mapping[str, str],
    meter: QueryMeter,
) -> ItemPage:
    resume = _parsed(headers.get("x-ms-continuation"))
    if resume is not None and len(resume.order) != len(query.order_by):
        raise Refusal(400, "The continuation is of another query.")
    most = items_wanted(headers)
    if scope.has_key and query.counts_all:
        return ItemPage([collection.documents.count(scope.key)], None)
    from_start = resume is None or query.order_by or query.is_distinct
    behind = None if resume is None or from_start else StoredPlace(*resume.place)
    parts = [scope] if scope.range or not query.is_plain else _by_range(collection, scope, resume)
    if not parts:
        return ItemPage([], None)
    documents = meter.seen(_documents(collection, parts[0], behind))
    page = _page(documents, query, resume, most)
    if page.continuation is None and len(parts) > 1:
        end = parts[0].hashes[1], BEHIND_KEYS, ""
        return page._replace(continuation=_text(Resume(end, [], 0)))
    return page


def _by_range(collection: Collection, scope: Scope, resume: Resume | None) -> list[Scope]:
    """What is left to read. As in Azure, a page is of one range only, and may be empty."""
    begin = scope.hashes[0]
    if resume is not None:
        begin = resume.place[0] + (resume.place[1] == BEHIND_KEYS)
    return [
        Scope(
            max(scope.low, bound_of(each.low << SHIFT)),
            min(scope.end, bound_of(each.high + 1 << SHIFT)),
            each.id,
        )
        for each in leaves(collection)
        if begin <= each.high
    ]


def _page(
    documents: Iterable[tuple[Place, dict[str, Any]]],
    query: Query,
    resume: Resume | None,
    most: int,
) -> ItemPage:
    values: list[Any] = []
    size = 0
    last: tuple[Place, list[list[Any]]] | None = None
    given = resume.given if resume else 0
    for result in Running(query, resume, most).page(documents):
        if len(values) == most or size > PAGE_BYTES:
            assert last is not None
            return ItemPage(values, _text(Resume(*last, given + len(values))))
        values.append(result.value)
        last = result.place, result.order
        size += len(json.dumps(result.value))
    return ItemPage(values, None)


def _documents(
    collection: Collection, scope: Scope, behind: StoredPlace | None
) -> Iterator[tuple[Place, dict[str, Any]]]:
    for place, document in collection.documents.scan(*scope.hashes, behind):
        if scope.holds(collection.rules.key_value(document)):
            yield place, shown(collection, document)


def _text(resume: Resume) -> str:
    hash, key, id = resume.place
    at = [hash, {"bytes": key.decode()} if isinstance(key, bytes) else key, id]
    plain = json.dumps({"at": at, "order": resume.order, "given": resume.given})
    text = urlsafe_b64encode(plain.encode()).decode()
    if len(text) > CONTINUATION_CHARS_MAX:
        raise Refusal(400, "What this query sorts by is too long to go on from on a next page.")
    return text


def _parsed(text: str | None) -> Resume | None:
    if not text:
        return None
    try:
        found = strict_json.loads(urlsafe_b64decode(text.encode("ascii")))
        hash, key, id = found["at"]
        key = key["bytes"].encode() if isinstance(key, dict) else key
        order, given = found["order"], found["given"]
        fits = _is_below(hash, KEY_SPACE) and _is_below(given, 1 << 63) and isinstance(id, str)
        fits = fits and (_is_below(abs(key), 1 << 63) if isinstance(key, int) else True)
        if fits and isinstance(key, str | int | float | bytes) and _is_order(order):
            return Resume((hash, key, id), order, given)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        pass
    raise Refusal(400, f"The continuation {text!r:.80} is none of this endpoint.")


def _is_order(order: Any) -> bool:
    return isinstance(order, list) and all(
        isinstance(each, list)
        and len(each) == 2
        and (each[0] == type_of(each[1]) in (2, 4, 5) or (each[0] in (0, 1, 6, 7) and each[1] == 0))
        for each in order
    )


def _is_below(number: Any, end: int) -> bool:
    return isinstance(number, int) and 0 <= number < end
