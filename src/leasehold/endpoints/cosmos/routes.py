"""Which request is answered by what: the account, databases and containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from leasehold.core import strict_json
from leasehold.endpoints.cosmos import metrics, offers, ranges, rids
from leasehold.endpoints.cosmos.account import Account, Collection, Database
from leasehold.endpoints.cosmos.document_routes import DocumentRoutes
from leasehold.endpoints.cosmos.http import Reply, Request
from leasehold.endpoints.cosmos.refusals import WRONG_COLLECTION, Refusal
from leasehold.endpoints.cosmos.replies import SESSION, listed, reply
from leasehold.endpoints.cosmos.signature import Signatures
from leasehold.endpoints.cosmos.sql import Running, parse
from leasehold.endpoints.cosmos.throughput import Throughput

ABSENT = ("sprocs", "triggers", "udfs", "users", "permissions", "attachments")
SEGMENTS_MAX = 8


class Routes:
    def __init__(self, account: Account, signatures: Signatures, name: str) -> None:
        self._account = account
        self._signatures = signatures
        self._name = name

    def answer(self, request: Request, address: str) -> Reply:
        """``address``: how the client reached the endpoint, for it to go on there."""
        parts = _parts(request.target)
        self._signatures.require(request.method, parts, request.headers)
        if not parts:
            return reply(200, _account_properties(self._name, address))
        if parts[0] == "offers":
            return offers.answer(self._account, request, parts, _body(request))
        if parts[0] != "dbs":
            raise Refusal(404, f"There is no {parts[0]!r:.80} here.")
        if len(parts) == 1:
            return self._databases(request)
        database = self._account.database(parts[1])
        if len(parts) == 2:
            return self._database(request, database)
        if parts[2] != "colls":
            raise _absent(parts[2])
        if len(parts) == 3:
            return self._collections(request, database)
        collection = database.collection(parts[3])
        answer = self._in_collection(request, database, collection, parts)
        return _located(answer, database, collection if len(parts) > 4 else None)

    def _databases(self, request: Request) -> Reply:
        if request.method == "POST" and not is_query(request):
            throughput = Throughput.of_headers(request.headers)
            made = self._account.create_database(_body(request), throughput)
            return reply(201, made.properties(), {"etag": '"00000000"'})
        _require(request, "GET", "POST")
        found = [each.properties() for each in list(self._account.databases.values())]
        return listed("", "Databases", filtered(found, request))

    def _database(self, request: Request, database: Database) -> Reply:
        _require(request, "GET", "DELETE")
        if request.method == "DELETE":
            self._account.delete_database(database)
            return reply(204)
        return reply(200, database.properties(), {"etag": '"00000000"'})

    def _collections(self, request: Request, database: Database) -> Reply:
        if request.method == "POST" and not is_query(request):
            throughput = Throughput.of_headers(request.headers)
            made = self._account.create_collection(database, _body(request), throughput)
            return _located(_shown(201, made, request.headers), database)
        _require(request, "GET", "POST")
        found = [each.properties() for each in list(database.collections.values())]
        return listed(rids.text(database.rid), "DocumentCollections", filtered(found, request))

    def _in_collection(
        self, request: Request, database: Database, collection: Collection, parts: Sequence[str]
    ) -> Reply:
        wanted = request.headers.get("x-ms-cosmos-intended-collection-rid")
        if wanted and wanted != collection.rid_text:
            raise Refusal(400, "The container was recreated since.", substatus=WRONG_COLLECTION)
        if len(parts) == 4:
            return self._collection(request, database, collection)
        if parts[4] == "pkranges":
            _require(request, "GET")
            return _ranges(request, collection)
        if parts[4] == "conflicts" and len(parts) == 5 and request.method in ("GET", "POST"):
            allowed = metrics.is_wanted(request.headers, ranges.ASK_ALL)
            if is_query(request) and not allowed and ranges.KEY not in request.headers:
                raise ranges.not_enabled()
            return listed(collection.rid_text, "Conflicts", [])
        if parts[4] == "conflicts" and len(parts) == 6:
            raise Refusal(404, "There are no conflicts: all writes go to one place.")
        documents = DocumentRoutes(collection, request)
        if parts[4:] == ["operations", "partitionkeydelete"] and request.method == "POST":
            return documents.delete_key()
        if parts[4] != "docs":
            raise _absent(parts[4])
        if len(parts) == 5:
            return documents.all(_body(request))
        if len(parts) == 6:
            return documents.one(parts[5], _body(request))
        raise _absent(parts[6])

    def _collection(self, request: Request, database: Database, collection: Collection) -> Reply:
        _require(request, "GET", "PUT", "DELETE")
        if request.method == "DELETE":
            self._account.delete_collection(database, collection)
            return reply(204)
        if request.method == "PUT":
            self._account.change_collection(database, collection, _body(request))
        return _shown(200, collection, request.headers)


def is_query(request: Request) -> bool:
    headers = request.headers
    return (
        headers.get("x-ms-documentdb-isquery", "").lower() == "true"
        or headers.get("content-type", "").lower().startswith("application/query+json")
        or headers.get("x-ms-cosmos-is-query-plan-request", "").lower() == "true"
    )


def filtered(values: list[dict[str, Any]], request: Request) -> list[Any]:
    """Those that a query wants, if the request is one."""
    if not is_query(request):
        return values
    body = _body(request)
    if not isinstance(body, dict):
        raise Refusal(400, "A query is an object with the field query.")
    running = Running(parse(body.get("query"), body.get("parameters")), None, len(values) + 1)
    places = (((place, 0, ""), value) for place, value in enumerate(values))
    return [result.value for result in running.page(places)]


def _parts(target: str) -> list[str]:
    path = urlsplit(target).path if target.startswith("/") else target
    parts = [unquote(part, errors="strict") for part in path.split("/") if part]
    if len(parts) > SEGMENTS_MAX:
        raise Refusal(404, "There is nothing so deep down.")
    return parts


def _body(request: Request) -> Any:
    if not request.body:
        return None
    try:
        return strict_json.loads(request.body)
    except ValueError as error:
        raise Refusal(400, f"The body is not JSON: {error}") from error


def _require(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise Refusal(405, f"{request.method} is not possible here.")


def _absent(what: str) -> Refusal:
    if what in ABSENT:
        return Refusal(501, f"This endpoint has no {what}.")
    return Refusal(404, f"There is no {what!r:.80} here.")


def _shown(status: int, collection: Collection, wanted: Mapping[str, str]) -> Reply:
    shown = collection.properties()
    if metrics.is_wanted(wanted, "x-ms-documentdb-populatepartitionstatistics"):
        shown["statistics"] = metrics.statistics(collection)
    headers = {"etag": shown["_etag"]}
    if metrics.is_wanted(wanted, "x-ms-documentdb-populatequotainfo"):
        headers |= metrics.usage(collection)
    return reply(status, shown, headers)


def _ranges(request: Request, collection: Collection) -> Reply:
    etag, found = ranges.shown(collection)
    # Clients ask again and again with the last etag, until they are told that nothing is new.
    if request.headers.get("if-none-match") == etag:
        return reply(304, None, {"etag": etag})
    return listed(collection.rid_text, "PartitionKeyRanges", found, etag=etag)


def _located(answer: Reply, database: Database, collection: Collection | None = None) -> Reply:
    """With the owner of what was asked for: clients put links together from it."""
    if SESSION not in answer.headers:
        return answer
    path, rid = f"dbs/{database.id}", rids.text(database.rid)
    if collection is not None:
        path, rid = f"{path}/colls/{collection.id}", collection.rid_text
    where = {"x-ms-content-path": rid}
    if path.isascii():
        where["x-ms-alt-content-path"] = path
    return Reply(answer.status, {**where, **answer.headers}, answer.body)


def _account_properties(name: str, address: str) -> Mapping[str, Any]:
    place = [{"name": "local", "databaseAccountEndpoint": address}]
    replicas = {"minReplicaSetSize": 1, "maxReplicasetSize": 1}
    return {
        "_self": "",
        "id": name,
        "_rid": name,
        "media": "//media/",
        "addresses": "//addresses/",
        "_dbs": "//dbs/",
        "writableLocations": place,
        "readableLocations": place,
        "enableMultipleWriteLocations": False,
        "enablePerPartitionFailoverBehavior": False,
        "userReplicationPolicy": {"asyncReplication": False, **replicas},
        "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
        "systemReplicationPolicy": replicas,
        "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
        "queryEngineConfiguration": '{"maxSqlQueryInputLength":262144,"maxJoinsPerSqlQuery":0,'
        '"sqlAllowAggregateFunctions":true,"sqlAllowSubQuery":false,"sqlAllowLike":false,'
        '"sqlAllowGroupByClause":false}',
    }
