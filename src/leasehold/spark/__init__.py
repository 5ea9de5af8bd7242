"""PySpark: the data source, ``SparkProcessor`` and the exactly-once ``DeltaSink``."""

from leasehold.spark.delta import DeltaSink
from leasehold.spark.processor import Progress, SparkBatch, SparkProcessor
from leasehold.spark.session import local_session

__all__ = ["DeltaSink", "Progress", "SparkBatch", "SparkProcessor", "local_session"]
