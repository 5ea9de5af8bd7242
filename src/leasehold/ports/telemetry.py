"""Where processors report what they do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Attributes = tuple[str, ...]
"""Values in the order of a measure's attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One thing that a processor reports."""

    name: str
    kind: Literal["count", "level", "observation"]
    """It only grows; or it is as it is now; or it is one of many values, such as durations."""
    about: str
    unit: str = ""
    """``"s"`` where it is a time."""
    attributes: tuple[str, ...]
    """The names of what tells one series from another: a partition, a reason."""


class Telemetry(Protocol):
    """Where processors report what they do. All processors of a process may share one.

    Any thread may call it, also during another call, and should not be kept waiting. What
    it raises is logged and costs no event.
    """

    def declare(self, measures: Sequence[Measure]) -> None:
        """What will be reported; by each processor at its start."""

    def count(self, measure: Measure, attributes: Attributes, amount: int = 1) -> None:
        """So many more. 0 begins a series, so that its first increase can be seen."""

    def level(self, measure: Measure, attributes: Attributes, value: float | None) -> None:
        """As it is now. None: it is not known any more, which is not the same as 0."""

    def observe(self, measure: Measure, attributes: Attributes, *values: float) -> None:
        """What was observed. Nothing at all begins a series."""

    def watch(
        self, measure: Measure, key: Hashable, read: Callable[[], Mapping[Attributes, float]]
    ) -> None:
        """Ask whenever somebody looks, by attributes; what is left out is not known. The same key
        again takes the place of the former, so that a store which two processors share counts
        once."""
