"""The kinds of sensor: all that differs from one to the next, but for its icon on the page and for
how the simulator makes up its values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorKind:
    name: str
    """As in a reading's ``type``."""
    title: str
    short_title: str
    """Where there is little room."""
    events_noun: str = ""
    """What is counted, such as ``openings``."""
    active_text: str = ""
    inactive_text: str = ""
    unit: str = ""
    """Its values are measured in this; empty: they are 1 (active) or 0."""
    active_from: float = 1.0
    alarm_text: str = ""
    """What has happened when it is active; empty: that is no alarm."""
    is_opening: bool = False
    """Active means open: the state of a home says so."""
    drill_text: str = ""
    """What residents of the demo may try; empty: nothing of this kind."""
    drill_value: float = 1.0
    is_fitted: bool = True
    """Every home has one from the beginning; else one may be added later."""

    def is_active(self, value: float) -> bool:
        return value >= self.active_from if self.unit else value > 0


SENSOR_KINDS = (
    SensorKind(
        name="motion",
        title="Motion",
        short_title="Motion",
        events_noun="movements",
        active_text="Motion",
        inactive_text="No motion",
    ),
    SensorKind(
        name="door",
        title="Door",
        short_title="Door",
        events_noun="openings",
        active_text="Open",
        inactive_text="Closed",
        is_opening=True,
    ),
    SensorKind(
        name="window",
        title="Window",
        short_title="Window",
        events_noun="openings",
        active_text="Open",
        inactive_text="Closed",
        is_opening=True,
    ),
    SensorKind(
        name="glass",
        title="Glass",
        short_title="Glass",
        events_noun="breaks",
        active_text="Broken",
        inactive_text="Intact",
        alarm_text="Glass was broken",
        drill_text="Break a window",
    ),
    SensorKind(
        name="co",
        title="Carbon monoxide",
        short_title="CO",
        active_text="dangerous",
        inactive_text="normal",
        unit="ppm",
        active_from=50.0,
        alarm_text="Carbon monoxide",
        drill_text="Carbon monoxide",
        drill_value=120.0,
        is_fitted=False,
    ),
)
"""In this order everywhere. Those that are fitted come first."""

KINDS = tuple(kind.name for kind in SENSOR_KINDS)
KIND = {kind.name: kind for kind in SENSOR_KINDS}
FITTED = sum(kind.is_fitted for kind in SENSOR_KINDS)
MEASURED = tuple(place for place, kind in enumerate(SENSOR_KINDS) if kind.unit)
"""By place: kinds whose values are amounts; of all others, what is active is counted."""
NOTICED_ALARMS = tuple(
    place for place, kind in enumerate(SENSOR_KINDS) if kind.alarm_text and not kind.unit
)
"""By place: kinds whose alarm is over with the next reading, and shown for a while all the same."""
