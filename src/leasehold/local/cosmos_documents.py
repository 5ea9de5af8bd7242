"""Documents of a Cosmos DB container that are changed only where nobody else has.

Leases and dead letters may share one: both are kept by ``/group``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosBatchOperationError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)

from leasehold.errors import BadInput, StoreUnavailable
from leasehold.local.cosmos import NOT_HERE_YET, CosmosConnection

KEY_PATH = "/group"
OPERATIONS_MAX = 100
CHANGED = (404, 409, 412)
"""What an operation is told if a document came, went or was changed meanwhile."""
FOR_GOOD = {"ttl": -1}
"""Among the fields of what a time to live of the container must not remove."""
Document = dict[str, Any]


class CosmosDocuments:
    def __init__(self, connection: CosmosConnection) -> None:
        self._connection = connection
        self._lock = Lock()
        self._is_ready = False

    def query(
        self, verb: str, text: str, key: str | None = None, **values: Any
    ) -> tuple[list[Any], float]:
        """What it finds under a partition key, or under all of them, and the time by Cosmos DB's
        clock."""
        dates: list[str] = []
        count = self._connection.counting(verb)

        def answered(response: Any) -> None:
            count(response)
            dates.append(response.http_response.headers.get("date", ""))

        where: dict[str, Any] = (
            {"enable_cross_partition_query": True} if key is None else {"partition_key": key}
        )
        with self._explained():
            found = list(
                self._container.query_items(
                    text,
                    parameters=[{"name": f"@{name}", "value": values[name]} for name in values],
                    raw_response_hook=answered,
                    **where,
                )
            )
        return found, parsedate_to_datetime(dates[-1]).timestamp()

    def read(self, verb: str, key: str, id: str) -> Document | None:
        with self._explained():
            try:
                return dict(
                    self._container.read_item(
                        id, key, raw_response_hook=self._connection.counting(verb)
                    )
                )
            except CosmosResourceNotFoundError as error:
                if error.sub_status == NOT_HERE_YET:
                    raise
                return None

    def create(self, verb: str, document: Document) -> bool:
        """False: it was there."""
        with self._explained():
            try:
                self._container.create_item(document, **self._counted(verb))
            except CosmosResourceExistsError:
                return False
            return True

    def put(self, verb: str, document: Document) -> None:
        with self._explained():
            self._container.upsert_item(document, **self._counted(verb))

    def replace(self, verb: str, document: Document, etag: str) -> Document | None:
        """As stored; None: somebody else was faster."""
        with self._explained():
            try:
                return dict(
                    self._container.replace_item(
                        document["id"], document, **_unchanged(etag), **self._counted(verb)
                    )
                )
            except (CosmosAccessConditionFailedError, CosmosResourceNotFoundError):
                return None

    def remove(self, verb: str, key: str, id: str, etag: str) -> bool:
        with self._explained():
            try:
                self._container.delete_item(id, key, **_unchanged(etag), **self._counted(verb))
            except (CosmosAccessConditionFailedError, CosmosResourceNotFoundError):
                return False
            return True

    def add(self, verb: str, key: str, id: str, field: str, number: int) -> Document | None:
        """The document with a field increased by a number; None: there is no such document."""
        step = {"op": "incr", "path": f"/{field}", "value": number}
        with self._explained():
            try:
                return dict(
                    self._container.patch_item(
                        id, key, patch_operations=[step], **self._counted(verb)
                    )
                )
            except CosmosResourceNotFoundError:
                return None

    def together(self, verb: str, key: str, operations: Sequence[tuple[Any, ...]]) -> bool:
        """All of them or none. False: something had changed."""
        if len(operations) > OPERATIONS_MAX:
            raise BadInput(f"Cosmos DB cannot do {len(operations)} things at once")
        with self._explained():
            try:
                self._container.execute_item_batch(
                    operations, key, raw_response_hook=self._connection.counting(verb)
                )
            except CosmosBatchOperationError as error:
                status = error.operation_responses[error.error_index]["statusCode"]
                if status not in CHANGED:
                    where = self._connection.settings.address
                    raise StoreUnavailable(f"{where} answered {status} to a batch") from error
                return False
            return True

    def _counted(self, verb: str) -> dict[str, Callable[[Any], None]]:
        return {"raw_response_hook": self._connection.counting(verb)}

    @property
    def _container(self) -> Any:
        """Made when it is first used, if it is missing."""
        with self._lock:
            if not self._is_ready:
                self._prepare()
                self._is_ready = True
        return self._connection.container

    def _prepare(self) -> None:
        settings, container = self._connection.settings, self._connection.container
        try:
            about = container.read()
        except CosmosResourceNotFoundError:
            try:
                self._connection.database.create_container(
                    settings.container, PartitionKey(KEY_PATH)
                )
                return
            except CosmosResourceExistsError:  # several begin at once, and another was quicker
                about = container.read()
        paths = about["partitionKey"]["paths"]
        if paths != [KEY_PATH]:
            raise BadInput(
                f"{settings.address} has the partition key {', '.join(paths)}; a container for "
                f"leases or dead letters has {KEY_PATH}: name another one, and it is made"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        where = self._connection.settings.address
        try:
            yield
        except CosmosHttpResponseError as error:
            told = str(error.message or "").split("\n")[0][:300]
            if error.status_code in (401, 403):
                raise BadInput(f"{where} refuses the key or the identity: {told}") from error
            if error.status_code == 404 and error.sub_status != NOT_HERE_YET:
                raise BadInput(f"{where}: there is no such database: {told}") from error
            raise StoreUnavailable(f"{where} answered {error.status_code}: {told}") from error
        except AzureError as error:
            raise StoreUnavailable(f"{where} does not answer: {error}") from error


def _unchanged(etag: str) -> dict[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}
