"""What an outage of the lease store costs a group of four on 32 partitions, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.row import Row
from leasehold.testing.outage import outage
from leasehold.testing.sabotage import Sabotage

SECONDS = (5.0, 30.0, 600.0)
"""Shorter and longer than the time to live."""
FORMER_S = 600.0
"""The outage that the former figures are of."""


def run(lengths: Sequence[float] = SECONDS) -> Iterator[Row]:
    for seconds in lengths:
        now, hasty = outage(seconds), outage(seconds, sabotage=Sabotage.IMPATIENT)
        known = seconds == FORMER_S
        what = f"outage of {seconds:,.0f} s"
        yield Row(what=what, value=now.moves, unit="moves", target=0, former=48 if known else None)
        yield Row(what=f"{what}, nobody waits for the others", value=hasty.moves, unit="moves")
        yield Row(
            what=f"{what}, one owns at most",
            value=now.most_owned,
            unit="of 32",
            target=8,
            former=32 if known else None,
        )
        yield Row(
            what=f"{what}, handled again",
            value=now.redelivered,
            unit="events",
            former=48 if known else None,
        )
        yield Row(
            what=f"{what}, the last goes on after",
            value=now.resumed_s,
            unit="s",
            former=34 if known else None,
        )
