"""Which request about documents is answered by what."""

from __future__ import annotations

import json
from typing import Any

from leasehold.endpoints.cosmos import items
from leasehold.endpoints.cosmos.account import Collection
from leasehold.endpoints.cosmos.batch import run_batch
from leasehold.endpoints.cosmos.changes import changes_of, is_change_feed
from leasehold.endpoints.cosmos.http import Reply, Request
from leasehold.endpoints.cosmos.items import Conditions, ItemOutcome, Items
from leasehold.endpoints.cosmos.metrics import QueryMeter
from leasehold.endpoints.cosmos.pages import page_of
from leasehold.endpoints.cosmos.ranges import (
    ASK_ALL,
    key_of,
    leaves,
    not_enabled,
    range_for,
    scope_of,
    scope_of_values,
)
from leasehold.endpoints.cosmos.refusals import NEEDS_PLAN, Refusal
from leasehold.endpoints.cosmos.replies import reply, unlocated
from leasehold.endpoints.cosmos.sql import Query, parse
from leasehold.endpoints.cosmos.sql.computed import with_computed
from leasehold.endpoints.cosmos.sql.plan import query_info
from leasehold.endpoints.cosmos.sql.tree import bound_values
from leasehold.errors import BadInput
from leasehold.feeds.container.documents import require_id
from leasehold.feeds.effective_keys import HIGHEST, LOWEST, KeyValue, Scalar, effective_key

EVERYTHING = "SELECT * FROM c"
READ_CHARGE, WRITE_CHARGE, QUERY_CHARGE, ITEM_CHARGE = 1.0, 6.0, 2.5, 0.05
"""An estimate: what Azure charges depends on size, index and consistency."""


class DocumentRoutes:
    def __init__(self, collection: Collection, request: Request) -> None:
        self._collection = collection
        self._request = request
        self._headers = request.headers

    def all(self, body: Any) -> Reply:
        method = self._request.method
        if method == "GET":
            return self._changes() if is_change_feed(self._headers) else self._query(EVERYTHING)
        if method != "POST":
            raise Refusal(405, f"{method} is not possible for all documents at once.")
        if self._says("x-ms-cosmos-is-query-plan-request"):
            return unlocated(reply(200, self._plan(_query_of(body)), charge=0))
        if self._says("x-ms-cosmos-is-batch-request"):
            return self._batch(body)
        if self._says("x-ms-documentdb-isquery") or "query+json" in self._headers.get(
            "content-type", ""
        ):
            return self._query(body)
        return self._create(body)

    def one(self, id: str, body: Any) -> Reply:
        key = key_of(self._collection, self._headers)
        if key is None:
            raise Refusal(400, "x-ms-documentdb-partitionkey is missing: a document needs its key.")
        try:
            require_id(id)
        except BadInput as error:
            raise Refusal(400, str(error)) from error
        method = self._request.method
        if method == "GET":
            return self._read(id, *key)
        with self._collection.documents.transaction() as transaction:
            known = Items(self._collection, transaction)
            conditions = Conditions.of(self._headers)
            if method == "PUT":
                outcome = known.replace(id, body, *key, conditions)
            elif method == "PATCH":
                outcome = known.patch(id, body, *key, conditions)
            elif method == "DELETE":
                outcome = known.delete(id, *key, conditions)
            else:
                raise Refusal(405, f"{method} is not possible for a document.")
        return self._written(outcome, *key)

    def delete_key(self) -> Reply:
        """All documents of a partition key."""
        key = key_of(self._collection, self._headers)
        if key is None:
            raise Refusal(400, "x-ms-documentdb-partitionkey is missing.")
        scope = scope_of(self._collection, self._headers)
        found = self._collection.documents.scan(*scope.hashes)
        ids = [place.id for place, each in found if scope.holds(self._key_of(each))]
        for id in ids:
            with self._collection.documents.transaction() as transaction:
                Items(self._collection, transaction).delete(id, *key, Conditions())
        return reply(200, None, self._position(*key), WRITE_CHARGE * max(len(ids), 1))

    def _key_of(self, document: dict[str, Any]) -> KeyValue:
        return self._collection.rules.key_value(document)

    def _read(self, id: str, key: KeyValue) -> Reply:
        document = items.read(self._collection, id, key)
        headers = self._position(key) | {"etag": document["_etag"]}
        if self._headers.get("if-none-match") == document["_etag"]:
            return reply(304, None, headers, READ_CHARGE)
        return reply(200, document, headers, READ_CHARGE)

    def _create(self, body: Any) -> Reply:
        key = key_of(self._collection, self._headers)
        with self._collection.documents.transaction() as transaction:
            known = Items(self._collection, transaction)
            if self._says("x-ms-documentdb-is-upsert"):
                outcome = known.upsert(body, key, Conditions.of(self._headers))
            else:
                outcome = known.create(body, key)
        return self._written(outcome, self._collection.rules.key_value(body))

    def _written(self, outcome: ItemOutcome, key: KeyValue) -> Reply:
        headers = self._position(key)
        document = outcome.document
        if document is not None:
            headers["etag"] = document["_etag"]
            if self._headers.get("prefer", "").lower() == "return=minimal":
                document = None
        return reply(outcome.status, document, headers, WRITE_CHARGE)

    def _batch(self, body: Any) -> Reply:
        key = key_of(self._collection, self._headers)
        atomic = self._says("x-ms-cosmos-batch-atomic")
        status, results = run_batch(self._collection, body, key, atomic=atomic)
        headers = self._position(*key) if key else self._position_of(leaves(self._collection)[0].id)
        return reply(status, results, headers, WRITE_CHARGE * len(results))

    def _query(self, body: Any) -> Reply:
        query = parse(EVERYTHING) if body == EVERYTHING else _query_of(body)
        scope = scope_of(self._collection, self._headers)
        asks_all = scope.range is None and self._request.method == "POST"
        if asks_all and not self._says(ASK_ALL):
            scope = scope_of_values(self._collection, self._bound_key(query))
            asks_all = False
        if asks_all and self._needs_plan(query):
            raise Refusal(
                400,
                "The query is about more than one partition: ask for its plan, then each range.",
                substatus=NEEDS_PLAN,
                extra={"additionalErrorInfo": json.dumps(self._plan(query))},
            )
        meter = QueryMeter(self._headers)
        filled = with_computed(query, self._collection.computed)
        page = page_of(self._collection, filled, scope, self._headers, meter)
        headers = self._position_of(scope.range or leaves(self._collection)[0].id)
        headers |= meter.headers(self._collection, scope, page.values)
        headers["x-ms-item-count"] = str(len(page.values))
        if page.continuation is not None:
            headers["x-ms-continuation"] = page.continuation
        return self._listed(page.values, headers, QUERY_CHARGE)

    def _bound_key(self, query: Query) -> tuple[Scalar, ...]:
        """The key that the query's condition is about, which may be the beginning of one."""
        bound = {} if query.where is None else bound_values(query.where)
        computed = self._collection.computed  # which is no part of a key, whatever it is called
        values: list[Scalar] = []
        for path in self._collection.rules.paths:
            if path not in bound or path[0] in computed or isinstance(bound[path], dict | list):
                break
            values.append(bound[path])
        if not values:
            raise not_enabled()
        return tuple(values)

    def _needs_plan(self, query: Query) -> bool:
        """As in Azure, clients put together what needs all ranges to be right."""
        return not query.is_plain and not self._headers.get("x-ms-continuation")

    def _changes(self) -> Reply:
        scope = scope_of(self._collection, self._headers)
        page = changes_of(self._collection, scope, self._headers)
        headers = self._position_of(scope.range or leaves(self._collection)[0].id)
        headers["etag"] = f'"{page.lsn}"'
        if not page.changes:
            return reply(304, None, headers, READ_CHARGE)
        headers["x-ms-item-count"] = str(len(page.changes))
        return self._listed(page.changes, headers, READ_CHARGE)

    def _listed(self, values: list[Any], headers: dict[str, str], charge: float) -> Reply:
        body = {"_rid": self._collection.rid_text, "Documents": values, "_count": len(values)}
        return reply(200, body, headers, charge + ITEM_CHARGE * len(values))

    def _plan(self, query: Query) -> dict[str, Any]:
        scope = scope_of(self._collection, self._headers)
        whole = {"min": LOWEST, "max": HIGHEST, "isMinInclusive": True, "isMaxInclusive": False}
        if scope.has_key:
            place = effective_key(scope.key)
            whole |= {"min": place, "max": place, "isMaxInclusive": True}
        return {
            "partitionedQueryExecutionInfoVersion": 2,
            "queryInfo": query_info(query),
            "queryRanges": [whole],
        }

    def _position(self, key: KeyValue) -> dict[str, str]:
        return self._position_of(range_for(self._collection, key).id)

    def _position_of(self, range: str) -> dict[str, str]:
        known = {each.id: each for each in self._collection.container.ranges()}
        lsn = str(max(each.next_lsn for each in known.values()) - 1)
        return {
            "x-ms-session-token": f"{range}:-1#{lsn}",
            "x-ms-documentdb-partitionkeyrangeid": range,
            "lsn": lsn,
            "x-ms-item-lsn": lsn,
            "x-ms-global-committed-lsn": lsn,
        }

    def _says(self, header: str) -> bool:
        return self._headers.get(header, "").lower() == "true"


def _query_of(body: Any) -> Query:
    if isinstance(body, str):
        return parse(body)
    if not isinstance(body, dict):
        raise Refusal(400, "A query is an object with the field query.")
    return parse(body.get("query"), body.get("parameters"))
