"""A blob as one response described it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leasehold.local.whole_seconds import certain_age_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob's metadata as of one response: facts that hold for as long as its ETag does."""

    name: str
    etag: str
    metadata: Mapping[str, str]
    modified_s: float
    date_s: float
    """The store's clock when it answered."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The metadata's keys as they are spelled there; some read them by that."""

    @property
    def age_s(self) -> float:
        return certain_age_s(self.date_s, self.modified_s)
