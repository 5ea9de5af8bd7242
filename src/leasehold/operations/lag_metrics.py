"""A group's lag as metrics, for a process that watches the group and is no member of it."""

from __future__ import annotations

from leasehold.operations.estimator import Estimate
from leasehold.telemetry.metrics import LagGauges


class LagMetrics(LagGauges):
    """The lag of a whole group as gauges; give it each estimate with ``show``."""

    def show(self, estimate: Estimate) -> None:
        """All partitions of the group, and no others, owned or not."""
        for partition in self.known - {each.partition for each in estimate.partitions}:
            self.forget(partition)
        for each in estimate.partitions:
            self.set(each.partition, each.lag_events, each.lag_s)
