"""The commands by name. Each is imported when it is run, so ``--help`` waits for none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Listed(NamedTuple):
    where: str
    """Module and name: of a function, or of a ``Typer`` with commands below it."""
    about: str
    """Its line in the list; the same as in its own help."""


COMMANDS = {
    "tour": Listed(
        "leasehold.cli.tour:tour",
        "Show leases in action: scaling, faults, and three real processes that share a hub.",
    ),
    "leases": Listed(
        "leasehold.cli.leases:leases",
        "List who owns each partition, when it was last renewed, and its checkpoint.",
    ),
    "lag": Listed(
        "leasehold.cli.lag:lag",
        "Show how far a group is behind, who owns what, and which partitions are stuck.",
    ),
    "rewind": Listed(
        "leasehold.cli.rewind:rewind",
        "Send a group to another position; its events are delivered (again) from there.",
    ),
    "compact": Listed(
        "leasehold.cli.compact:compact",
        "Merge a table's small files and delete unneeded ones. Writers can keep running.",
    ),
    "verify": Listed(
        "leasehold.cli.verify:verify",
        "Simulate whole groups under faults, on virtual time, and check the guarantees.",
    ),
    "hub": Listed(
        "leasehold.cli.hub:app", "Create an embedded hub, send to it, read it, inspect it."
    ),
    "container": Listed(
        "leasehold.cli.container:app",
        "Create an embedded container, write documents, read its change feed, split ranges.",
    ),
    "dead-letters": Listed(
        "leasehold.cli.dead_letters:app",
        "List, show, redrive and purge what a group could not handle.",
    ),
}


def load(name: str) -> Any:
    """A command as Typer runs it."""
    module, _, attribute = COMMANDS[name].where.partition(":")
    found = getattr(import_module(module), attribute)
    group = typer.Typer(add_completion=False, rich_markup_mode="rich")
    group.callback()(lambda: None)  # or a single command would not be a group's
    if isinstance(found, typer.Typer):
        group.add_typer(found, name=name)
    else:
        group.command(name)(found)
    made = get_command(group)
    assert isinstance(made, TyperGroup)
    return made.commands[name]


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For lists and suggestions: a name and a line."""
        listed = COMMANDS.get(cmd_name)
        return listed and TyperCommand(cmd_name, help=listed.about, rich_markup_mode="rich")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What is run is the command itself."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load(name), rest
