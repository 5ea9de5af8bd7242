"""Dead letters as documents of Cosmos DB. All of a group have one partition key.

Cosmos DB keeps whole numbers exactly up to 2**53 only: larger ones are texts here.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from leasehold.core.model import Group
from leasehold.errors import BadInput
from leasehold.local.cosmos_documents import FOR_GOOD, OPERATIONS_MAX, Document
from leasehold.ports import DeadLetter, LetterFilter
from leasehold.stores.dead_letters.rows import check_age, letter_of

KIND = "dead letter"
DOCUMENT_BYTES_MAX = 1_900_000
"""Cosmos DB takes 2 MB, with what it adds."""
COMPRESS_BYTES = 16_000
FIELDS = (
    "namespace", "feed", "group_name", "partition", "sequence", "token", "body", "properties",
    "partition_key", "enqueued_us", "error", "attempts", "number", "dead_us", "redriven_us",
    "redrives",
)  # fmt: skip
Condition = tuple[str, dict[str, Any]]
"""The WHERE of a query, and the values of its parameters."""


def key_of(group: Group) -> str:
    """Not the one of the group's leases, which may be kept in the same container."""
    return json.dumps([KIND, group.namespace, group.feed, group.name], ensure_ascii=False)


def group_of(key: str) -> Group:
    _, namespace, feed, name = json.loads(key)  # noqa: TID251  # written by us
    return Group(namespace=namespace, feed=feed, name=name)


def document_of(row: Mapping[str, Any]) -> Document:
    """Of a row as ``row_of`` gives it. Its number and time come when it is put."""
    group = Group(namespace=row["namespace"], feed=row["feed"], name=row["group_name"])
    body: bytes = row["body"]
    packed = zlib.compress(body) if len(body) > COMPRESS_BYTES else body
    document = dict(row) | {
        "group": key_of(group),
        "kind": KIND,
        "sequence": str(row["sequence"]),
        "enqueued_us": str(row["enqueued_us"]),
        "body": b64encode(packed).decode(),
        "compressed": packed is not body,
        "dead_us": 0,
        "redriven_us": None,
        "redrives": 0,
        **FOR_GOOD,
    }
    if size_of(document) > DOCUMENT_BYTES_MAX:
        raise BadInput(
            f"dead letter of {group}/{row['partition']}/{row['sequence']}: a body of {len(body)} "
            "bytes is too large for a document of Cosmos DB; keep dead letters elsewhere"
        )
    return document


def letter_in(document: Document) -> DeadLetter:
    body = b64decode(document["body"])
    values = document | {
        "sequence": int(document["sequence"]),
        "enqueued_us": int(document["enqueued_us"]),
        "body": zlib.decompress(body) if document["compressed"] else body,
    }
    return letter_of([values[name] for name in FIELDS])


def condition_of(which: LetterFilter, now_us: int = 0) -> Condition:
    check_age(which)
    said = ["c.kind = @kind"]
    values: dict[str, Any] = {"kind": KIND}
    given: dict[str, tuple[str, Any]] = {
        "namespace": ("c.namespace = @namespace", which.namespace),
        "feed": ("c.feed = @feed", which.feed),
        "group_name": ("c.group_name = @group_name", which.group),
        "partition": ("c.partition = @partition", which.partition),
        "ids": ("ARRAY_CONTAINS(@ids, c.id)", None if which.ids is None else list(which.ids)),
        "up_to": ("c.number <= @up_to", which.up_to),
        "before_us": ("c.dead_us < @before_us", _before(which.older_than_s, now_us)),
    }
    for name, (text, value) in given.items():
        if value is not None:
            said.append(text)
            values[name] = value
    if which.redriven is not None:
        said.append("NOT IS_NULL(c.redriven_us)" if which.redriven else "IS_NULL(c.redriven_us)")
    return " AND ".join(said), values


def key_named_by(which: LetterFilter) -> str | None:
    """None: letters of several groups may fit."""
    if which.namespace is None or which.feed is None or which.group is None:
        return None
    return key_of(Group(namespace=which.namespace, feed=which.feed, name=which.group))


def parts_of(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """What fits into one transaction: few enough, small enough, of one partition key."""
    by_key: dict[str, list[Document]] = {}
    for document in documents:
        by_key.setdefault(document["group"], []).append(document)
    for mine in by_key.values():
        part: list[Document] = []
        left = DOCUMENT_BYTES_MAX
        for document in mine:
            size = size_of(document)
            if part and (len(part) == OPERATIONS_MAX or size > left):
                yield part
                part, left = [], DOCUMENT_BYTES_MAX
            part.append(document)
            left -= size
        yield part


def size_of(document: Document) -> int:
    return len(json.dumps(document)) + 100  # of the operation around it


def _before(older_than_s: float | None, now_us: int) -> int | None:
    return None if older_than_s is None else now_us - int(older_than_s * 1e6)
