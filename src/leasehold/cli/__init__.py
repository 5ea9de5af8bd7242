"""The command line: ``leasehold --help``."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from typer import Exit, Option, Typer, echo

from leasehold.cli.commands import Commands
from leasehold.cli.program import typeable
from leasehold.errors import LeaseholdError

INTERRUPTED = 130
"""As shells and Typer call it."""

app = Typer(
    name="leasehold",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        echo(f"leasehold {metadata.version('leasehold')}")
        raise Exit


@app.callback()
def leasehold(
    version: Annotated[
        bool,
        Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Process partitioned feeds with many instances that share the partitions by lease."""


def main() -> None:
    """Run a command. A user's mistake gets one line that says what to do, never a stack trace."""
    try:
        app()
    except LeaseholdError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(typeable(str(error)))}", highlight=False, soft_wrap=True
        )
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        Console(stderr=True).print("stopped")
        sys.exit(INTERRUPTED)
