"""PySpark: the data source, ``SparkProcessor`` and the exactly-once ``DeltaSink``."""

from leasehold.errors import MissingExtra

try:
    import deltalake as _deltalake  # noqa: F401
    import polars as _polars  # noqa: F401
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"{error.name} is not installed; it comes with: pip install 'leasehold[spark]' (or, on a "
        "cluster with its own PySpark, 'leasehold[spark-cluster]')"
    ) from error

from leasehold.spark.batch import Progress, SparkBatch
from leasehold.spark.delta import DeltaSink
from leasehold.spark.delta.compact import compact
from leasehold.spark.processor import SparkProcessor
from leasehold.spark.session import local_session
from leasehold.spark.source import register

__all__ = [
    "DeltaSink",
    "Progress",
    "SparkBatch",
    "SparkProcessor",
    "compact",
    "local_session",
    "register",
]
