"""How many tasks a job is cut into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from leasehold.spark.reading.frames import CORES_KEPT_S, Cores


def test_executors_that_come_and_go_are_noticed_without_asking_for_every_job() -> None:
    asked: list[int] = []
    now = 0.0

    class Context:
        @property
        def defaultParallelism(self) -> int:  # noqa: N802
            asked.append(2 + 8 * len(asked))
            return asked[-1]

    spark: Any = SimpleNamespace(sparkContext=Context())
    cores = Cores(spark, lambda: now)
    assert [cores(), cores()] == [2, 2]
    now = CORES_KEPT_S
    assert [cores(), cores()] == [10, 10]
    assert asked == [2, 10]


def test_cores_are_not_asked_for_before_the_first_job() -> None:
    spark: Any = SimpleNamespace()
    Cores(spark)
