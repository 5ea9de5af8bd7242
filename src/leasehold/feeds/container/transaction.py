"""A container's documents by keys of any kind, several of them at once: for its endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from leasehold.feeds.container.container import Container
from leasehold.feeds.container.documents import (
    DocumentRules,
    decode,
    hash_of,
    require_id,
    stored_key,
)
from leasehold.feeds.container.file import Place
from leasehold.feeds.container.writing import Stored, Writing
from leasehold.feeds.effective_keys import KeyValue


class Transaction:
    def __init__(self, writing: Writing, rules: DocumentRules) -> None:
        self._writing = writing
        self._rules = rules

    def find(self, id: str, key: KeyValue) -> Stored | None:
        return self._writing.find(hash_of(key, self._rules.hashing), stored_key(key), id)

    def put(self, document: Mapping[str, Any], old: Stored | None) -> dict[str, Any]:
        """``old`` is what ``find`` gave for the same id and key."""
        return self._writing.put(self._rules.prepare(document, any_key=True), old)

    def remove(self, old: Stored) -> None:
        self._writing.remove(old)


def document_of(stored: Stored) -> dict[str, Any]:
    return decode(stored.body)


class AnyDocuments:
    """What a container does not offer to everybody: keys of any type, none, or several values."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._file = container._file

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Several reads and writes, all of them or none."""
        self._container.requests["transaction"] += 1
        with self._file.writing() as writing:
            yield Transaction(writing, self._container._rules)
        self._container._keep_up()

    def scan(
        self, low: int, high: int, after: Place | None = None
    ) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The documents whose keys have hashes between two, each with its place."""
        self._container.requests["scan"] += 1
        for place, body in self._file.scan(low, high, after):
            yield place, decode(body)

    def count(self, key: KeyValue) -> int:
        """How many documents a key has, without looking into them."""
        self._container.requests["count"] += 1
        return self._file.count(key)

    def find(self, id: str, key: KeyValue) -> dict[str, Any] | None:
        self._container.requests["read_document"] += 1
        return self._file.find(require_id(id), key)
