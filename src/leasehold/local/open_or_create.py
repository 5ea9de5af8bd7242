"""The feed in a file, whoever made it, and what it may be called."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from leasehold.errors import BadInput


class _InFile(Protocol):
    namespace: str
    name: str

    def close(self) -> None: ...


F = TypeVar("F", bound=_InFile)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")


def require_names(*, name: str, namespace: str) -> None:
    for what, text in (("name", name), ("namespace", namespace)):
        if not _NAME.fullmatch(text):
            raise BadInput(
                f"{what} {text!r}: letters, digits, dots, dashes and underscores are allowed"
            )


def open_or_create(
    path: str | os.PathLike[str],
    *,
    create: Callable[..., F],
    open: Callable[..., F],
    namespace: str,
    name: str,
    fsync: bool,
    **settings: Any,
) -> F:
    """Any number of processes may do so at once: whoever is too late to create opens."""
    if not Path(path).exists():
        try:
            return create(path, namespace=namespace, name=name, fsync=fsync, **settings)
        except BadInput:
            if not Path(path).exists():
                raise
    found = open(path, fsync=fsync)
    if (found.namespace, found.name) != (namespace, name):
        found.close()
        kind, what = type(found).__name__.lower(), f"{found.namespace}/{found.name}"
        raise BadInput(f"{path} is the {kind} {what}, not {namespace}/{name}: give another path")
    return found
