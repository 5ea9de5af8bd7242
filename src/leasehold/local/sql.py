"""What SQL adapters share: statements in ``.sql`` files, and checks of versions and timeouts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from leasehold.errors import BadInput, NewerVersion

Rows = Sequence[Sequence[Any]]


def load_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """The queries of a package's ``.sql`` file, by the name in their ``-- name:`` line."""
    return split_queries(files(package).joinpath(file).read_text(encoding="utf-8"))


def split_queries(text: str) -> dict[str, str]:
    _, *parts = re.split(r"^-- name: *(\S+) *\n", text, flags=re.MULTILINE)
    names, bodies = parts[::2], parts[1::2]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"queries named twice: {', '.join(twice)}")
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}


def check_version(found: int, place: str, known: int) -> None:
    if found > known:
        raise NewerVersion(
            f"{place} was written by a newer Leasehold: its schema is version {found}, this one "
            f"knows version {known}. Upgrade with: pip install --upgrade leasehold"
        )


def check_timeout(timeout_s: float | str) -> float:
    """A timeout as given to a constructor or written in a URL."""
    try:
        seconds = float(timeout_s)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadInput(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
    return seconds
