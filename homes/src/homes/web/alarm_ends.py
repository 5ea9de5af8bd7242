"""When the alarms behind a home's alerts were over, told from what its sensors sent since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from homes.domain.kinds import KIND, SensorKind
from homes.domain.thresholds import ALARM_MINUTES
from homes.view.window import Series

MINUTE_MS = 60_000


def with_ends(
    alerts: Sequence[dict[str, Any]], hour: Series, day: Series | None, now_ms: int
) -> list[dict[str, Any]]:
    """The alerts, each with ``ended_ms``: from then on there was no such alarm. None: there still
    is, or nobody knows. ``day`` is for what is older than the hour."""
    found = []
    for alert in alerts:
        kind, ended_ms = KIND.get(alert["kind"]), None
        if kind is not None and kind.alarm_text:
            again = [each["ts_ms"] for each in alerts if each["kind"] == kind.name]
            if kind.unit:
                ended_ms = _measured_end(kind, alert["ts_ms"], hour, day)
            else:
                ended_ms = _noticed_end(alert["ts_ms"], again)
        over = ended_ms is not None and ended_ms <= now_ms
        found.append(alert | {"ended_ms": ended_ms if over else None})
    return found


def needs_day(alerts: Iterable[dict[str, Any]], hour: Series) -> bool:
    """Whether an alert is of a time that only the day knows."""
    return any(
        (kind := KIND.get(alert["kind"])) is not None
        and bool(kind.alarm_text and kind.unit)
        and alert["ts_ms"] < hour.start_minute * MINUTE_MS
        for alert in alerts
    )


def _noticed_end(ts_ms: int, alike: Sequence[int]) -> int:
    """So long a home's state shows it; longer if it happened again meanwhile."""
    last = ts_ms // MINUTE_MS
    for minute in sorted(each // MINUTE_MS for each in alike):
        if last <= minute < last + ALARM_MINUTES:
            last = minute
    return (last + ALARM_MINUTES) * MINUTE_MS


def _measured_end(kind: SensorKind, ts_ms: int, hour: Series, day: Series | None) -> int | None:
    """The first step after it in which all that was measured was harmless."""
    minute = ts_ms // MINUTE_MS
    series = hour if minute >= hour.start_minute or day is None else day
    for step, level in enumerate(series.levels[kind.name]):
        begins = series.start_minute + step * series.step_minutes
        if begins > minute and level is not None and not kind.is_active(level):
            return begins * MINUTE_MS
    return None
