"""How this program was called, so that what it tells to type can be typed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from leasehold.cli.commands import COMMANDS

_COMMAND = re.compile(rf"(?<![\w./-])leasehold (?=(?:{'|'.join(COMMANDS)})\b)")


def program() -> str:
    """``leasehold`` if a shell finds it by that name, else by its path, or by Python's module."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{Path(sys.executable).name} -m leasehold"
    if called.name != "leasehold":
        return "leasehold"
    found = shutil.which("leasehold")
    if found is not None and Path(found).resolve() == called.resolve():
        return "leasehold"
    here = Path.cwd()
    return str(called.relative_to(here) if called.is_relative_to(here) else called)


def typeable(text: str) -> str:
    """A message with its commands as they can be typed here."""
    return _COMMAND.sub(lambda _: f"{program()} ", text)
