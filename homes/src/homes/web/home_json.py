"""A home as the page gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homes.domain.kinds import KIND
from homes.domain.thresholds import BATTERY_LOW_PERCENT, SILENT_AFTER_S
from homes.view.recent_activity import HomeState
from homes.view.window import Series


def home_dict(
    state: HomeState,
    alerts: Sequence[dict[str, Any]],
    *,
    failing: str = "",
    waiting: str = "",
    drills: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "home": state.home_id,
        "now_ms": state.now_ms,
        "state": state.state,
        "why": list(state.why),
        "sensors": [
            {
                "kind": each.kind,
                "value": each.value,
                "active": KIND[each.kind].is_active(each.value),
                "ts_ms": each.ts_ms,
                "battery": None if each.battery is None else round(each.battery),
                "battery_low": each.battery is not None and each.battery <= BATTERY_LOW_PERCENT,
                "silent": state.now_ms - each.ts_ms > SILENT_AFTER_S * 1000,
            }
            for each in state.readings
        ],
        "hour": series_dict(state.hour),
        "alerts": list(alerts),
        "failing": failing,
        "loading": state.loading,
        "waiting": waiting,
        "drills": list(drills),
    }


def series_dict(series: Series) -> dict[str, Any]:
    return {
        "start_ms": series.start_minute * 60_000,
        "step_s": series.step_minutes * 60,
        "levels": series.levels,
    }
