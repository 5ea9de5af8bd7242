"""The command line: ``leasehold --help``."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from typer import Typer

from leasehold.cli import container, dead_letters, hub
from leasehold.cli.bench import bench
from leasehold.cli.compact import compact
from leasehold.cli.demo import demo
from leasehold.cli.lag import lag
from leasehold.cli.leases import leases
from leasehold.cli.rewind import rewind
from leasehold.cli.sim import sim
from leasehold.cli.simulate import simulate
from leasehold.cli.tour import tour
from leasehold.cli.web import web
from leasehold.errors import LeaseholdError

app = Typer(
    name="leasehold",
    help="Process partitioned feeds with many instances that share the partitions by lease.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(hub.app, name="hub")
app.add_typer(container.app, name="container")
app.add_typer(dead_letters.app, name="dead-letters")
for command in (demo, tour, simulate, leases, lag, rewind, compact, sim, web, bench):
    app.command()(command)


def main() -> None:
    """Run a command. A user's mistake gets one line that says what to do, never a stack trace."""
    try:
        app()
    except LeaseholdError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        sys.exit(130)
