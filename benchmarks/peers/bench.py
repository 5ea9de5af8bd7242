"""``make bench ARGS=peers``: everybody on one broker in one run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import contenders, page, scenes, throughput
from benchmarks.peers.contenders import Contender
from benchmarks.peers.stage import Stage
from benchmarks.row import Row

LANES = 2
"""So many contenders at a time: most of it is waiting, and each change is a second of work."""
STORES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    partitions: int = 16
    send_s: float = 0.04
    commit_s: float = 5.0
    members: tuple[int, ...] = (2, 3, 2, 5, 3)
    still_s: float = 6.0
    """More than a balance interval of ours (3 s) or a heartbeat interval of Kafka's (3 s, and 5 s
    in the new protocol)."""
    calm_s: float = 5.0
    killed_of: int = 3
    kills: int | None = None
    """None: as many as each contender says."""
    events: int = 200_000
    tries: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of each contender, by its name."""

    sizes: Sizes
    planned: dict[str, scenes.Planned] = field(default_factory=dict)
    killed: dict[str, scenes.Killed] = field(default_factory=dict)
    events_per_cpu_s: dict[str, float] = field(default_factory=dict)
    columns_per_cpu_s: dict[str, float] = field(default_factory=dict)


def run(
    stores: Sequence[str], *, report: Path | None = None, said: Callable[[str], None] = print
) -> Iterator[Row]:
    """``stores``: URLs of lease stores, of which SQLite and PostgreSQL are taken. With ``report``,
    the page in that folder is filled."""
    from support.kafka import cluster  # noqa: PLC0415  # the tests' broker; Java is needed

    with cluster() as server, tempfile.TemporaryDirectory() as folder:
        server.upgrade("group.version", 1)  # the new protocol of consumer groups
        named = {_scheme(url): url for url in stores}
        compared = contenders.contenders(
            {name: named[scheme] for scheme, name in STORES.items() if scheme in named}
        )
        for each in compared:
            contenders.set_up(each)
        sizes, place = Sizes(), Path(folder)
        topics = [server.topic(partitions=sizes.partitions) for _ in range(2)]
        spark = contenders.structured(place / "spark")
        found = measure(
            server.brokers, topics, place, compared, alone=[spark], sizes=sizes, said=said
        )
    if report is not None:
        page.write(report, compared, found, alone=[spark])
    yield from rows(compared, found)
    for what, value in _speeds([spark], found):
        yield Row(what=what, value=value, unit="events/CPU-s")


def measure(
    brokers: str,
    topics: Sequence[str],
    folder: Path,
    compared: Sequence[Contender],
    *,
    alone: Sequence[Contender] = (),
    sizes: Sizes,
    said: Callable[[str], None] = print,
) -> Found:
    """``topics``: one that is sent to all the time, and one for the aggregates. ``alone``: who
    cannot share partitions, and aggregates only."""
    found = Found(sizes=sizes)
    stage = Stage(
        brokers=brokers,
        topic=topics[0],
        partitions=sizes.partitions,
        folder=folder,
        commit_s=sizes.commit_s,
        still_s=sizes.still_s,
    )
    with stage.sending(sizes.send_s):
        said("two at a time: members come and go")
        with ThreadPoolExecutor(LANES) as lanes:
            jobs = {
                each.name: lanes.submit(scenes.planned, stage, each, sizes.members, sizes.calm_s)
                for each in compared
            }
            found.planned.update((name, job.result()) for name, job in jobs.items())
        said("all: members are killed")
        found.killed.update(scenes.killing(stage, compared, sizes.killed_of, sizes.kills))
    work = throughput.Workload(
        brokers=brokers,
        topic=topics[1],
        partitions=sizes.partitions,
        events=sizes.events,
        folder=folder,
    )
    said("all: aggregates")
    expected = throughput.fill(work)
    for _ in range(sizes.tries):  # in turns; the best of each counts
        for each in [*_once(compared), *alone]:
            speed = throughput.events_per_cpu_s(work, each, expected)
            _keep_best(found.events_per_cpu_s, each, speed)
            if not each.packages and each not in alone:
                speed = throughput.events_per_cpu_s(work, each, expected, columns=True)
                _keep_best(found.columns_per_cpu_s, each, speed)
    return found


def rows(compared: Sequence[Contender], found: Found) -> Iterator[Row]:
    for each in compared:
        planned, killed = found.planned[each.name], found.killed[each.name]
        yield Row(
            what=f"{each.name}: failover after SIGKILL, median of {len(killed.waits_s)}",
            value=killed.median_s,
            unit="s",
        )
        yield Row(
            what=f"{each.name}: events twice per kill",
            value=sum(killed.twice) / len(killed.twice),
            unit="events",
        )
        for change, before in zip(planned.changes, found.sizes.members, strict=False):
            what = f"{each.name}: {before} → {change.members}"
            yield Row(what=f"{what}, longest pause", value=change.pause_s, unit="s")
            yield Row(what=f"{what}, events twice", value=change.twice, unit="events")
            yield Row(what=f"{what}, moves", value=change.moves, unit="", target=change.fewest)
            yield Row(what=f"{what}, spread", value=change.spread, unit="", target=1)
        yield Row(what=f"{each.name}: events lost", value=planned.never + killed.never, unit="")
        for what, value in _speeds([each], found):
            yield Row(what=what, value=value, unit="events/CPU-s")


def _speeds(of: Sequence[Contender], found: Found) -> Iterator[tuple[str, float]]:
    for each in of:
        if (speed := found.events_per_cpu_s.get(each.name)) is not None:
            yield f"{each.name}: aggregates", speed
        if (speed := found.columns_per_cpu_s.get(each.name)) is not None:
            yield f"{each.name}: aggregates by column", speed


def _keep_best(best: dict[str, float], of: Contender, speed: float) -> None:
    best[of.name] = max(speed, best.get(of.name, 0.0))


def _once(compared: Sequence[Contender]) -> list[Contender]:
    """One of each program: how members find each other changes nothing for one alone."""
    firsts: dict[str, Contender] = {}
    for each in compared:
        firsts.setdefault(each.program, each)
    return list(firsts.values())


def _scheme(url: str) -> str:
    return url.partition(":")[0]
