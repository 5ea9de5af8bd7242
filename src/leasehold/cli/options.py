"""Arguments and options that several commands have, and how they show things."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from leasehold.errors import BadInput
from leasehold.feeds import open_feed
from leasehold.feeds.container_feed import ChangeFeed
from leasehold.feeds.container_reader import Mode
from leasehold.feeds.hub import Hub

console = Console()
notes = Console(stderr=True)
"""For what is said beside the result, so that the result can be piped."""

HubPath = Annotated[Path, Argument(metavar="HUB", help="The hub's file, such as data/sensors.db")]
FeedPath = Annotated[
    Path,
    Argument(metavar="FEED", help="The file of a hub or of a container, such as data/alerts.db"),
]
FeedMode = Annotated[
    Mode | None,
    Option(
        "--mode",
        metavar="MODE",
        help="Of a container: latest (newest states; the default) or all (all versions).",
    ),
]
StoreUrl = Annotated[
    str,
    Option("--store", metavar="URL", help="The lease store, such as sqlite:///data/leases.db"),
]
GroupName = Annotated[
    str,
    Option("--group", metavar="NAME", help="The group; of a container: the processor's name."),
]
AsJson = Annotated[bool, Option("--json", help="JSON instead of text.")]
START = "earliest, latest, sequence:N, offset:N or time:2026-01-31T12:00:00Z"


def open_hub(path: Path) -> Hub:
    if not path.exists():
        raise BadInput(f"there is no hub at {path}; make one with: leasehold hub create {path}")
    return Hub.open(path)


@contextmanager
def opened_feed(path: Path, mode: Mode | None) -> Iterator[Hub | ChangeFeed]:
    if not path.exists():
        raise BadInput(
            f"there is no hub and no container at {path}; make one with: "
            f"leasehold hub create {path}, or leasehold container create {path}"
        )
    feed = open_feed(path, mode)
    try:
        yield feed
    finally:
        feed.close()


def unit_of(feed: Hub | ChangeFeed) -> str:
    """What its users call one thing in it."""
    return "change" if isinstance(feed, ChangeFeed) else "event"


def duration(seconds: float | None, unknown: str = "?") -> str:
    """As people say it: 340 ms, 12 s, 3.5 min, 2.0 h, 4.1 d."""
    if seconds is None:
        return unknown
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.1f} s"


def size(count: float) -> str:
    for unit, of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= of:
            return f"{count / of:.1f} {unit}"
    return f"{count:.0f} bytes"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Without characters that could steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
