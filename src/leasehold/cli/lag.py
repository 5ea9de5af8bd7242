"""``leasehold lag``: how far a group is behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from rich.console import Group as Stack
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from typer import Option, echo

from leasehold.cli.options import (
    AsJson,
    FeedMode,
    FeedPath,
    GroupName,
    StoreUrl,
    console,
    counted,
    duration,
    notes,
    opened_feed,
    unit_of,
)
from leasehold.errors import FeedUnavailable, StoreUnavailable
from leasehold.ports import LeaseStore
from leasehold.processor.estimator import Estimate, Estimator, PartitionEstimate
from leasehold.processor.rewind import nobody
from leasehold.stores import open_store

HOLDERS = {"event": "hub", "change": "container"}


def lag(
    feed: FeedPath,
    *,
    group: GroupName,
    store: StoreUrl,
    mode: FeedMode = None,
    watch: Annotated[bool, Option("--watch", help="Go on until Ctrl-C; shows rates, too.")] = False,
    interval_s: Annotated[float, Option(help="With --watch: seconds between looks.", min=0.1)] = 2,
    stuck_after_s: Annotated[
        float, Option(help="Name a partition as stuck after so long.", min=0.1)
    ] = 30,
    as_json: AsJson = False,
) -> None:
    """Show how far a group is behind, who owns what, and which partitions stand still.

    A partition that nobody ever read counts with all its events. Nothing is disturbed by looking;
    what the looking itself cost is said below the table.
    """

    async def run() -> None:
        leases = open_store(store)
        with opened_feed(feed, mode) as opened:
            try:
                estimator = Estimator(
                    opened, group=group, store=leases, stuck_after_s=stuck_after_s
                )
                costs = {"store": leases.requests, "feed": opened.requests}
                view = _View(unit_of(opened), costs, as_json)
                if watch:
                    await _watch(estimator, interval_s, view)
                else:
                    await _look(estimator, leases, view)
            finally:
                await leases.close()

    asyncio.run(run())


class _View(NamedTuple):
    unit: str
    costs: Mapping[str, Mapping[str, int]]
    """Requests so far by verb, of the store and of the feed (SPEC C11)."""
    as_json: bool

    def text(self, estimate: Estimate) -> str:
        return json.dumps(estimate.as_dict() | {"requests": self.costs})

    def page(self, estimate: Estimate) -> Stack:
        remarks = _remarks(estimate, self.unit)
        return Stack(_table(estimate, self.unit), *remarks, self._requests())

    def _requests(self) -> str:
        by_part = (
            f"{part} " + (", ".join(f"{verb} {n:,}" for verb, n in sorted(verbs.items())) or "none")
            for part, verbs in self.costs.items()
        )
        return f"[dim]requests: {'; '.join(by_part)}[/]"


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


def _table(estimate: Estimate, unit: str) -> Table:
    rates = estimate.processed_per_s is not None
    table = Table(title=escape(str(estimate.group)), show_footer=True)
    table.add_column("partition", "all")
    table.add_column("owner", counted(len(estimate.members), "member"))
    table.add_column(f"{unit}s", f"{estimate.lag_events:,}", justify="right")
    table.add_column("behind", duration(estimate.lag_s), justify="right")
    if rates:
        table.add_column("in/s", _rate(estimate.incoming_per_s), justify="right")
        table.add_column("done/s", _rate(estimate.processed_per_s), justify="right")
        table.add_column("caught up in", duration(estimate.catch_up_s, "never"), justify="right")
        table.add_column("checkpoint", "", justify="right")
    table.add_column("state", "")
    for each in estimate.partitions:
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
        return f"[red]of another {HOLDERS[unit]}[/]"
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
    remarks, holder = [], HOLDERS[unit]
    if estimate.stuck:
        which = ", ".join(map(escape, estimate.stuck))
        remarks.append(f"[bold red]stuck:[/] {which} (there is work, and no checkpoint moves)")
    if any(each.astray == "retention" for each in estimate.partitions):
        remarks.append(f"lost: retention removed {unit}s before they were processed")
    if any(each.astray in ("beyond end", "other feed") for each in estimate.partitions):
        remarks.append(
            f"of another {holder}: the {holder} was made anew since the checkpoint was written; "
            "everything in it counts. Send the group back with leasehold rewind"
        )
    if estimate.gone:
        which = ", ".join(map(escape, estimate.gone))
        remarks.append(f"leases of partitions that the {holder} does not have: {which}")
    return remarks


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
