"""What ``make cluster`` has seen, judged and written down."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from benchmarks.plot import Line, plot
from benchmarks.watch import Seen, between, median_and_p95, owners

SETTLED = 0.1
"""Of the whole time: left out at the begin, when Java is still cold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    at: float
    what: str
    back: float
    """When it was started again, if not by a supervisor of its own."""

    @property
    def away_s(self) -> float:
        return self.back - self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    homes: int
    seconds: float
    brokers: int
    instances: int
    seen: Seen
    kills: list[Kill]
    accounts: dict[str, int]
    """Of ``homes demo --headless``."""
    busy_share: float

    @property
    def calm_s(self) -> float:
        """From here to the first kill nothing happens."""
        return SETTLED * self.seconds

    @property
    def rate(self) -> float:
        """Readings per second, over all."""
        return median(between(self.seen.rate, self.calm_s, self.seconds) or [0.0])

    @property
    def calm_lag(self) -> float:
        return median(between(self.seen.lag, self.calm_s, self.kills[0].at) or [0.0])

    @property
    def last_lag(self) -> float:
        """Of the last tenth."""
        return median(between(self.seen.lag, (1 - SETTLED) * self.seconds, self.seconds) or [0.0])

    @property
    def usual_lag(self) -> float:
        """The lag swings with the cycles; up to here it has not grown."""
        return 2 * self.calm_lag + 2 * self.rate

    @property
    def flat(self) -> bool:
        return self.last_lag <= self.usual_lag

    @property
    def troubles(self) -> list[str]:
        """Why the run failed; nothing if it did not."""
        found = []
        if self.accounts["missing"]:
            found.append(f"{self.accounts['missing']:,} readings are not accounted for")
        if not self.flat:
            found.append(
                f"the lag has grown from {self.calm_lag:,.0f} to {self.last_lag:,.0f} events: this "
                f"machine does not carry {self.homes:,} homes"
            )
        return found

    def fresh(self, first: float, end: float) -> tuple[float, float] | None:
        """Median and p95 of the seconds from reading to page."""
        ages = between(self.seen.fresh, first, end)
        if len(ages) < 2:
            return None
        cuts = quantiles(ages, n=20)
        return cuts[9], cuts[18]

    def recovery(self, place: int) -> tuple[float | None, float | None]:
        """After a kill: the greatest lag, and the seconds until it is usual again. None: not
        measured; not usual again before the next one."""
        first = self.kills[place].at
        end = self.kills[place + 1].at if place + 1 < len(self.kills) else self.seconds
        looks = [(at, value) for at, value in self.seen.lag if first <= at < end]
        if not looks:
            return None, None
        greatest = max(value for _, value in looks)
        above = [at for at, value in looks if value > self.usual_lag]
        if not above:
            return greatest, 0.0
        after = [at for at, _ in looks if at > above[-1]]
        return greatest, after[0] - first if after else None


def text(result: ClusterResult) -> str:
    accounts = result.accounts
    lines = [
        f"{accounts['sent']:,} readings sent = {accounts['aggregated']:,} aggregated + "
        f"{accounts['dead_letters']:,} dead letters + {accounts['missing']:,} missing",
        *(" | ".join(row) for row in _rows(result)),
        *result.troubles,
    ]
    return "\n".join(lines)


def _rows(result: ClusterResult) -> list[tuple[str, str]]:
    rows = [
        ("readings per second, median", f"{result.rate:,.0f}"),
        ("lag in events, median before the first kill", f"{result.calm_lag:,.0f}"),
        ("… median of the last tenth of the time", f"{result.last_lag:,.0f}"),
        ("both cores busy, mean", f"{result.busy_share:.0%}"),
    ]
    for what, first, end in (
        ("before the first kill", result.calm_s, result.kills[0].at),
        ("all the time, kills included", result.calm_s, result.seconds),
    ):
        found = result.fresh(first, end)
        seen = "not measured" if found is None else f"p50 {found[0]:.1f} s, p95 {found[1]:.1f} s"
        rows.append((f"from reading to visible on the home's API, {what}", seen))
    for place, kill in enumerate(result.kills):
        greatest, after = result.recovery(place)
        back = "not usual again" if after is None else f"usual again after {after:.0f} s"
        worst = "not measured" if greatest is None else f"lag up to {greatest:,.0f} events, {back}"
        away = f", gone for {kill.away_s:.0f} s" if kill.away_s else ""
        rows.append((f"{kill.what} killed{away}", worst))
    return rows


def write(result: ClusterResult, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    seen, marks = result.seen, [(kill.at, f"{kill.what} killed") for kill in result.kills]
    for name, title, lines in (
        ("rate", "readings sent per second", [Line("", seen.rate)]),
        ("lag", "events behind the end", [Line("", seen.lag)]),
        ("fresh", "seconds from reading to visible on the home's API", median_and_p95(seen.fresh)),
        ("owned", "partitions owned", owners(seen)),
    ):
        plot(folder / f"{name}.svg", title, lines, marks=marks)
    (folder / "accounts.json").write_text(json.dumps(result.accounts) + "\n")
    (folder / "README.md").write_text(_page(result))


def _page(result: ClusterResult) -> str:
    accounts = result.accounts
    table = "\n".join(f"| {what} | {value} |" for what, value in _rows(result))
    verdict = " ".join(f"**Failed: {each}.**" for each in result.troubles)
    return f"""# The application on a cluster

Written by `make cluster HOMES={result.homes} MINUTES={result.seconds / 60:.3g}`, on one machine
with {os.cpu_count()} cores and {_memory_gb():.0f} GB, everything on loopback and in real time:
{result.brokers} Kafka nodes (16 partitions), PostgreSQL for leases and dead letters, Azurite for
table and archive, a Spark standalone cluster with a master and two workers, and on them
`homes demo --config homes.toml` with {result.instances} instances, and `homes web`. A broker, a
Spark worker and an instance were killed with SIGKILL on the way, and started again by whatever
looks after them.
{verdict}

| | |
|---|---|
| readings sent | {accounts["sent"]:,} |
| of these in the aggregates | {accounts["aggregated"]:,} |
| of these dead letters | {accounts["dead_letters"]:,} |
| missing, or counted twice | {accounts["missing"]:,} |
{table}

The first tenth of the time is left out. The lag counts as usual up to twice its median before the
first kill, and two seconds of readings more.

![readings sent per second](rate.svg)

![lag in events](lag.svg)

![seconds until a reading is visible](fresh.svg)

![partitions owned by each instance](owned.svg)
"""


def _memory_gb() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
