"""A DataFrame that Spark hears of when it is first used.

A sink that writes where the events are read never uses it: it only looks at the schema. To plan it
all the same would cost Java 20 ms of CPU for each job, and 100 ms for each of the first ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType


class PlannedLater(ClassicDataFrame):
    """Of a session with a Java process: all that such a DataFrame does, it asks of ``_jdf``. Names
    of its own are unlike those of columns, which are attributes, too."""

    def __init__(
        self, plan: Callable[[], DataFrame], schema: StructType, spark: SparkSession
    ) -> None:
        self._leasehold_plan: Callable[[], DataFrame] | None = plan
        self._leasehold_lock = threading.Lock()
        self._leasehold_jdf: Any = None
        super().__init__(None, spark)
        self.schema = schema

    @property
    def _jdf(self) -> Any:
        """Planned once, whichever threads use it: columns of one plan do not fit another."""
        with self._leasehold_lock:
            if self._leasehold_plan is not None:
                self._leasehold_jdf = _planned(self._leasehold_plan)
                self._leasehold_plan = None  # it knows who has this one: neither would be let go
            return self._leasehold_jdf

    @_jdf.setter
    def _jdf(self, jdf: Any) -> None:
        """The class above has one from the beginning."""


def _planned(plan: Callable[[], DataFrame]) -> Any:
    try:
        planned: Any = plan()
    except AttributeError as error:  # or Python would look for a column of this name, and say so
        raise RuntimeError(f"the DataFrame cannot be planned: {error}") from error
    return planned._jdf
