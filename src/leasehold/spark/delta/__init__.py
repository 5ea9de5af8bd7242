"""``DeltaSink``: each event's effect in a Delta table exactly once."""

from leasehold.spark.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
