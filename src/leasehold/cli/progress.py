"""Progress bars with an estimate, on terminals only: what is piped or logged stays clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from leasehold.cli.options import notes

Advance = Callable[[int, int], None]
"""Told how much is done, and of how much."""


def bar(*columns: ProgressColumn | str) -> Progress:
    return Progress(
        *columns,
        TextColumn("[dim]left[/]"),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )


@contextmanager
def steps(what: str) -> Iterator[Advance]:
    """A bar of counted things."""
    with bar(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
