"""``leasehold tour``: the leases at work, in a minute."""

from __future__ import annotations

from itertools import count

from rich.console import Console

from leasehold.cli.program import program
from leasehold.cli.tables import Column, FittedTable
from leasehold.cli.tour_live import live
from leasehold.testing.sabotage import Sabotage
from leasehold.testing.scale import scale
from leasehold.testing.simulate import simulate

console = Console()
FAULTY_SEED = 0
SHOWN = 18


def tour() -> None:
    """Show leases in action: scaling, faults, and three real processes that share a hub.

    The first parts run on virtual time, with the code that runs in production; the last starts a
    hub and three processes in a temporary folder, and kills one of them.
    """
    console.print(
        "[bold]1. Scaling.[/] 32 partitions, and instances that come and go. Each instance looks "
        "at the lease store every 3 s and acts on its own share; nobody coordinates.\n"
    )
    console.print(_scaling())
    console.print(
        "\n[bold]2. Faults.[/] A group under crashes, pauses, wrong clocks and a store that loses "
        "answers:\n"
    )
    report = simulate(FAULTY_SEED, trace=True)
    lines = [line for line in report.trace if ":" not in line[11:]]
    for line in lines[:SHOWN]:
        console.print("   " + line, highlight=False, markup=False)
    console.print(f"    … {len(lines) - SHOWN} more lines\n")
    outcome = report.violation or "every invariant held"
    console.print(
        f"In {report.virtual_s:.0f} virtual seconds and {report.faults.total()} faults, "
        f"{report.events:,} events were handled, {report.redelivered} of them again after a crash: "
        f"[bold]{outcome}[/].",
        highlight=False,
    )
    seed, noticed = _noticed(Sabotage.NO_FENCING)
    console.print(
        f"\n[bold]3. A test that can fail.[/] With fencing switched off, seed {seed} ends with: "
        f"[red]{noticed}[/]",
        highlight=False,
    )
    console.print("\n[bold]4. For real.[/] A hub, three processes of one group, and a kill:\n")
    live(console)
    console.print(
        f"\nNext: [bold]{program()} verify --seed {FAULTY_SEED}[/] for the whole trace, "
        f"[bold]{program()} verify --seeds 100[/] for a hundred groups.",
        highlight=False,
    )


def _noticed(sabotage: Sabotage) -> tuple[int, str]:
    for seed in count():
        if violation := simulate(seed, sabotage=sabotage).violation:
            return seed, violation
    raise AssertionError("count() never ends")


def _scaling() -> FittedTable:
    names = ("instances", "even after", "moves", "least possible", "partitions per instance")
    table = FittedTable(*(Column(name=name) for name in names))
    for before, after in ((1, 3), (1, 12), (1, 20), (20, 5)):
        report = scale(before, after)
        table.add_row(
            f"{before} → {after}",
            f"{report.intervals:.1f} intervals",
            str(report.moves),
            str(report.least_moves),
            f"{report.counts[0]} … {report.counts[-1]}",
        )
    return table
