"""What clients may want to know besides an answer: how a query ran, and how full a container is."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any

from leasehold.endpoints.cosmos.account import Collection
from leasehold.endpoints.cosmos.ranges import Scope, leaves
from leasehold.endpoints.cosmos.sql.run import Place


def is_wanted(headers: Mapping[str, str], name: str) -> bool:
    return headers.get(name, "").lower() == "true"


class QueryMeter:
    """Counts what a query looks at, if the client asks for its metrics."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._counts = is_wanted(headers, "x-ms-documentdb-populatequerymetrics")
        self._indexes = is_wanted(headers, "x-ms-cosmos-populateindexmetrics")
        self._began = perf_counter()
        self._documents = self._bytes = 0

    def seen(
        self, documents: Iterable[tuple[Place, dict[str, Any]]]
    ) -> Iterator[tuple[Place, dict[str, Any]]]:
        for place, document in documents:
            if self._counts:
                self._documents += 1
                self._bytes += len(json.dumps(document))
            yield place, document

    def _useful(self, values: list[Any]) -> float:
        """How many of the documents that were looked at had to be."""
        return min(len(values) / self._documents, 1.0) if self._documents else 1.0

    def headers(self, collection: Collection, scope: Scope, values: list[Any]) -> dict[str, str]:
        found = {}
        if self._counts:
            told = {
                "totalExecutionTimeInMs": f"{(perf_counter() - self._began) * 1000:.2f}",
                "retrievedDocumentCount": self._documents,
                "retrievedDocumentSize": self._bytes,
                "outputDocumentCount": len(values),
                "outputDocumentSize": len(json.dumps(values)),
                "indexUtilizationRatio": f"{self._useful(values):.2f}",
            }
            text = ";".join(f"{name}={value}" for name, value in told.items())
            found["x-ms-documentdb-query-metrics"] = text
        if self._indexes:
            text = json.dumps(_indexes(collection, scope))
            found["x-ms-cosmos-index-utilization"] = b64encode(text.encode()).decode()
        return found


def _indexes(collection: Collection, scope: Scope) -> dict[str, list[dict[str, Any]]]:
    """Documents are found by their partition key. Everything else is looked at one by one."""
    used = [
        {
            "FilterExpression": "",
            "IndexSpec": f"{path}/?",
            "FilterPreciseSet": True,
            "IndexPreciseSet": True,
            "IndexImpactScore": "High",
        }
        for path in collection.key_paths
    ]
    return {
        "UtilizedSingleIndexes": used if scope.has_key else [],
        "PotentialSingleIndexes": [],
        "UtilizedCompositeIndexes": [],
        "PotentialCompositeIndexes": [],
    }


def usage(collection: Collection) -> dict[str, str]:
    """Headers with what a container takes up, and that no index is being built."""
    about = collection.container.properties()
    size = about.file_bytes // 1024
    told = {"documentsCount": about.documents, "documentsSize": size, "collectionSize": size}
    return {
        "x-ms-resource-usage": ";".join(f"{name}={value}" for name, value in told.items()),
        "x-ms-documentdb-collection-index-transformation-progress": "100",
    }


def statistics(collection: Collection) -> list[dict[str, Any]]:
    about = collection.container.properties()
    size = about.file_bytes // 1024
    return [
        {
            "id": each.id,
            "sizeInKB": size * each.documents // max(about.documents, 1),
            "documentCount": each.documents,
            "partitionKeys": [],
        }
        for each in leaves(collection)
    ]
