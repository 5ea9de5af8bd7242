"""A Spark session on this machine, with nothing to set up."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession


def local_session(
    cores: int | str = "*", *, name: str = "leasehold", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """``local[cores]``, on loopback, without web pages and progress bars. Its Python workers run
    the Python of this process, which is what has the packages.

    Its endpoints ask for a secret, or any local user could stop it. Spark makes that up itself:
    given as a setting, it would be among the arguments of the Java process, for all to see.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # A worker process has its core to itself; polars would start a thread for each of the machine.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    wanted = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
        "spark.sql.session.timeZone": "UTC",
        **(settings or {}),
    }
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
