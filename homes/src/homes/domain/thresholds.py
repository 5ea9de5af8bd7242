"""From where on something counts, where it is the same for every kind of sensor. What differs by
kind is in ``kinds``."""

from __future__ import annotations

SILENT_AFTER_S = 300.0
"""A sensor that has sent nothing for so long is silent."""
ALARM_MINUTES = 15
"""For so long a home's state shows an alarm that was noticed once."""
ALARM_HOUR_S = 3600.0
"""For so long it shows one that the last reading measured."""
BATTERY_LOW_PERCENT = 15
