"""Readings that are wrong on purpose: what a pipeline must survive. The seed decides which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from homes.domain.reading import home_id
from homes.simulator.days import YEAR_MINUTES, Hashes, chance
from leasehold import BadInput

FAR_MS = 10 * YEAR_MINUTES * 60_000

MALFORMED: tuple[Callable[[bytes], bytes], ...] = (
    lambda body: body[: len(body) // 2],
    lambda body: b"",
    lambda body: b"\xff\xfe" + body,
    lambda body: b"[" + body + b"]",
    lambda body: b"null",
    lambda body: body.replace(b'"value":', b'"value":"high","was":'),
    lambda body: body.replace(b'"value":', b'"value":1e999,"was":'),
    lambda body: body.replace(b'"home_id":', b'"house":'),
    lambda body: body.replace(b'"ts":', b'"ts":null,"was_ts":'),
)
"""Cut off, empty, not UTF-8, no object, of wrong types, out of range, without a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaws:
    """Which share of all readings is wrong, and how."""

    malformed: float = 0.0
    unknown: float = 0.0
    """Well-formed, but of homes that do not exist."""
    wrong_time: float = 0.0
    """Ten years too early or too late."""

    def __post_init__(self) -> None:
        shares = (self.malformed, self.unknown, self.wrong_time)
        if not (all(share >= 0 for share in shares) and sum(shares) <= 1):
            raise BadInput(f"shares of wrong readings are 0 to 1, together too; these are {shares}")

    def __bool__(self) -> bool:
        return self.malformed + self.unknown + self.wrong_time > 0


def spoil(
    keys: pa.StringArray, bodies: pa.BinaryArray, flaws: Flaws, dice: Hashes, homes: int
) -> tuple[pa.StringArray, pa.BinaryArray]:
    """The same columns with some readings made wrong; ``dice`` has a number for each."""
    fate = chance(dice)
    chosen = np.flatnonzero(fate < flaws.malformed + flaws.unknown + flaws.wrong_time)
    if not len(chosen):
        return keys, bodies
    wrong_keys, wrong_bodies = [], []
    for place in chosen:
        key, body, number = keys[place].as_py(), bodies[place].as_py(), int(dice[place] & 0xFFFF)
        if fate[place] < flaws.malformed:
            body = MALFORMED[number % len(MALFORMED)](body)
        elif fate[place] < flaws.malformed + flaws.unknown:
            stranger = home_id(homes + number)
            key, body = stranger, body.replace(key.encode(), stranger.encode())
        else:
            body = _at_another_time(body, -FAR_MS if number % 2 else FAR_MS)
        wrong_keys.append(key)
        wrong_bodies.append(body)
    mask = np.zeros(len(keys), dtype=np.bool_)
    mask[chosen] = True
    return _replaced(keys, mask, wrong_keys), _replaced(bodies, mask, wrong_bodies)


def _at_another_time(body: bytes, by_ms: int) -> bytes:
    before, _, ts = body[:-1].rpartition(b":")
    return b"%s:%d}" % (before, int(ts) + by_ms)


def _replaced(column: Any, mask: Any, values: list[Any]) -> Any:
    return pc.replace_with_mask(column, pa.array(mask), pa.array(values, column.type))
