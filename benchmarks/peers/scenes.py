"""What happens to each group, and what the judge makes of it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.peers import judge
from benchmarks.peers.contenders import Contender
from benchmarks.peers.stage import PeerGroup, Stage

AFTER_S = 3.0
"""How long a plot goes on when all is over."""
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """One planned change of the number of members."""

    members: int
    settled_s: float
    """Until the last partition had moved."""
    pause_s: float
    """The longest that a partition waited."""
    paused: int
    """How many partitions waited for a second or more."""
    twice: int
    moves: int
    fewest: int
    spread: int
    waiting: Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    changes: list[GroupChange]
    delays_s: list[float]
    """From sending to handling while nothing changes, in order of size."""
    never: int

    def delay_ms(self, part: float) -> float:
        return 1000 * self.delays_s[int(part * (len(self.delays_s) - 1))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    waits_s: list[float]
    """The longest of each kill."""
    twice: list[int]
    """Of each kill."""
    never: int
    waiting: Points
    """After the first kill."""

    @property
    def median_s(self) -> float:
        return statistics.median(self.waits_s)


def planned(stage: Stage, contender: Contender, sizes: Sequence[int], calm_s: float) -> Planned:
    """One group through these sizes, one after the other, and in the end calm for a while."""
    group = PeerGroup(stage, contender)
    try:
        began = group.start(sizes[0])
        group.settle(began)
        found = [_change(group, size) for size in sizes[1:]]
        since = time.monotonic()
        time.sleep(calm_s)
        until = time.monotonic() - 1.0  # by then, what was sent until then is handled
        handled = group.handled()
        return Planned(
            changes=found,
            delays_s=judge.delays(handled, dict(stage.sent), since, until),
            never=judge.never(handled, group.starts),
        )
    finally:
        group.kill_all()


def _change(group: PeerGroup, size: int) -> GroupChange:
    now = time.monotonic()
    before = judge.owners(group.handled(), now - 1.5, now)
    more = size - len(group.members)
    at = group.start(more) if more > 0 else group.stop(-more)
    over = group.settle(at)
    handled, until = group.handled(), over + AFTER_S
    paused = judge.pauses(handled, at, over)
    after = judge.owners(handled, over - 1.0, until)
    return GroupChange(
        members=size,
        settled_s=over - at,
        pause_s=max(paused.values()),
        paused=sum(each >= judge.PAUSE_S for each in paused.values()),
        twice=judge.twice(handled, at, until),
        moves=len(judge.changes(handled, at, until)),
        fewest=judge.fewest_moves(before, group.members),
        spread=judge.spread(after, group.members),
        waiting=list(judge.waiting(handled, at - 1.0, until)),
    )


def killing(
    stage: Stage, contenders: Sequence[Contender], members: int, kills: int | None = None
) -> dict[str, Killed]:
    """All groups at the same time, for most of it is waiting."""
    with ThreadPoolExecutor(len(contenders)) as threads:
        jobs = {
            each.name: threads.submit(_kills, stage, each, members, kills or each.kills, seed)
            for seed, each in enumerate(contenders)
        }
        return {name: job.result() for name, job in jobs.items()}


def _kills(stage: Stage, contender: Contender, members: int, kills: int, seed: int) -> Killed:
    chance, group = random.Random(seed), PeerGroup(stage, contender)
    waits: list[float] = []
    twice: list[int] = []
    waiting: Points = []
    try:
        at = group.start(members)
        for number in range(kills):
            group.settle(at)
            # At any moment between two commits.
            time.sleep(chance.uniform(0.0, stage.commit_s))
            at = group.kill(victim := chance.choice(group.members))
            owned = judge.failover(group.handled(), victim, at)
            group.await_all_of(owned, at)
            time.sleep(3.0)  # what comes twice comes first
            handled = group.handled()
            waits.append(max(judge.failover(handled, victim, at).values()))
            twice.append(judge.twice(handled, at))
            if number == 0:
                waiting = list(judge.waiting(handled, at - 1.0, time.monotonic()))
            if number + 1 < kills:
                at = group.start()
        never = judge.never(group.handled(), group.starts)
    finally:
        group.kill_all()
    return Killed(waits_s=waits, twice=twice, never=never, waiting=waiting)
