"""A warm-up that takes too long. Spark is not needed for that: it is told what it does here."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import leasehold as lh
from leasehold.spark import processor as processor_module
from leasehold.spark.processor import SparkProcessor


class Connect:
    """A session that knows which tags each thread has."""

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}
        self._tags = threading.local()
        self.cancelled: list[str] = []
        self.heard = threading.Event()

    @property
    def tags(self) -> set[str]:
        return self._tags.__dict__.setdefault("all", set())  # type: ignore[no-any-return]

    def addTag(self, tag: str) -> None:  # noqa: N802  # as Spark calls it
        self.tags.add(tag)

    def removeTag(self, tag: str) -> None:  # noqa: N802  # as Spark calls it
        self.tags.discard(tag)

    def interruptTag(self, tag: str) -> None:  # noqa: N802  # as Spark calls it
        self.cancelled.append(tag)
        self.heard.set()


def test_a_warm_up_that_is_cancelled_late_takes_no_job_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="test", partitions=1)
    hub.send([lh.EventData(b"x")], partition_id=0)
    spark, over = Connect(), threading.Event()
    tags: dict[str, set[str]] = {}

    class SlowSource:
        df, planned_s = None, 0.0

        def __init__(self, *plan: Any) -> None:
            pass

        def collect(self, work: Any) -> None:
            tags["warm-up"] = set(spark.tags)
            assert over.wait(60)

        def put_letters(self) -> None:
            pass

    def on_batch(df: Any, batch: Any) -> None:
        tags["job"] = set(spark.tags)
        over.set()

    monkeypatch.setattr(processor_module, "Source", SlowSource)
    monkeypatch.setattr(processor_module, "WARM_UP_S", 0.0)
    store = lh.open_store(f"sqlite:///{tmp_path}/leases.db")
    SparkProcessor(
        spark,
        hub,
        group="g",
        store=store,
        on_batch=on_batch,
        tasks=1,
    ).run(until_drained=True)
    assert spark.heard.wait(60)
    assert set(spark.cancelled) <= tags["warm-up"]
    assert tags["job"].isdisjoint(spark.cancelled)
