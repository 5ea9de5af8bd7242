"""What a container tells about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class RangeProperties(NamedTuple):
    """A range of the key space. Its keys have hashes from ``low`` to ``high``."""

    id: str
    parent: str | None
    low: int
    high: int
    documents: int
    """When a range was split: as many as there were then."""
    next_lsn: int
    split: bool


class RemovedItems(NamedTuple):
    """What upkeep removed."""

    documents: int
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProperties:
    namespace: str
    name: str
    identity: str
    key_path: str
    document_bytes_max: int
    ttl_s: float | None
    versions_s: float | None
    split_documents: int | None
    hashing: str
    created_at: float
    documents: int
    next_lsn: int
    file_bytes: int
    ranges: Sequence[RangeProperties]
