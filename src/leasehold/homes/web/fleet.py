"""The seam to whoever can start and stop pipeline instances: the demo, or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class FleetInstance(NamedTuple):
    name: str
    state: str
    """Such as ``running``, ``starting``, ``stopping``, ``ended``."""


class FleetNews(NamedTuple):
    """Something that happened to a process, in words."""

    at: float
    text: str


class Fleet(Protocol):
    """Every verb may take a while and is called in a thread. ``BadInput`` is shown to the user."""

    def instances(self) -> Sequence[FleetInstance]: ...

    def news(self) -> Sequence[FleetNews]:
        """The last few, the newest first."""

    def add(self) -> str:
        """Start one more; its name."""

    def stop(self, name: str) -> None:
        """In good order: it hands its partitions on."""

    def kill(self, name: str) -> None:
        """At once, as if its machine were gone."""
