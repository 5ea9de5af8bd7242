"""``leasehold lag``: how far a group is behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from rich.console import Group as Stack
from rich.live import Live
from rich.markup import escape
from typer import Option, echo

from leasehold.cli.options import (
    AsJson,
    FeedMode,
    FeedUrl,
    GroupName,
    StoreUrl,
    console,
    counted,
    duration,
    existing_store,
    notes,
    opened_feed,
)
from leasehold.cli.tables import Column, FittedTable
from leasehold.core.model import partition_order
from leasehold.errors import FeedUnavailable, StoreUnavailable
from leasehold.operations.estimator import Estimate, Estimator, PartitionEstimate
from leasehold.operations.rewind import nobody
from leasehold.ports import Feed, LeaseStore
from leasehold.settings import LAG


def lag(
    feed: FeedUrl,
    *,
    group: GroupName,
    store: StoreUrl,
    mode: FeedMode = None,
    watch: Annotated[bool, Option("--watch", help="Refresh until Ctrl-C, with rates.")] = False,
    interval_s: Annotated[
        float, Option(help="With --watch: seconds between refreshes.", min=0.1)
    ] = 2,
    stuck_after_s: Annotated[
        float, Option(help="Seconds without progress before a partition counts as stuck.", min=0.1)
    ] = LAG.stuck_after_s,
    requests: Annotated[
        bool, Option("--requests", help="Also show the requests it made, and their request units.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far a group is behind, who owns what, and which partitions are stuck.

    A partition that nobody ever read counts with all its events. Watching does
    not disturb the group; with --requests it shows what it costs.
    """

    async def run() -> None:
        with opened_feed(feed, mode) as opened:
            leases = existing_store(store)
            try:
                estimator = Estimator(
                    opened, group=group, store=leases, stuck_after_s=stuck_after_s
                )
                costs = _costs(leases, opened)
                view = _View(opened.unit, costs, requests, as_json)
                if watch:
                    await _watch(estimator, interval_s, view)
                else:
                    await _look(estimator, leases, view)
            finally:
                await leases.close()

    asyncio.run(run())


class _Cost(NamedTuple):
    """What the lease store or the feed was asked for so far."""

    requests: Mapping[str, int]
    units: Mapping[str, float] | None
    """Request units, where they are told."""


def _costs(store: LeaseStore, feed: Feed) -> dict[str, _Cost]:
    return {
        name: _Cost(part.requests, getattr(part, "request_units", None))
        for name, part in (("store", store), ("feed", feed))
    }


class _View(NamedTuple):
    unit: str
    costs: Mapping[str, _Cost]
    """Of the store and of the feed, by verb (requirement C11)."""
    with_costs: bool
    as_json: bool

    def text(self, estimate: Estimate) -> str:
        requests: dict[str, Mapping[str, float]] = {}
        for part, cost in self.costs.items():
            requests[part] = cost.requests
            if cost.units is not None:
                requests[f"request units of the {part}"] = cost.units
        return json.dumps(estimate.as_dict() | {"requests": requests})

    def page(self, estimate: Estimate) -> Stack:
        costs = [_cost_table(self.costs)] if self.with_costs else []
        return Stack(_table(estimate, self.unit), *_remarks(estimate, self.unit), *costs)


def _cost_table(costs: Mapping[str, _Cost]) -> FittedTable:
    charged = any(cost.units is not None for cost in costs.values())
    names = ("asked", "verb", "requests", "request units")[: 4 if charged else 3]
    left = ("asked", "verb")
    table = FittedTable(
        *(Column(name=name, justify="left" if name in left else "right") for name in names)
    )
    for part, cost in costs.items():
        for verb in sorted({*cost.requests, *(cost.units or ())}):
            units = None if cost.units is None else cost.units.get(verb)
            told = "" if units is None else f"{units:,.1f}"
            row = (part, verb, f"{cost.requests.get(verb, 0):,}", told)
            table.add_row(*row[: len(names)])
    return table


async def _look(estimator: Estimator, store: LeaseStore, view: _View) -> None:
    estimate = await estimator.observe()
    if view.as_json:
        console.print_json(view.text(estimate))
        return
    console.print(view.page(estimate), highlight=False)
    if not estimate.started:
        notes.print(escape(await nobody(store, estimate.group)), highlight=False)


async def _watch(estimator: Estimator, interval_s: float, view: _View) -> None:
    """A store that does not answer is no reason to stop watching."""
    in_place = console.is_terminal and not view.as_json
    with Live(console=console, auto_refresh=False) if in_place else _Plain() as live:
        while True:
            try:
                estimate = await estimator.observe()
            except (StoreUnavailable, FeedUnavailable) as error:
                notes.print(f"no answer this time: {escape(str(error))}", highlight=False)
            else:
                if view.as_json:
                    echo(view.text(estimate))
                else:
                    live.update(view.page(estimate), refresh=True)
            await asyncio.sleep(interval_s)


class _Plain:
    """Page after page, where there is no terminal to draw on."""

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, page: Stack, *, refresh: bool) -> None:
        console.print(page)


def _table(estimate: Estimate, unit: str) -> FittedTable:
    rates = estimate.processed_per_s is not None
    columns = {
        "partition": "all",
        "owner": counted(len(estimate.members), "member"),
        f"{unit}s": f"{estimate.lag_events:,}",
        "behind": duration(estimate.lag_s),
    }
    if rates:
        columns |= {
            "in/s": _rate(estimate.incoming_per_s),
            "done/s": _rate(estimate.processed_per_s),
            "caught up in": duration(estimate.catch_up_s, "never"),
            "checkpoint": "",
        }
    columns["state"] = ""
    left = ("partition", "owner", "state")
    table = FittedTable(
        *(Column(name=name, justify="left" if name in left else "right") for name in columns),
        title=escape(str(estimate.group)),
        footer=tuple(columns.values()),
    )
    for each in sorted(estimate.partitions, key=lambda each: partition_order(each.partition)):
        more = (
            (
                _rate(each.incoming_per_s),
                _rate(each.processed_per_s),
                duration(each.catch_up_s, "never"),
                _checkpoint_age(each),
            )
            if rates
            else ()
        )
        table.add_row(
            escape(each.partition),
            _owner(each),
            f"{each.lag_events:,}",
            duration(each.lag_s),
            *more,
            _state(each, unit),
        )
    return table


def _owner(each: PartitionEstimate) -> str:
    if each.owner is None:
        return "[dim]nobody[/]"
    name = escape(each.owner)
    return name if each.owner_live else f"[red]{name} (gone)[/]"


def _checkpoint_age(each: PartitionEstimate) -> str:
    if each.checkpoint_age_s is None:
        return ""
    least = duration(each.checkpoint_age_s)
    return f"≥ {least}" if each.checkpoint_age_max_s is None else least


def _state(each: PartitionEstimate, unit: str) -> str:
    if each.astray == "retention":
        lost = f"{unit}s" if each.lost_events is None else counted(each.lost_events, unit)
        return f"[red]lost {lost}[/]"
    if each.astray is not None:
        return "[red]of another feed[/]"
    if each.stuck:
        return "[bold red]stuck[/]"
    if each.attempts:
        return f"[yellow]failed {counted(each.attempts, 'time')}[/]"
    if not each.lag_events:
        return "[green]caught up[/]"
    if not each.owner_live:
        return "[yellow]waiting[/]"
    return "never checkpointed" if not each.advanced else "behind"


def _remarks(estimate: Estimate, unit: str) -> list[str]:
    remarks = []
    if estimate.stuck:
        which = ", ".join(map(escape, estimate.stuck))
        remarks.append(f"[bold red]stuck:[/] {which} (there is work, and no checkpoint moves)")
    if any(each.astray == "retention" for each in estimate.partitions):
        remarks.append(f"lost: retention removed {unit}s before they were processed")
    if any(each.astray == "rolled back" for each in estimate.partitions):
        remarks.append(
            f"rolled back: the feed has lost {unit}s that were processed (an older copy was "
            "restored, or power failed); what it has got since counts"
        )
    if any(each.astray in ("beyond end", "other feed") for each in estimate.partitions):
        remarks.append(
            "of another feed: it was recreated since the checkpoint was written; "
            "everything in it counts. Send the group back with leasehold rewind"
        )
    if estimate.gone:
        which = ", ".join(map(escape, estimate.gone))
        remarks.append(f"leases of partitions that the feed does not have: {which}")
    return remarks


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
