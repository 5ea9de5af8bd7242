"""The command line: ``homes --help``."""

from __future__ import annotations

import sys

from rich.markup import escape
from typer import Typer

from homes.cli import codes
from homes.cli.demo import demo
from homes.cli.simulate import simulate
from homes.cli.text import notes
from homes.cli.web import web
from leasehold import LeaseholdError

app = Typer(
    name="homes",
    help="A home-security company on Leasehold: sensors, alerts, a web page for every home.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (demo, simulate, web):
    app.command()(command)
app.add_typer(codes.app, name="codes")


def main() -> None:
    """Run a command. A user's mistake gets one line that says what to do, never a stack trace."""
    try:
        app()
    except LeaseholdError as error:
        notes.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        notes.print("stopped")
        sys.exit(130)
