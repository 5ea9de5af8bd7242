"""What a process has to say for the page of operators, in a file of its own: the web process reads
it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leasehold import strict_json

log = logging.getLogger("leasehold")
SHOWN_S = 120.0
"""An older one says nothing about now."""


def write_status(path: Path, at_s: float, said: Mapping[str, Any]) -> None:
    """The page can do without it, so a full disk is no reason to fail."""
    unfinished = path.with_suffix(".new")
    try:
        path.parent.mkdir(exist_ok=True)
        unfinished.write_text(json.dumps({"at_ms": int(at_s * 1000), **said}))
        unfinished.replace(path)
    except OSError as error:
        log.debug("%s: %s", path, error)


def read_statuses(
    folder: Path, parse: Callable[[Any], dict[str, Any]], at_s: float
) -> Mapping[str, Any]:
    """By the file's name, as far as they are recent and ``parse`` understands them."""
    found = {}
    for path in filter(Path.is_file, folder.glob("*.json")):  # to read a pipe would hang
        try:
            said = strict_json.loads(path.read_bytes())
            status = {"at_ms": int(said["at_ms"]), **parse(said)}
            recent = abs(at_s - status["at_ms"] / 1000) <= SHOWN_S
            json.dumps(status, allow_nan=False)  # which the page could not read
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
            continue
        if recent:
            found[path.stem] = status
    return found
