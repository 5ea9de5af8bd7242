"""How far a group goes: the production host on virtual time, with latencies measured on each store.

First each store's requests are measured here, at several sizes. Then groups are simulated up to
sizes that no single machine can start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.row import Row
from benchmarks.scale_costs import Costs, measure
from benchmarks.scale_world import Cell, Model, cell

Size = tuple[int, int]
CELLS: Mapping[Size, Model] = {
    (16, 2): Model(),
    (64, 8): Model(),
    (256, 16): Model(),
    (1_000, 50): Model(),
    (3_000, 150): Model(fewer=2, thinner=5),
    (10_000, 500): Model(fewer=4, thinner=10),
}
"""Partitions and instances, and what stands for them: as a whole, the largest take too long."""
MEASURED: Sequence[Size] = ((16, 2), (256, 16), (1_000, 50), (3_000, 150), (10_000, 500))
MEASURED_BLOBS: Sequence[Size] = ((16, 2), (256, 16), (1_000, 50))
"""A record at a time: a group of 10,000 would take minutes to be made."""
CORES = 8
"""Of a PostgreSQL server, each as fast as one here. Blob storage has no bound here but the one that
its provider publishes."""
UNBOUNDED = 1_000_000


def run(
    urls: Sequence[str],
    *,
    cells: Mapping[Size, Model] = CELLS,
    measured: Sequence[Size] | None = None,
    report: Path | None = None,
) -> Iterator[Row]:
    """``report``: a folder for ``scale.json``, with all that was measured and simulated."""
    told = {}
    for url in urls:
        one_by_one = url.startswith("azure-blob:")
        costs = measure(url, measured or (MEASURED_BLOBS if one_by_one else MEASURED))
        yield from _cost_rows(costs)
        found = []
        for (partitions, instances), model in cells.items():
            cores = UNBOUNDED if one_by_one else CORES
            found.append(cell(costs, partitions, instances, cores=cores, model=model))
            yield from _cell_rows(costs, found[-1])
        told[costs.kind] = {"costs": asdict(costs), "cells": [asdict(each) for each in found]}
    if report is not None:
        (report / "scale.json").write_text(json.dumps(told, indent=1))


def _cost_rows(costs: Costs) -> Iterator[Row]:
    for verb, table in costs.measured.items():
        for leases, cost in table.items():
            what = f"{costs.kind}, {verb} of {leases:,}"
            yield Row(what=f"{what}, server", value=1000 * cost.server_s, unit="ms")
            yield Row(what=f"{what}, client", value=1000 * cost.client_s, unit="ms")
    for leases, size in costs.bytes_per_look.items():
        yield Row(what=f"{costs.kind}, a look at {leases:,}", value=size / 1000, unit="kB")


def _cell_rows(costs: Costs, seen: Cell) -> Iterator[Row]:
    name = f"{costs.kind}, {seen.partitions:,} × {seen.instances}"
    times = {
        "even after the start": seen.start_s,
        "even after a join": seen.join_s,
        "even after a tenth was lost": seen.loss_s,
        "all leases live after an outage of 30 s": seen.outage_s,
    }
    for what, seconds in times.items():
        if seconds is not None:
            yield Row(what=f"{name}: {what}", value=seconds, unit="s")
    yield Row(what=f"{name}: a look", value=1000 * seen.look_s, unit="ms")
    yield Row(what=f"{name}: moved by the join", value=seen.join_moves, unit="leases")
    yield Row(what=f"{name}: moved by the outage", value=seen.outage_moves, unit="leases", target=0)
    yield Row(what=f"{name}: requests", value=seen.requests_per_s, unit="per s")
    yield Row(what=f"{name}: received", value=seen.bytes_per_s / 1e3, unit="kB/s")
    yield Row(what=f"{name}: busy cores of the server", value=seen.busy_cores, unit="cores")
    yield Row(what=f"{name}: requests given up", value=seen.late, unit="in all", target=0)
