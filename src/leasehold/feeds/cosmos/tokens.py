"""Positions in a range's feed, as text that a lease keeps.

A position is an LSN. The changes of one transaction share theirs: between two of them, a position
also has how many of these are done and how many are left. It counts as one at that LSN, not behind
it. A position has the bounds of the range with it: once the range was split or merged, nobody else
remembers them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from leasehold.core.model import Checkpoint

_TOKEN = re.compile(
    r"([0-9a-f]{16})-(\d{1,18})(?:\.(\d{1,9})(?:\.(\d{1,9}))?)?-([0-9A-F]*)-([0-9A-F]+)", re.ASCII
)


class Bounds(NamedTuple):
    """Effective partition keys from ``low`` up to, not including, ``end``."""

    low: str
    end: str

    def overlaps(self, other: Bounds) -> bool:
        return self.low < other.end and other.low < self.end

    def within(self, other: Bounds) -> bool:
        return other.low <= self.low and self.end <= other.end


class Position(NamedTuple):
    lsn: int
    """All changes up to this one are done; or some of it, if ``done`` is not 0."""
    done: int = 0
    bounds: Bounds | None = None
    """None: a position by its number alone."""
    identity: str | None = None
    left: int | None = None
    """Of the changes of this LSN, when it was read; None: an older version did not write it."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Position | None:
        """None: the token is no token of a Cosmos DB feed."""
        lsn = max(checkpoint.next_sequence, 1) - 1
        if checkpoint.token in ("", "-1"):
            return cls(lsn)
        parts = _TOKEN.fullmatch(checkpoint.token)
        if parts is None:
            return None
        if parts[3] and int(parts[2]) == lsn + 1:
            lsn += 1
        if int(parts[2]) != lsn:
            return None
        left = None if parts[4] is None else int(parts[4])
        return cls(lsn, int(parts[3] or 0), Bounds(parts[5], parts[6]), parts[1], left)


def token(identity: str, bounds: Bounds, lsn: int, done: int = 0, left: int = 0) -> str:
    part = f".{done}.{left}" if done else ""
    return f"{identity}-{lsn}{part}-{bounds.low}-{bounds.end}"


def checkpoint(identity: str, bounds: Bounds, lsn: int, done: int = 0, left: int = 0) -> Checkpoint:
    lsn = max(lsn, 0)
    at = lsn if done else lsn + 1
    return Checkpoint(next_sequence=at, token=token(identity, bounds, lsn, done, left))


def parse_offset(text: str) -> tuple[int, int, int] | None:
    """LSN, which change of it, and how many follow, from the offset that a change has."""
    parts = _TOKEN.fullmatch(text)
    return None if parts is None else (int(parts[2]), int(parts[3] or 0), int(parts[4] or 0))
