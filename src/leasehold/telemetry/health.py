"""Whether an instance is alive and ready, for those who start and restart processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Of one processor, or of all processors of a process."""

    alive: bool
    """Its upkeep loop is turning; if it is not, only a new process helps."""
    ready: bool
    """It has joined its group and is renewing there."""
    why: str = ""
    """What is missing; empty if nothing is."""


def all_of(healths: Iterable[Health]) -> Health:
    """As alive and ready as the least of them; nobody is missing where there is none."""
    every = list(healths)
    return Health(
        alive=all(each.alive for each in every),
        ready=all(each.ready for each in every),
        why="\n".join(each.why for each in every if each.why),
    )
