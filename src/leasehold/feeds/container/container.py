"""The embedded container: JSON documents in one SQLite file, with a change feed.

Writers and readers may be threads and processes, any number of each. Every change has a number, its
LSN, and becomes visible in that order. A write that returned survives the death of the process.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from leasehold.core.change import Mode, Page
from leasehold.errors import BadInput, DocumentConflict, FeedUnavailable
from leasehold.feeds.container.change_feed import ALL_SUFFIX, ChangeFeed
from leasehold.feeds.container.documents import (
    HASHING,
    TTL_S_MAX,
    DocumentRules,
    Key,
    StoredKey,
    decode,
    is_ttl,
    require_id,
    require_key,
)
from leasehold.feeds.container.file import ContainerFile, ContainerSettings
from leasehold.feeds.container.properties import (
    ContainerProperties,
    RangeProperties,
    RemovedItems,
)
from leasehold.feeds.container.writing import Stored
from leasehold.local.open_or_create import open_or_create, require_names
from leasehold.local.own_clock import Clocks, read_clocks
from leasehold.local.threads import OwnThreads
from leasehold.settings import CONTAINER_RANGES, ITEMS_MAX

RANGES_MAX = 1000
DOCUMENT_BYTES_MAX = 2 << 20
VERSIONS_S = 24 * 3600.0
UPKEEP_INTERVAL_S = 10.0
UPKEEP_ROWS = 500
"""Removed per transaction, so that upkeep never keeps writers waiting for long."""


class Container:
    """An embedded container of documents: one file, with a change feed, that processes share."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        clocks: Clocks = read_clocks,
    ) -> None:
        self.path = Path(path)
        self.requests: Counter[str] = Counter()
        self._file = ContainerFile(self.path, fsync=fsync, clocks=clocks)
        self._settings = settings = self._file.settings
        self.namespace = settings.namespace
        self.name = settings.name
        self.identity = settings.identity
        self._rules = self._own_rules()
        self._threads = OwnThreads(f"container-{self.name}")
        self._feeds: dict[str, ChangeFeed] = {}
        self._kept_up_at = time.monotonic()
        self._options = (fsync, clocks)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        namespace: str,
        partition_key: str,
        ranges: int = CONTAINER_RANGES,
        document_bytes_max: int = DOCUMENT_BYTES_MAX,
        ttl_s: float | None = None,
        versions_s: float | None = VERSIONS_S,
        split_documents: int | None = None,
        fsync: bool = False,
        clocks: Clocks = read_clocks,
    ) -> Self:
        """Make a new container and open it.

        ``partition_key`` is a path such as ``/home_id``. ``ttl_s`` is how long a document lives
        after its last change, unless its own field ``ttl`` says otherwise; -1: only such a field
        ends it; None: nothing does. ``versions_s`` is how long changes are kept for the feed of all
        versions; 0: not at all; None: forever. A range with more than ``split_documents``
        documents splits.
        """
        require_names(name=name, namespace=namespace)
        if name.endswith(ALL_SUFFIX):
            raise BadInput(f"name {name!r}: {ALL_SUFFIX} at the end means a feed of all versions")
        _require(1 <= ranges <= RANGES_MAX, "ranges", ranges, f"1 to {RANGES_MAX}")
        _require(document_bytes_max >= 1, "document_bytes_max", document_bytes_max, "1 or more")
        _require_ttl(ttl_s)
        _require(versions_s is None or versions_s >= 0, "versions_s", versions_s, "None, 0 or more")
        _require(
            split_documents is None or split_documents >= 1,
            "split_documents",
            split_documents,
            "None, 1 or more",
        )
        DocumentRules(partition_key, document_bytes_max, ttl_s)
        settings = ContainerSettings(
            identity=secrets.token_hex(16),
            namespace=namespace,
            name=name,
            key_path=partition_key,
            document_bytes_max=document_bytes_max,
            ttl_s=ttl_s,
            versions_s=versions_s,
            split_documents=split_documents,
            created_us=clocks().wall_us,
            hashing=HASHING,
        )
        ContainerFile.create(Path(path), settings, ranges)
        return cls(path, fsync=fsync, clocks=clocks)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        clocks: Clocks = read_clocks,
    ) -> Self:
        return cls(path, fsync=fsync, clocks=clocks)

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        namespace: str,
        partition_key: str,
        fsync: bool = False,
        **settings: Any,
    ) -> Self:
        """The container in that file, made if it is new: only then ``settings`` count."""
        return open_or_create(
            path,
            create=cls.create,
            open=cls.open,
            namespace=namespace,
            name=name,
            fsync=fsync,
            partition_key=partition_key,
            **settings,
        )

    def insert(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Store a new document. The answer is it with its system fields ``_etag``, ``_ts`` (seconds
        since 1970) and ``_lsn``."""
        new = self._rules.prepare(document)
        self.requests["insert"] += 1
        with self._file.writing() as writing:
            if writing.find(new.hash, new.key, new.id) is not None:
                raise self._conflict(new.id, new.key, "exists")
            stored = writing.put(new, None)
        self._keep_up()
        return stored

    def upsert(self, document: Mapping[str, Any], *, if_match: str | None = None) -> dict[str, Any]:
        """Store a document, new or in the place of its older self. ``if_match``, here and below:
        only if that has this ``_etag``."""
        new = self._rules.prepare(document)
        self.requests["upsert"] += 1
        with self._file.writing() as writing:
            old = writing.find(new.hash, new.key, new.id)
            if if_match is not None:
                self._require_match(old, new.id, new.key, if_match)
            stored = writing.put(new, old)
        self._keep_up()
        return stored

    def upsert_many(self, documents: Iterable[Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
        """Store them all or none, in order."""
        prepared = [self._rules.prepare(document) for document in documents]
        self.requests["upsert"] += 1
        with self._file.writing() as writing:
            stored = [writing.put(new, writing.find(new.hash, new.key, new.id)) for new in prepared]
        self._keep_up()
        return stored

    def replace(
        self, document: Mapping[str, Any], *, if_match: str | None = None
    ) -> dict[str, Any]:
        """Store a document in the place of its older self, which must be there."""
        new = self._rules.prepare(document)
        self.requests["replace"] += 1
        with self._file.writing() as writing:
            old = writing.find(new.hash, new.key, new.id)
            stored = writing.put(new, self._require_match(old, new.id, new.key, if_match))
        self._keep_up()
        return stored

    def patch(
        self,
        id: str,
        partition_key: Key,
        fields: Mapping[str, Any],
        *,
        remove: Iterable[str] = (),
        if_match: str | None = None,
    ) -> dict[str, Any]:
        """Set some top-level fields of a document and remove others; the rest stays as it is."""
        key = require_key(partition_key)
        self.requests["patch"] += 1
        with self._file.writing() as writing:
            found = writing.find(self._file.hash_of(key), key, require_id(id))
            old = self._require_match(found, id, key, if_match)
            stored = writing.put(self._rules.patched(decode(old.body), fields, remove), old)
        self._keep_up()
        return stored

    def delete(self, id: str, partition_key: Key, *, if_match: str | None = None) -> bool:
        """False: there was no such document."""
        key = require_key(partition_key)
        self.requests["delete"] += 1
        with self._file.writing() as writing:
            old = writing.find(self._file.hash_of(key), key, require_id(id))
            if old is None and if_match is None:
                return False
            writing.remove(self._require_match(old, id, key, if_match))
        self._keep_up()
        return True

    def read(self, id: str, partition_key: Key) -> dict[str, Any] | None:
        """None: there is no such document."""
        self.requests["read_document"] += 1
        return self._file.find(require_id(id), require_key(partition_key))

    def list(
        self, partition_key: Key, *, max_items: int = ITEMS_MAX, after: str = ""
    ) -> Sequence[dict[str, Any]]:
        """The documents of one partition key, by id. ``after``: the last id of the page before."""
        if max_items < 1:
            raise BadInput(f"max_items is {max_items}; at least 1 document must be allowed")
        self.requests["list"] += 1
        return self._file.documents_of(require_key(partition_key), after, max_items)

    def feed(self, mode: Mode = "latest") -> ChangeFeed:
        """The change feed, for a processor, an estimator or a Spark job."""
        if mode not in self._feeds:
            self._feeds[mode] = ChangeFeed(self, self._file, mode, self.requests, self._threads)
        return self._feeds[mode]

    def changes(
        self,
        range: str | int,
        continuation: str | None = None,
        max_items: int = ITEMS_MAX,
        *,
        start: Any = "earliest",
        mode: Mode = "latest",
    ) -> Page:
        """A range's changes from a continuation on, or from ``start`` (requirement C14).

        An empty page means: nothing yet. If it has ``children``, the range was split: go on there.
        """
        return self.feed(mode).page(range, continuation, max_items, start)

    def split(self, range: str | int, *, at: int | None = None) -> tuple[str, str]:
        """Cut a range in two: keys with a hash below ``at``, and the others. Left out: such that
        both have about as many documents. Its readers finish it, then go on in the two."""
        number = self._file.number(range)
        if number not in self._file.ranges():
            raise self._file.unknown(range)
        self.requests["split"] += 1
        with self._file.writing() as writing:
            left, right = writing.split(number, at)
        return str(left), str(right)

    def range_of(self, partition_key: Key) -> str:
        """The range that has a key's documents now."""
        hash = self._file.hash_of(require_key(partition_key))
        (found,) = (r for r in self.ranges() if not r.split and r.low <= hash <= r.high)
        return found.id

    def leaves(self) -> Sequence[str]:
        """The ranges as they are now."""
        return [each.id for each in self.ranges() if not each.split]

    def ranges(self) -> Sequence[RangeProperties]:
        """All that there are and were."""
        return [
            RangeProperties(
                str(each.id),
                None if each.parent is None else str(each.parent),
                each.low,
                each.high,
                each.documents,
                each.next_lsn,
                bool(each.is_split),
            )
            for each in self._file.ranges().values()
        ]

    def properties(self) -> ContainerProperties:
        ranges, settings = self.ranges(), self._settings
        return ContainerProperties(
            namespace=self.namespace,
            name=self.name,
            identity=self.identity,
            key_path=settings.key_path,
            document_bytes_max=settings.document_bytes_max,
            ttl_s=settings.ttl_s,
            versions_s=settings.versions_s,
            split_documents=settings.split_documents,
            hashing=settings.hashing,
            created_at=settings.created_us / 1e6,
            documents=sum(each.documents for each in ranges if not each.split),
            next_lsn=self._file.next_lsn(),
            file_bytes=self._file.file_bytes(),
            ranges=ranges,
        )

    def change_ttl(self, ttl_s: float | None) -> None:
        """How long documents live from now on, also those that are there: counted from their last
        change, or from now if they had no time to live. Whoever has the file open writes with the
        old one until it is opened again."""
        _require_ttl(ttl_s)
        self._file.change_ttl(ttl_s)
        self._settings = self._file.settings
        self._rules = self._own_rules()

    def trim(self, *, max_age_s: float | None = None, before_lsn: int = 0) -> RemovedItems:
        """Remove documents whose time is over, and kept changes that are older than ``max_age_s``
        (left out: than ``versions_s``) or below an LSN. Writers see to it every few seconds."""
        age_s = self._settings.versions_s if max_age_s is None else max_age_s
        if age_s is not None and not age_s >= 0:
            raise BadInput(f"an age to keep of {age_s} s: give 0 or more")
        removed = self._clean(age_s, before_lsn)
        self._file.shrink()
        return removed

    def close(self) -> None:
        """Documents are safe without it; it frees the file and the threads."""
        self._threads.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the file for itself."""
        return _reopen, (type(self), str(self.path), *self._options)

    def __repr__(self) -> str:
        return f"Container({self.namespace}/{self.name} at {self.path})"

    def _own_rules(self) -> DocumentRules:
        settings = self._settings
        return DocumentRules(
            settings.key_path, settings.document_bytes_max, settings.ttl_s, settings.hashing
        )

    def _clean(self, age_s: float | None, before_lsn: int) -> RemovedItems:
        documents = changes = 0
        more = True
        while more:
            with self._file.writing() as writing:
                expired = writing.remove_expired(UPKEEP_ROWS)
                old = writing.remove_changes(UPKEEP_ROWS, age_s=age_s, before_lsn=before_lsn)
            documents, changes = documents + expired, changes + old
            more = UPKEEP_ROWS in (expired, old)
        return RemovedItems(documents, changes)

    def _keep_up(self) -> None:
        """Writers keep the container within its times, every so often."""
        if time.monotonic() - self._kept_up_at >= UPKEEP_INTERVAL_S:
            self._kept_up_at = time.monotonic()
            with suppress(FeedUnavailable):  # the write itself is done; somebody will come again
                self._clean(self._settings.versions_s, 0)

    def _require_match(
        self, old: Stored | None, id: str, key: StoredKey, etag: str | None
    ) -> Stored:
        if old is None:
            raise self._conflict(id, key, "missing")
        if etag is not None and etag != decode(old.body)["_etag"]:
            raise self._conflict(id, key, "changed")
        return old

    def _conflict(self, id: str, key: StoredKey, reason: Any) -> DocumentConflict:
        text = {
            "exists": "exists already; to overwrite it, use upsert",
            "missing": "is not there; to store it anyway, use upsert without a condition",
            "changed": "has another _etag: it was changed since; read it again",
        }[reason]
        where = f"document {id!r} of partition key {key!r}"
        return DocumentConflict(f"{self.path}: {where} {text}", id=id, reason=reason)


def _reopen(kind: type[Container], path: str, fsync: bool, clocks: Clocks) -> Container:
    return kind(path, fsync=fsync, clocks=clocks)


def _require_ttl(ttl_s: float | None) -> None:
    fits = ttl_s is None or is_ttl(ttl_s)
    _require(fits, "ttl_s", ttl_s, f"None, -1 or more than 0, and {TTL_S_MAX} at most")


def _require(fits: bool, what: str, value: Any, wanted: str) -> None:
    if not fits:
        raise BadInput(f"{what} is {value}; it is {wanted}")
