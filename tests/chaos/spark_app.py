"""A Spark application as a process of its own: ``python spark_app.py SAID``, which is JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from chaos.instance import REPLACED, end_with_parent, opened


def main(said: dict[str, Any]) -> None:
    end_with_parent()
    # After that call, because they take seconds to load.
    from support.spark_pipeline import SCHEMA, per_home_minute  # noqa: PLC0415

    import leasehold as lh  # noqa: PLC0415
    from leasehold.spark import DeltaSink, SparkProcessor, local_session  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    memory = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.local.dir": f"{said['folder']}/spark",
    }
    spark = local_session(1, name=said["instance"], settings=memory)
    spark.sparkContext.setLogLevel("OFF")
    sink = DeltaSink(said["sink"], storage_options=said["options"])
    try:
        SparkProcessor(
            spark,
            opened(said["feed"]),
            group="activity",
            store=lh.open_store(said["store"]),
            on_batch=sink.write,
            schema=SCHEMA,
            at_source=per_home_minute,
            dead_letters=lh.open_dead_letters(f"sqlite:///{said['folder']}/dead.db"),
            retry=lh.Retry(attempts=3, then="dead-letter", backoff_s=0.2),
            instance=said["instance"],
            lease_ttl_s=4.0,
            balance_interval_s=1.0,
            max_events=said["max_events"],
        ).run(until_drained=said["until_drained"])
    except lh.InstanceReplaced:
        os._exit(REPLACED)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
