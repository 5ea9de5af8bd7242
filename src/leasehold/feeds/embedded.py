"""The embedded feeds by their file, which says itself what it holds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from leasehold.core.change import Mode
from leasehold.errors import BadInput
from leasehold.feeds.container import CONTAINER, ChangeFeed, Container
from leasehold.feeds.hub import HUB, Hub

MAGIC = b"SQLite format 3\0"
APPLICATION_ID = slice(68, 72)
"""Where a SQLite file has it: no need to open a database to see whose it is."""


def open_file(url: str, mode: Mode | None = None) -> Hub | ChangeFeed:
    """The hub, or the change feed of the container, that a file holds: a path, or a ``file:`` URL
    that may say ``?mode=all``. Closing the feed closes its file."""
    path, settings = _parts(url)
    mode = mode or settings.get("mode")
    kind = _kind(path)
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


def open_container(url: str) -> Container:
    """The container that a file holds, to write documents to."""
    path, settings = _parts(url)
    if settings:
        raise BadInput(f"{path}: the mode is one of its feed, and not of the container")
    return Container.open(path)


def open_hub(url: str, *, fsync: bool = False) -> Hub:
    """The hub that a file holds, to send to."""
    path, settings = _parts(url)
    with suppress(OSError):  # a name that cannot even be looked up is explained below
        if not path.exists():
            raise BadInput(f"there is no hub at {path}; make one with: leasehold hub create {path}")
    kind = _kind(path)
    if kind == CONTAINER.application_id:
        raise BadInput(f"{path} is a container: write documents to it; events go to a hub")
    if kind != HUB.application_id:
        raise BadInput(f"{path} is no hub")
    if settings:
        raise BadInput(f"{path} is a hub, which has no modes")
    return Hub.open(path, fsync=fsync)


def _parts(url: str) -> tuple[Path, dict[str, Any]]:
    if "://" not in url:
        return Path(url), {}
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise BadInput(
            f"{url}: a file URL has three slashes and an absolute path, file:///data/sensors.db; "
            "give a relative path without file://"
        )
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(settings.keys() - {"mode"}):
        raise BadInput(f"{url}: {', '.join(unknown)} is unknown; only mode can be set")
    return Path(unquote(parts.path)), settings


def _kind(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise BadInput(
            f"there is no hub and no container at {path}; make one with Hub.create or "
            f"Container.create, or with leasehold hub create {path} or leasehold container "
            f"create {path}"
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be used as a feed: {error}") from error
    return int.from_bytes(header[APPLICATION_ID]) if header.startswith(MAGIC) else None
