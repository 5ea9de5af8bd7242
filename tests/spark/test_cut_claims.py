"""A claim that is done in several jobs: what is read for it, and what is stored. Spark is not
needed for that: its jobs are plain functions here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import leasehold as lh
from leasehold.core.model import Checkpoint, Lease
from leasehold.core.start import AtSequence
from leasehold.errors import FeedUnavailable
from leasehold.settings import every
from leasehold.spark.jobs import SparkJob, Void
from leasehold.spark.processor import SparkProcessor


class NoSpark(SparkProcessor):
    """Its jobs may have 100 events, as if they had become slow once all were claimed."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(object(), *arguments, on_batch=lambda df, batch: None, **settings)
        self.ran: list[tuple[int, int]] = []

    def _warm_up(self) -> None:
        pass

    async def _handle(self, events: Any, context: Any) -> None:
        self._pacer._pacing = replace(self._pacer._pacing, events=100)
        await super()._handle(events, context)

    def _run_job(self, job: SparkJob) -> Void:
        self.ran += [(each.first, each.end) for each in job.ranges]
        return {}


@pytest.mark.parametrize("answers", [True, False])
def test_no_event_is_read_to_tell_where_a_cut_claim_stands(tmp_path: Path, answers: bool) -> None:
    """It would be read on the loop that renews the leases, and they would wait for it."""
    hub = lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="test", partitions=1)
    hub.send([lh.EventData(b"x") for _ in range(350)], partition_id=0)
    own = [hub.position_of("0", AtSequence(at)) for at in (100, 200, 350)]
    store = lh.open_store(f"sqlite:///{tmp_path}/leases.db")
    worker = NoSpark(hub, group="g", store=store, checkpoint=every(events=1))
    stored: list[Checkpoint] = []
    read: list[Any] = []
    keep, locate = worker._leases.checkpoint, hub.locate

    async def kept(leases: Sequence[Lease]) -> Sequence[Lease]:
        stored.extend(lease.checkpoint for lease in leases)
        return await keep(leases)

    async def located(partition: str, start: Any) -> Checkpoint:
        if not answers and start in (AtSequence(100), AtSequence(200)):
            raise FeedUnavailable("no answer")
        return await locate(partition, start)

    hub.read_columns = read.append  # type: ignore[method-assign,assignment]
    worker._leases.checkpoint = kept  # type: ignore[method-assign]
    worker._ranges.locate = located
    worker.run(until_drained=True)
    assert worker.ran == [(0, 100), (100, 200), (200, 350)]
    assert read == []
    by_number = [Checkpoint(next_sequence=at) for at in (100, 200)]
    assert stored == (own if answers else [*by_number, own[-1]])
