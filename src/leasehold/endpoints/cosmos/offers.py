"""Throughput: clients look it up and raise it, and ranges split when it grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from leasehold.endpoints.cosmos.account import Account, Collection, Database
from leasehold.endpoints.cosmos.http import Reply, Request
from leasehold.endpoints.cosmos.ranges import leaves
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.replies import listed, reply
from leasehold.endpoints.cosmos.sql import Running, parse
from leasehold.endpoints.cosmos.throughput import Throughput

SPLIT_THROUGHPUT = 10_000
"""What one range serves at most, as in Azure."""


class Offer(NamedTuple):
    """The throughput of a container, or of a database whose containers share it."""

    database: Database
    collection: Collection | None
    throughput: Throughput

    @property
    def owner(self) -> Database | Collection:
        return self.collection or self.database

    @property
    def id(self) -> str:
        return f"offer-{self.owner.rid_text}"

    def shown(self) -> dict[str, Any]:
        owner = self.owner
        return {
            "id": self.id,
            "_rid": self.id,
            "_self": f"offers/{self.id}/",
            "_etag": f'"{owner.about.get("version", 0):08x}"',
            "_ts": 0,
            "resource": owner.self_link,
            "offerResourceId": owner.rid_text,
            "offerType": "Invalid",
            "offerVersion": "V2",
            "content": self.throughput.content(),
        }


def answer(account: Account, request: Request, parts: Sequence[str], body: Any) -> Reply:
    known = {offer.id: offer for offer in _offers(account)}
    if len(parts) == 1:
        values = [offer.shown() for offer in known.values()]
        if request.method == "POST" and isinstance(body, dict):
            query = parse(body.get("query"), body.get("parameters"))
            running = Running(query, None, len(values) + 1)
            places = (((place, 0, ""), value) for place, value in enumerate(values))
            values = [result.value for result in running.page(places)]
        return listed("", "Offers", values)
    if parts[1] not in known:
        raise Refusal(404, "There is no such offer.")
    offer = known[parts[1]]
    if request.method == "PUT":
        offer = _changed(account, offer, body)
    return reply(200, offer.shown())


def _offers(account: Account) -> Iterator[Offer]:
    for database in list(account.databases.values()):
        if (own := Throughput.of_about(database.about)) is not None:
            yield Offer(database, None, own)
        for collection in list(database.collections.values()):
            if (own := collection.throughput) is not None:
                yield Offer(database, collection, own)


def _changed(account: Account, offer: Offer, body: Any) -> Offer:
    wanted = Throughput.of_content(body.get("content") if isinstance(body, dict) else None)
    if offer.collection is None:
        account.keep_database(offer.database, wanted.about())
    else:
        with account.lock:  # one range is split by one request only
            account.keep(offer.database, offer.collection, wanted.about())
            _split(offer.collection, wanted.units_s)
    return offer._replace(throughput=wanted)


def _split(collection: Collection, units_s: int) -> None:
    while (found := leaves(collection)) and len(found) * SPLIT_THROUGHPUT < units_s:
        widest = max(found, key=lambda each: each.high - each.low)
        collection.container.split(widest.id)
