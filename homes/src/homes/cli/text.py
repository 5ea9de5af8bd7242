"""How the commands show things, and the option that makes them show JSON instead."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console
from typer import Option

console = Console()
notes = Console(stderr=True)
"""For what is said beside the result, so that the result can be piped."""

AsJson = Annotated[bool, Option("--json", help="JSON instead of text.")]


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
