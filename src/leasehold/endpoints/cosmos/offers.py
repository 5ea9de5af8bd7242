"""Throughput: clients look it up and raise it, and ranges split when it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leasehold.endpoints.cosmos.account import Account, Collection, Database
from leasehold.endpoints.cosmos.http import Reply, Request
from leasehold.endpoints.cosmos.ranges import leaves
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.replies import listed, reply
from leasehold.endpoints.cosmos.settings import THROUGHPUT_MAX
from leasehold.endpoints.cosmos.sql import Running, parse

SPLIT_THROUGHPUT = 10_000
"""What one range serves at most, as in Azure."""


def answer(account: Account, request: Request, parts: Sequence[str], body: Any) -> Reply:
    known = {_id(each): (database, each) for database, each in account.collections()}
    if len(parts) == 1:
        values = [_shown(each) for _, each in known.values()]
        if request.method == "POST" and isinstance(body, dict):
            running = Running(parse(body.get("query"), body.get("parameters")), None, len(values))
            places = (((place, 0, ""), value) for place, value in enumerate(values))
            values = [result.value for result in running.page(places)]
        return listed("", "Offers", values)
    if parts[1] not in known:
        raise Refusal(404, "There is no such offer.")
    database, collection = known[parts[1]]
    if request.method == "PUT":
        _change(account, database, collection, body)
    return reply(200, _shown(collection))


def _id(collection: Collection) -> str:
    return f"offer-{collection.rid_text}"


def _shown(collection: Collection) -> dict[str, Any]:
    id = _id(collection)
    return {
        "id": id,
        "_rid": id,
        "_self": f"offers/{id}/",
        "_etag": f'"{collection.about.get("version", 0):08x}"',
        "_ts": 0,
        "resource": collection.self_link,
        "offerResourceId": collection.rid_text,
        "offerType": "Invalid",
        "offerVersion": "V2",
        "content": {"offerThroughput": collection.about.get("throughput", 400)},
    }


def _change(account: Account, database: Database, collection: Collection, body: Any) -> None:
    content = body.get("content") if isinstance(body, dict) else None
    wanted = content.get("offerThroughput") if isinstance(content, dict) else None
    if (
        isinstance(wanted, bool)
        or not isinstance(wanted, int)
        or not 100 <= wanted <= THROUGHPUT_MAX
    ):
        raise Refusal(400, f"offerThroughput is a number between 100 and {THROUGHPUT_MAX}.")
    account.keep(database, collection, {"throughput": wanted})
    while (found := leaves(collection)) and len(found) * SPLIT_THROUGHPUT < wanted:
        widest = max(found, key=lambda each: each.high - each.low)
        collection.container.split(widest.id)
