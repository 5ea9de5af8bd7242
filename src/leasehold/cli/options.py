"""Arguments and options that several commands have, and how they show things."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from rich.console import Console
from typer import Argument, Exit, Option

from leasehold.core.change import Mode
from leasehold.feeds import open_feed, open_sender
from leasehold.log_lines import one_line
from leasehold.ports import Feed, LeaseStore, Sender
from leasehold.stores import open_store

S = TypeVar("S")
console = Console()
notes = Console(stderr=True)
"""For what is said beside the result, so that the result can be piped."""

HubPath = Annotated[Path, Argument(metavar="HUB", help="The hub's file, such as data/sensors.db")]
HubUrl = Annotated[
    str,
    Argument(
        metavar="HUB",
        help="The hub: its file, such as data/sensors.db, or a URL, such as eventhubs://…",
    ),
]
FeedUrl = Annotated[
    str,
    Argument(
        metavar="FEED",
        help="The feed: a hub's or a container's file, such as data/alerts.db, or a URL.",
    ),
]
FeedMode = Annotated[
    Mode | None,
    Option(
        "--mode",
        metavar="MODE",
        help="Of a change feed: latest (newest states; the default) or all (all versions).",
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
Fsync = Annotated[bool, Option("--fsync", help="Wait for the disk: safe from a power cut, slower.")]
START = "earliest, latest, sequence:N, offset:N or time:2026-01-31T12:00:00Z"


@contextmanager
def opened_feed(url: str, mode: Mode | None) -> Iterator[Feed]:
    feed = open_feed(url, mode)
    try:
        yield feed
    finally:
        feed.close()


def looked_at(store: S, what: str) -> S:
    """To look never makes a file: a path that is wrong would look like a store without anything."""
    path = getattr(store, "path", None)
    if isinstance(path, Path) and not path.exists():
        text = f"there is no file {path}; {what}"
        notes.print(printable(text), highlight=False, markup=False, soft_wrap=True)
        raise Exit(1)
    return store


def existing_store(url: str) -> LeaseStore:
    return looked_at(open_store(url), "an instance makes it when it starts")


@contextmanager
def opened_sender(url: str, **settings: Any) -> Iterator[Sender]:
    sender = open_sender(url, **settings)
    try:
        yield sender
    finally:
        sender.close()


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
    return one_line(text)
