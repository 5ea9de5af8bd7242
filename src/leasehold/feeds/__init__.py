"""The embedded feeds. A file says itself what it is: ``open_feed("data/alerts.db")``."""

from __future__ import annotations

import os
from pathlib import Path

from leasehold.errors import BadInput
from leasehold.feeds.container import Container
from leasehold.feeds.container_feed import ChangeFeed
from leasehold.feeds.container_file import CONTAINER
from leasehold.feeds.container_reader import Mode
from leasehold.feeds.hub import Hub
from leasehold.feeds.hub_file import HUB

__all__ = ["open_feed"]

MAGIC = b"SQLite format 3\0"
APPLICATION_ID = slice(68, 72)
"""Where a SQLite file has it: no need to open a database to see whose it is."""


def open_feed(path: str | os.PathLike[str], mode: Mode | None = None) -> Hub | ChangeFeed:
    """The hub, or the change feed of the container, that a file holds. ``mode`` is for containers:
    ``"latest"`` (if not given) or ``"all"``. Closing the feed closes its file."""
    kind = _kind(Path(path))
    if kind == CONTAINER.application_id:
        container = Container.open(path)
        try:
            return container.feed("latest" if mode is None else mode)
        except BadInput:
            container.close()
            raise
    if kind != HUB.application_id:
        raise BadInput(f"{path} is neither a hub nor a container")
    if mode is not None:
        raise BadInput(f"{path} is a hub, which has no modes; mode={mode!r} is for containers")
    return Hub.open(path)


def _kind(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise BadInput(
            f"there is no hub and no container at {path}; make one with Hub.create or "
            "Container.create"
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be used as a feed: {error}") from error
    return int.from_bytes(header[APPLICATION_ID]) if header.startswith(MAGIC) else None
