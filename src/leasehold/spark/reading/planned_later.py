"""A DataFrame that Spark hears of when it is first used.

A sink that writes where the events are read never uses it: it only looks at the schema. To plan it
all the same would cost Java 20 ms of CPU for each job, and 100 ms for each of the first ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType


class PlannedLater(ClassicDataFrame):
    """Of a session with a Java process: all that such a DataFrame does, it asks of ``_jdf``."""

    def __init__(
        self, plan: Callable[[], DataFrame], schema: StructType, spark: SparkSession
    ) -> None:
        super().__init__(None, spark)
        del self._jdf  # or it would hide the one below
        self.schema = schema
        self._plan = plan

    @cached_property
    def _jdf(self) -> Any:
        try:
            planned: Any = self._plan()
        except AttributeError as error:  # or Python would ask for a column of this name, and say so
            raise RuntimeError(f"the DataFrame cannot be planned: {error}") from error
        return planned._jdf
