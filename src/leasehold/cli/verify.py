"""``leasehold verify``: simulated groups under faults."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from typer import Exit, Option

from leasehold.cli.program import program
from leasehold.cli.progress import bar
from leasehold.errors import BadInput
from leasehold.testing.sabotage import Sabotage
from leasehold.testing.simulate import SimReport, simulate

console = Console()
STOPS = (signal.SIGINT, signal.SIGTERM)


def verify(
    seeds: Annotated[int, Option(help="How many seeds to run.", min=1)] = 1000,
    first: Annotated[int, Option(help="The first seed.", min=0)] = 0,
    seed: Annotated[int | None, Option(help="Replay this one seed with a readable trace.")] = None,
    sabotage: Annotated[
        Sabotage, Option(help="Break one mechanism on purpose: the run must notice.")
    ] = Sabotage.NONE,
    jobs: Annotated[int, Option(help="Number of processes; 0 means one per core.", min=0)] = 0,
) -> None:
    """Simulate whole groups under faults, on virtual time, and check the guarantees.

    Instances join, leave, crash, pause and wake as zombies with wrong clocks; the store fails and
    loses answers; partitions are added and split. The same seed always gives the same run. Exits
    with 1 if any guarantee was broken.
    """
    if seed is not None:
        _replay(seed, sabotage)
        return
    began, totals, broken = time.perf_counter(), Counter[str](), []
    # Closed whatever happens, and wherever Ctrl-C strikes: else the workers would be waited for.
    with closing(_reports(first, seeds, sabotage, jobs)) as reports:
        for report in _with_progress(reports, seeds):
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
        console.print(
            f"replay the first: {_replay_command(broken[0].seed, sabotage)}", soft_wrap=True
        )
    console.print(
        f"{seeds} seeds, {totals['steps']:,} steps, {totals['faults']:,} faults injected, "
        f"{totals['moves']:,} moves, {totals['events']:,} events "
        f"({totals['redelivered']:,} handled again after crashes), "
        f"[bold]{len(broken)} violations[/], {time.perf_counter() - began:.0f} s",
        highlight=False,
    )
    if broken:
        raise Exit(1)


def _replay_command(seed: int, sabotage: Sabotage) -> str:
    broken = "" if sabotage is Sabotage.NONE else f" --sabotage {sabotage.value}"
    return f"{program()} verify --seed {seed}{broken}"


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


def _reports(
    first: int, seeds: int, sabotage: Sabotage, jobs: int
) -> Generator[SimReport, None, None]:
    run = partial(simulate, sabotage=sabotage)
    jobs = min(jobs or os.cpu_count() or 1, seeds)
    if jobs == 1:
        yield from map(run, range(first, first + seeds))
        return
    with _on(*STOPS, call=_stop_once):
        pool = ProcessPoolExecutor(jobs, initializer=_begin_worker)
        try:
            with _held_back():
                pool.submit(os.getpid).result()
            yield from pool.map(run, range(first, first + seeds), chunksize=4)
            pool.shutdown()
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            pool.shutdown(cancel_futures=True)
            raise


def _begin_worker() -> None:
    """A terminal sends Ctrl-C to all of them, but only the first process decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _held_back() -> Iterator[None]:
    """Stops once all workers are known: one that has begun, and is not known yet, would be left
    behind. A worker that is told to stop before it can say what that means leaves it to us."""
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)

    try:
        with _on(*STOPS, call=note):
            yield
    finally:
        if came:
            _stop_once()


@contextmanager
def _on(*signals: signal.Signals, call: Any) -> Iterator[None]:
    before = {each: signal.signal(each, call) for each in signals}
    try:
        yield
    finally:
        for each, former in before.items():
            if signal.getsignal(each) is call:
                signal.signal(each, former)


def _stop_once(*_: object) -> None:
    """A second Ctrl-C has nothing more to stop, and must not come between."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _with_progress(reports: Iterator[SimReport], total: int) -> Iterator[SimReport]:
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[broken]} violations"),
    )
    with bar(*columns) as progress:
        task, broken = progress.add_task("", total=total, broken=0), 0
        for report in reports:
            broken += report.violation is not None
            progress.update(task, advance=1, broken=broken)
            yield report
