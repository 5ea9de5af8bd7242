"""Several operations in one request: all or none of them, or each by itself."""

from __future__ import annotations

from typing import Any

from leasehold.endpoints.cosmos.account import Collection
from leasehold.endpoints.cosmos.items import Conditions, ItemOutcome, Items
from leasehold.endpoints.cosmos.ranges import parsed_key, whole_key
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.errors import BadInput
from leasehold.feeds.effective_keys import KeyValue

OPERATIONS_MAX = 100
DEPENDS = 424
"""The status of an operation that was not carried out because another one failed."""
CHARGE = 1.0


def run_batch(
    collection: Collection, body: Any, key: tuple[KeyValue] | None, *, atomic: bool
) -> tuple[int, list[dict[str, Any]]]:
    if not isinstance(body, list):
        raise Refusal(400, f"A batch is an array of 1 to {OPERATIONS_MAX} operations.")
    if not body:
        raise Refusal(400, "Batch request has no operations.")
    if len(body) > OPERATIONS_MAX:
        raise Refusal(400, "Batch request has more operations than what is supported.")
    if not all(isinstance(each, dict) for each in body):
        raise Refusal(400, "An operation of a batch is an object.")
    results = _together(collection, body, key) if atomic else _apart(collection, body, key)
    return (207 if any(each["statusCode"] >= 400 for each in results) else 200), results


def _together(
    collection: Collection, body: list[dict[str, Any]], key: tuple[KeyValue] | None
) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    try:
        with collection.documents.transaction() as transaction:
            items = Items(collection, transaction)
            for each in body:
                done.append(_shown(_run(collection, items, each, key)))
    except Refusal as refusal:
        unused = {"statusCode": DEPENDS, "requestCharge": 0.0}
        left = len(body) - len(done) - 1
        return [unused] * len(done) + [_refused(refusal)] + [unused] * left
    return done


def _apart(
    collection: Collection, body: list[dict[str, Any]], key: tuple[KeyValue] | None
) -> list[dict[str, Any]]:
    done = []
    for each in body:
        try:
            with collection.documents.transaction() as transaction:
                items = Items(collection, transaction)
                done.append(_shown(_run(collection, items, each, key)))
        except Refusal as refusal:
            done.append(_refused(refusal))
    return done


def _run(
    collection: Collection, items: Items, operation: dict[str, Any], key: tuple[KeyValue] | None
) -> ItemOutcome:
    given = operation.get("partitionKey")
    own = (whole_key(collection, parsed_key(given)),) if isinstance(given, str) else key
    conditions = Conditions(operation.get("ifMatch"), operation.get("ifNoneMatch"))
    kind, body, id = (operation.get(name) for name in ("operationType", "resourceBody", "id"))
    try:
        if kind == "Create":
            return items.create(body, own)
        if kind == "Upsert":
            return items.upsert(body, own, conditions)
        if own is None or not isinstance(id, str):
            raise Refusal(400, f"The operation {kind!r:.20} needs an id and a partition key.")
        if kind == "Read":
            return items.read(id, *own)
        if kind == "Replace":
            return items.replace(id, body, *own, conditions)
        if kind == "Delete":
            return items.delete(id, *own, conditions)
        if kind == "Patch":
            return items.patch(id, body, *own, conditions)
    except BadInput as error:
        raise Refusal(400, str(error)) from error
    raise Refusal(400, f"The operation {kind!r:.20} of a batch is unknown.")


def _shown(outcome: ItemOutcome) -> dict[str, Any]:
    shown: dict[str, Any] = {"statusCode": outcome.status, "requestCharge": CHARGE}
    if outcome.document is not None:
        shown |= {"eTag": outcome.document["_etag"], "resourceBody": outcome.document}
    return shown


def _refused(refusal: Refusal) -> dict[str, Any]:
    sub = {} if refusal.substatus is None else {"subStatusCode": refusal.substatus}
    return {"statusCode": refusal.status, "requestCharge": CHARGE, "message": str(refusal)} | sub
