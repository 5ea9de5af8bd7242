"""What everybody waits for while the application starts, in words for a page and a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CAUGHT_UP_S = 10.0
"""Readings that are seen so soon after they were sent are live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """How far the start has come."""

    history: float | None = None
    """The share of the history that is sent; None: none is being sent."""
    instances: Sequence[str] | None = None
    """The states of the pipeline's instances; None: they are started elsewhere."""
    lag_s: float | None = None
    """How old the oldest reading is that nobody has aggregated; None: not known yet."""
    lag_events: int | None = None
    """None: the pipeline has never begun."""
    per_s: float | None = None
    """How many more readings are aggregated than come in; None: not known yet."""
    aggregated: bool = True
    """Whether any reading ever was."""


def waiting_for(startup: Startup) -> str:
    """Nothing if readings are live, or if waiting would not help."""
    states = startup.instances
    if states and all(state == "ended" for state in states):
        text = "no instance of the pipeline runs"
    elif states and "running" not in states:
        text = "Spark is starting"
    elif startup.lag_events is None:
        text = "the pipeline has not begun yet" if states else ""
    elif startup.lag_events and not startup.aggregated:
        text = f"the first of {startup.lag_events:,} readings are being aggregated"
    elif startup.lag_events and startup.lag_s is not None and startup.lag_s > CAUGHT_UP_S:
        text = f"{startup.lag_events:,} readings to go"
        if startup.per_s is not None and startup.per_s > 0:
            text += f", live in about {max(1, round(startup.lag_events / startup.per_s)):,} s"
    else:
        text = ""
    if startup.history is not None:
        history = f"history {startup.history:.0%}"
        text = f"{history}, {text}" if text else history
    return text
