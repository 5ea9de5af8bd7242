"""Whether a batch may still take effect: asked by a sink, in the thread of the job."""

from __future__ import annotations

import asyncio
from collections import deque
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.processing import open_leases
from support.spark_pipeline import QUICK, make_hub

import leasehold as lh
from leasehold.core import lifecycle
from leasehold.core.model import Group
from leasehold.core.start import AtSequence
from leasehold.operations.rewind import carry_out, plan
from leasehold.processor.pump import Pump
from leasehold.spark import SparkBatch, SparkProcessor
from leasehold.spark.jobs import SparkJob


def first_batch(spark: SparkSession, folder: Path, look: Any, **more: Any) -> Any:
    """What ``look`` says of the first batch and the processor that has it."""
    hub, found = make_hub(folder, 40), list[Any]()
    group = Group(namespace=hub.namespace, feed=hub.name, name="g")

    def rewind() -> None:
        async def main() -> None:
            store = open_leases(folder)
            moves = await plan(hub, store, group, AtSequence(0), all_chosen=True)
            await carry_out(store, moves, fence=True)
            await store.close()

        asyncio.run(main())

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        if not found:
            found.append(look(processor, batch, rewind))

    processor = SparkProcessor(
        spark, hub, group="g", store=open_leases(folder), on_batch=on_batch, **QUICK | more
    )
    processor.run(until_drained=True)
    hub.close()
    return found[0]


def partitions(batch: SparkBatch) -> frozenset[str]:
    return frozenset(each.partition for each in batch.ranges)


def test_a_batch_learns_from_the_store_that_its_group_was_rewound(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before any renewal has told the instance."""

    def look(processor: SparkProcessor, batch: SparkBatch, rewind: Any) -> Any:
        before = batch.confirmed(partitions(batch))
        rewind()
        return partitions(batch), before, batch.confirmed(partitions(batch))

    mine, before, after = first_batch(spark, tmp_path, look)
    assert before == mine
    assert after == frozenset()


def test_where_the_store_does_not_tell_the_batch_comes_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def look(processor: SparkProcessor, batch: SparkBatch, rewind: Any) -> Any:
        async def fails(group: Group) -> Any:
            raise lh.StoreUnavailable("down")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processor._store, "snapshot", fails)
            with pytest.raises(lh.SinkUnavailable, match="still held is not known: down"):
                batch.confirmed(partitions(batch))
        return True

    assert first_batch(spark, tmp_path, look)


def test_a_job_that_outlives_its_lease_has_lost_it_although_this_instance_took_it_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def look(processor: SparkProcessor, batch: SparkBatch, rewind: Any) -> Any:
        partition = batch.ranges[0].partition
        before = batch.lost()
        old: Any = processor._host.workers[partition]
        new = copy(old)
        new._signals = deque()
        processor._host.workers[partition] = new
        old._signals.append(lifecycle.Lost())
        after = batch.lost()
        old._signals.clear()
        processor._host.workers[partition] = old
        return partition, before, after

    partition, before, after = first_batch(spark, tmp_path, look)
    assert before == frozenset()
    assert after == {partition}


def test_a_job_that_outlives_its_lease_has_lost_it_although_it_was_let_go_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    def look(processor: SparkProcessor, batch: SparkBatch, rewind: Any) -> Any:
        partition = batch.ranges[0].partition
        old = processor._host.workers.pop(partition)
        after = batch.lost()
        processor._host.workers[partition] = old
        return partition, after

    partition, after = first_batch(spark, tmp_path, look)
    assert after == {partition}


def test_a_job_knows_who_held_its_partitions_when_it_began(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before its thread does anything: it may be held up there for long."""

    def look(processor: SparkProcessor, batch: SparkBatch, rewind: Any) -> Any:
        return [str(each.partition) for each in batch.ranges]

    held: list[Any] = []
    real = SparkProcessor._run_job

    def run_job(self: SparkProcessor, job: SparkJob) -> Any:
        held.append({p: isinstance(each, Pump) for p, each in job.holders.items()})
        return real(self, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkProcessor, "_run_job", run_job)
        mine = first_batch(spark, tmp_path, look)
    assert held[0] == dict.fromkeys(mine, True)
