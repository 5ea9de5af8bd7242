"""Ages between times that a service tells in whole seconds."""

from __future__ import annotations

_TICK_S = 1e-7


def certain_age_s(now_s: float, then_s: float) -> float:
    """What has certainly passed: both times are cut to whole seconds, so up to 1 s less. Below 0
    only if the service's clock was set back."""
    passed_s = now_s - then_s
    return max(passed_s - 1.0 + _TICK_S, 0.0) if passed_s >= 0 else passed_s
