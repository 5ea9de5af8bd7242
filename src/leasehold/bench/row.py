"""What a measurement gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured fact. ``ratio`` is to the plain way, measured in the same run."""

    what: str
    value: float
    unit: str
    ratio: float | None = None
    target: float | None = None
