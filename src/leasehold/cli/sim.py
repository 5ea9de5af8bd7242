"""``leasehold sim``: simulated groups under faults."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Annotated

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer import Exit, Option

from leasehold.errors import BadInput
from leasehold.testing.sabotage import Sabotage
from leasehold.testing.simulate import SimReport, simulate

console = Console()


def sim(
    seeds: Annotated[int, Option(help="How many seeds to run.", min=1)] = 1000,
    first: Annotated[int, Option(help="The first of them.", min=0)] = 0,
    seed: Annotated[int | None, Option(help="Replay this one seed with a readable trace.")] = None,
    sabotage: Annotated[
        Sabotage, Option(help="Break the mechanism on purpose and see that it is noticed.")
    ] = Sabotage.NONE,
    jobs: Annotated[int, Option(help="Processes; 0: one per core.", min=0)] = 0,
) -> None:
    """Run whole groups in one process on virtual time, under faults, and check the invariants.

    Instances join, leave, crash, pause and wake as zombies with wrong clocks; the store fails and
    loses answers; partitions are added and split. The same seed always gives the same run. Exits
    with 1 if any invariant broke.
    """
    if seed is not None:
        _replay(seed, sabotage)
        return
    began, totals, broken = time.perf_counter(), Counter[str](), []
    for report in _with_progress(_reports(first, seeds, sabotage, jobs), seeds):
        totals.update(
            steps=report.steps,
            faults=report.faults.total(),
            moves=report.moves,
            events=report.events,
            redelivered=report.redelivered,
        )
        if report.violation:
            broken.append(report)
    for report in broken[:5]:
        console.print(f"[bold red]seed {report.seed}:[/] {report.violation}", highlight=False)
    if broken:
        console.print(f"replay the first: make sim SEED={broken[0].seed}")
    console.print(
        f"{seeds} seeds, {totals['steps']:,} steps, {totals['faults']:,} faults injected, "
        f"{totals['moves']:,} moves, {totals['events']:,} events "
        f"({totals['redelivered']:,} handled again after crashes), "
        f"[bold]{len(broken)} violations[/], {time.perf_counter() - began:.0f} s",
        highlight=False,
    )
    if broken:
        raise Exit(1)


def _replay(seed: int, sabotage: Sabotage) -> None:
    if seed < 0:
        raise BadInput(f"--seed must be 0 or more, not {seed}")
    report = simulate(seed, sabotage=sabotage, trace=True)
    for line in report.trace:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"seed {seed}: {report.virtual_s:.0f} virtual seconds, {report.steps} steps, "
        f"{report.faults.total()} faults, {report.moves} moves: "
        + (f"[bold red]{report.violation}[/]" if report.violation else "[bold green]all held[/]"),
        highlight=False,
    )
    if report.violation:
        raise Exit(1)


def _reports(first: int, seeds: int, sabotage: Sabotage, jobs: int) -> Iterator[SimReport]:
    run = partial(simulate, sabotage=sabotage)
    jobs = min(jobs or os.cpu_count() or 1, seeds)
    if jobs == 1:
        yield from map(run, range(first, first + seeds))
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(run, range(first, first + seeds), chunksize=4)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _with_progress(reports: Iterator[SimReport], total: int) -> Iterator[SimReport]:
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[broken]} violations"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task, broken = progress.add_task("", total=total, broken=0), 0
        for report in reports:
            broken += report.violation is not None
            progress.update(task, advance=1, broken=broken)
            yield report
