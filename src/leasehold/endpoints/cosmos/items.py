"""Reading and writing single documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from leasehold.endpoints.cosmos import rids
from leasehold.endpoints.cosmos.account import Collection
from leasehold.endpoints.cosmos.patch import patched
from leasehold.endpoints.cosmos.refusals import WRONG_KEY, Refusal
from leasehold.errors import BadInput
from leasehold.feeds.container.documents import ID_BYTES_MAX, hash_of, stored_key
from leasehold.feeds.container.transaction import Transaction, document_of
from leasehold.feeds.container.writing import Stored
from leasehold.feeds.effective_keys import KeyValue

OWN_FIELDS = ("_rid", "_self", "_attachments")
"""Of what the endpoint adds to documents; the container has system fields of its own."""


class Conditions(NamedTuple):
    """Headers that make a request depend on a document's etag."""

    if_match: str | None = None
    if_none_match: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Conditions:
        return cls(headers.get("if-match"), headers.get("if-none-match"))

    def require(self, etag: str | None) -> None:
        """``etag``: the document's; None: there is no such document."""
        if self.if_match not in (None, "", "*") and self.if_match != etag:
            raise Refusal(412, "The document has another _etag than If-Match says.")
        if self.if_none_match and etag is not None and self.if_none_match in ("*", etag):
            raise Refusal(412, "The document exists as If-None-Match says.")


class ItemOutcome(NamedTuple):
    status: int
    document: dict[str, Any] | None = None


class Items:
    """The operations on documents of one container, inside of a transaction."""

    def __init__(self, collection: Collection, transaction: Transaction) -> None:
        self._collection = collection
        self._transaction = transaction

    def create(self, body: Any, key: tuple[KeyValue] | None) -> ItemOutcome:
        document, old = self._prepare(body, key)
        if old is not None:
            raise Refusal(409, "Resource with specified id or name already exists.")
        return ItemOutcome(201, self._put(document, None))

    def upsert(self, body: Any, key: tuple[KeyValue] | None, conditions: Conditions) -> ItemOutcome:
        document, old = self._prepare(body, key)
        if old is not None:
            conditions.require(_etag(old))
        return ItemOutcome(201 if old is None else 200, self._put(document, old))

    def replace(self, id: str, body: Any, key: KeyValue, conditions: Conditions) -> ItemOutcome:
        old = self._find(id, key)
        conditions.require(_etag(old))
        document, same = self._prepare(body, (key,))
        if same is not None and same.lsn != old.lsn:
            raise Refusal(409, "Another document has the new id already.")
        if same is None:  # it gets another id: one document goes, another comes
            self._transaction.remove(old)
        return ItemOutcome(200, self._put(document, same))

    def patch(self, id: str, body: Any, key: KeyValue, conditions: Conditions) -> ItemOutcome:
        old = self._find(id, key)
        conditions.require(_etag(old))
        fixed = self._collection.rules.paths
        new = patched(shown(self._collection, document_of(old)), body, fixed)
        return ItemOutcome(200, self._put(_own(new), old))

    def delete(self, id: str, key: KeyValue, conditions: Conditions) -> ItemOutcome:
        old = self._find(id, key)
        conditions.require(_etag(old))
        self._transaction.remove(old)
        return ItemOutcome(204)

    def read(self, id: str, key: KeyValue) -> ItemOutcome:
        return ItemOutcome(200, shown(self._collection, document_of(self._find(id, key))))

    def _find(self, id: str, key: KeyValue) -> Stored:
        found = self._transaction.find(id, key)
        if found is None and (other := id_of_rid(self._collection, id, key)) is not None:
            found = self._transaction.find(other, key)
        if found is None:
            raise not_found()
        return found

    def _prepare(
        self, body: Any, key: tuple[KeyValue] | None
    ) -> tuple[dict[str, Any], Stored | None]:
        """The document to store, and its older self."""
        if not isinstance(body, dict):
            raise Refusal(400, "A document is a JSON object.")
        if not isinstance(body.get("id"), str) or not body["id"]:
            raise Refusal(400, "The required property 'id' is missing, or is not text.")
        if len(body["id"].encode("utf-8", "replace")) > ID_BYTES_MAX:
            raise Refusal(
                400, "Ensure to provide a unique non-empty string less than '1024' characters."
            )
        document = _own(body)
        own = self._collection.rules.key_value(document)
        if key is not None and stored_key(own) != stored_key(key[0]):
            raise Refusal(
                400,
                "PartitionKey extracted from document doesn't match the one specified in the "
                f"header; the container's partition key is {self._collection.key_path}.",
                substatus=WRONG_KEY,
            )
        return document, self._transaction.find(body["id"], own)

    def _put(self, document: dict[str, Any], old: Stored | None) -> dict[str, Any]:
        try:
            return shown(self._collection, self._transaction.put(document, old))
        except BadInput as error:
            status = 413 if "document_bytes_max" in str(error) else 400
            raise Refusal(status, str(error)) from error


def shown(
    collection: Collection, stored: Mapping[str, Any], *, lsn: bool = False
) -> dict[str, Any]:
    """A document as clients see it. ``lsn``: a change feed has it besides."""
    document = dict(stored)
    number = document.pop("_lsn")
    etag, ts = document.pop("_etag"), document.pop("_ts")
    key = collection.rules.key_value(document)
    rid = rids.text(rids.of_document(collection.rid, key, document["id"]))
    document |= {
        "_rid": rid,
        "_self": f"{collection.self_link}docs/{rid}/",
        "_etag": f'"{etag}"',
        "_attachments": "attachments/",
        "_ts": ts,
    }
    return document | {"_lsn": number} if lsn else document


def read(collection: Collection, id: str, key: KeyValue) -> dict[str, Any]:
    found = collection.documents.find(id, key)
    if found is None and (other := id_of_rid(collection, id, key)) is not None:
        found = collection.documents.find(other, key)
    if found is None:
        raise not_found()
    return shown(collection, found)


def id_of_rid(collection: Collection, given: str, key: KeyValue) -> str | None:
    """The id of the document with this resource id, by which links address it."""
    rid = rids.parsed(given)
    if rid is None or len(rid) != 16 or not rid.startswith(collection.rid):
        return None
    hash = hash_of(key)
    for place, _ in collection.documents.scan(hash, hash):
        if rids.of_document(collection.rid, key, place.id) == rid:
            return place.id
    return None


def not_found() -> Refusal:
    return Refusal(404, "Entity with the specified id does not exist in the system.", substatus=0)


def _own(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in OWN_FIELDS}


def _etag(stored: Stored) -> str:
    return f'"{document_of(stored)["_etag"]}"'
