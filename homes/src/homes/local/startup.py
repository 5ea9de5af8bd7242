"""How far the start has come, told from the pipeline's lag."""

from __future__ import annotations

from collections.abc import Sequence

from homes.domain.waiting import Startup
from leasehold import Estimate


def startup_of(
    lag: Estimate | None, *, history: float | None, instances: Sequence[str] | None
) -> Startup:
    """``lag``: of the pipeline."""
    if lag is None or not lag.started:
        return Startup(history=history, instances=instances)
    per_s = None
    if lag.processed_per_s is not None and lag.incoming_per_s is not None:
        per_s = lag.processed_per_s - lag.incoming_per_s
    return Startup(
        history=history,
        instances=instances,
        lag_events=lag.lag_events,
        lag_s=lag.lag_s,
        per_s=per_s,
        aggregated=any(each.checkpoint for each in lag.partitions),
    )
