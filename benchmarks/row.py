"""What a measurement gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured fact. ``ratio`` is to the plain way, measured in the same run.

    ``former`` is what it was before it was mended, on 2 cores like those of the docs.
    """

    what: str
    value: float
    unit: str
    ratio: float | None = None
    target: float | None = None
    former: float | None = None
