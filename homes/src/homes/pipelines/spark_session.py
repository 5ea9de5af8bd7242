"""The Spark application that an instance of the pipeline is: on this machine, or on a cluster."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from leasehold import BadInput
from leasehold.spark import local_session

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java only plans and waits here: its second compiler would cost the first jobs their core."""
CORES_VARIABLE = "HOMES_SPARK_CORES"


def spark_session(master: str, name: str, folder: Path) -> SparkSession:
    """``master``: of a cluster; empty: this machine, with one core for each instance."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.local.dir": str(folder),
    }
    if not master:
        spark = local_session(1, name=name, settings=settings)
    else:
        spark = _on_cluster(master, name, settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _on_cluster(master: str, name: str, settings: dict[str, str]) -> SparkSession:
    """Without a limit the first instance would take all cores, and the others would wait for
    ever."""
    cores = os.environ.get(CORES_VARIABLE, "1")
    if not cores.isdigit() or not int(cores):
        raise BadInput(f"{CORES_VARIABLE} is {cores!r}; give the number of cores of an instance")
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {
        **settings,
        "spark.cores.max": cores,
        "spark.executor.cores": cores,
        # Polars would use every core of the worker's machine.
        "spark.executorEnv.POLARS_MAX_THREADS": cores,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
