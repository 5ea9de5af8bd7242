"""One instance of the pipeline as a process of its own: ``pipeline_app.py FOLDER NAME``."""

from __future__ import annotations

import sys
from pathlib import Path

import leasehold as lh
from homes.local.places import Places
from homes.pipelines.activity import activity_processor, activity_sink
from leasehold.spark import local_session


def main(folder: str, name: str) -> None:
    places = Places(Path(folder))
    spark = local_session(1, name=name, settings={"spark.driver.memory": "512m"})
    spark.sparkContext.setLogLevel("OFF")
    activity_processor(
        spark,
        lh.Hub.open(places.hub),
        lh.open_store(places.store),
        activity_sink(places.activity),
        lh.open_dead_letters(places.dead_letters),
        instance=name,
        lease_ttl_s=6,
        balance_interval_s=1.5,
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
