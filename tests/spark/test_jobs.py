"""Which ranges become one job, and who is told of a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.at_once import AtOnce

from leasehold.clock import SystemClock
from leasehold.core.ranges import Range, there
from leasehold.errors import BadInput, SinkUnavailable, StaleBatch
from leasehold.processor.handlers import NotHandled
from leasehold.processor.threads import HandlerThreads
from leasehold.spark.jobs import Jobs, Overdue, SparkJob
from leasehold.spark.pacer import Pacer
from leasehold.testing.sim_time import SimClock, run_virtual

Ran = list[tuple[Range, ...]]


def part(partition: str, first: int, end: int) -> Range:
    return Range(partition=partition, first=first, end=end)


def run(
    job: Callable[[Sequence[Range]], Any],
    wanted: Sequence[Range],
    *,
    alone: Sequence[str] = (),
    max_events: int = 1_000_000,
    **more: Any,
) -> tuple[Ran, dict[str, Any]]:
    """All asked for in the same moment; what ran, and how each ended: None if all of it is done."""
    ran: Ran = []

    def recorded(made: SparkJob) -> Any:
        ran.append(made.ranges)
        return job(made.ranges) or {}

    async def main() -> list[Any]:
        jobs = Jobs(
            recorded,
            threads=HandlerThreads("test"),
            clock=SystemClock(),
            gather_s=0.01,
            pacer=Pacer(target_s=2.0, max_events=max_events, overlap=False),
            watch=lambda running, job: running,
            **more,
        )
        asked = [jobs.handle(each, alone=each.partition in alone) for each in wanted]
        return await asyncio.gather(*asked, return_exceptions=True)

    ended = asyncio.run(main())
    done = {each.partition: each.end for each in wanted}
    return ran, {
        each.partition: None if end == done[each.partition] else end
        for each, end in zip(wanted, ended, strict=True)
    }


def test_ranges_of_one_moment_become_one_job() -> None:
    wanted = [part("0", 0, 5), part("1", 3, 9)]
    ran, ended = run(lambda ranges: None, wanted)
    assert ran == [tuple(wanted)]
    assert ended == {"0": None, "1": None}


def test_a_job_that_fails_once_is_tried_again_as_a_whole() -> None:
    failures = iter([RuntimeError("once")])

    def job(ranges: Sequence[Range]) -> None:
        for error in failures:
            raise error

    ran, ended = run(job, [part("0", 0, 5), part("1", 3, 9)])
    assert len(ran) == 2
    assert ran[0] == ran[1]
    assert set(ended.values()) == {None}


def test_only_the_failing_partition_is_told_of_a_failure() -> None:
    def job(ranges: Sequence[Range]) -> None:
        if any(each.partition == "1" for each in ranges):
            raise ValueError("poison")

    ran, ended = run(job, [part("0", 0, 5), part("1", 3, 9), part("2", 0, 1)])
    assert ended["0"] is None
    assert ended["2"] is None
    assert isinstance(ended["1"], ValueError)
    assert [len(ranges) for ranges in ran] == [3, 3, 1, 1, 1]


@pytest.mark.parametrize("failed", ["0", "1"])
def test_a_partition_that_failed_before_is_kept_apart(failed: str) -> None:
    ran, _ = run(lambda ranges: None, [part("0", 0, 5), part("1", 3, 9)], alone=[failed])
    assert ran == [(part("0", 0, 5),), (part("1", 3, 9),)]


def test_a_sink_that_is_down_is_told_to_all_and_nobody_is_suspected() -> None:
    def job(ranges: Sequence[Range]) -> None:
        raise SinkUnavailable("down")

    ran, ended = run(job, [part("0", 0, 5), part("1", 3, 9)])
    assert len(ran) == 1
    assert all(isinstance(end, SinkUnavailable) for end in ended.values())


def test_what_the_sink_has_already_is_left_out() -> None:
    has: dict[str, int | None] = {"0": 3, "1": 9}

    def job(ranges: Sequence[Range]) -> None:
        begin = {each.partition: has[each.partition] for each in ranges}
        if any(has[each.partition] != each.first for each in ranges):
            raise StaleBatch("some of it", begin)

    ran, ended = run(job, [part("0", 0, 5), part("1", 3, 9)])
    assert ran[-1] == (part("0", 3, 5),)
    assert set(ended.values()) == {None}


class TwoSinks:
    """Written to one after the other, each exact by its own marks. Some calls end between them."""

    def __init__(self, marks: Sequence[Mapping[str, int]], failures: Sequence[bool]) -> None:
        self.marks = [dict(each) for each in marks]
        self.rows: list[list[tuple[str, int]]] = [[], []]
        self.failures = iter(failures)

    def __call__(self, ranges: Sequence[Range]) -> None:
        for sink in (0, 1):
            if sink and next(self.failures, False):
                raise SinkUnavailable("the second one is gone")
            self.write(sink, ranges)

    def write(self, sink: int, ranges: Sequence[Range]) -> None:
        marks = self.marks[sink]
        stale = {
            p: at
            for p, first, at in (
                (each.partition, each.first, marks[each.partition]) for each in ranges
            )
            if at > first
        }
        if there(ranges, stale) == list(ranges):
            return
        if stale:
            raise StaleBatch("some of it", stale)
        for each in ranges:
            assert marks[each.partition] == each.first, "nothing is left out"
            self.rows[sink] += [(each.partition, n) for n in range(each.first, each.end)]
            marks[each.partition] = each.end


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3),
    st.lists(st.booleans(), max_size=4),
)
def test_of_several_sinks_each_gets_what_it_does_not_have(
    had: list[tuple[int, int]], failures: list[bool]
) -> None:
    """Whatever each has from before a crash."""
    names = [str(number) for number in range(len(had))]
    marks = [{name: pair[sink] for name, pair in zip(names, had, strict=True)} for sink in (0, 1)]
    sinks = TwoSinks(marks, failures)
    wanted = [part(name, min(pair), 6) for name, pair in zip(names, had, strict=True)]
    wanted = [each for each in wanted if len(each)]
    left = wanted
    for _ in range(len(failures) + 1):  # as pumps do
        _, ended = run(sinks, left)
        left = [each for each in left if ended[each.partition] is not None]
    assert not left
    for sink in (0, 1):
        expected = [
            (each.partition, n) for each in wanted for n in range(marks[sink][each.partition], 6)
        ]
        assert sorted(sinks.rows[sink]) == expected


def test_what_is_void_in_the_first_of_two_jobs_is_not_done_in_the_second() -> None:
    """It would leave a gap."""
    why = SinkUnavailable("the second sink waits for a rewind")

    def job(ranges: Sequence[Range]) -> Any:
        (each,) = ranges
        if each.first < 3 < each.end:
            raise StaleBatch("some of it", {"0": 3})
        return {"0": why} if each.end <= 3 else {}

    ran, ended = run(job, [part("0", 0, 5)])
    assert ran == [(part("0", 0, 5),), (part("0", 0, 3),)]
    assert ended == {"0": why}


def test_a_lost_partition_is_void_and_the_others_are_done() -> None:
    def job(ranges: Sequence[Range]) -> None:
        if any(each.partition == "1" for each in ranges):
            raise StaleBatch("lost", {"1": None})

    ran, ended = run(job, [part("0", 0, 5), part("1", 3, 9)])
    assert ran[-1] == (part("0", 0, 5),)
    assert ended["0"] is None
    assert isinstance(ended["1"], SinkUnavailable), "its pump must not take it for handled"


def test_a_partition_that_has_to_wait_is_told_why_and_keeps_no_other_waiting() -> None:
    why = SinkUnavailable("a rewind of it is not finished")

    def job(ranges: Sequence[Range]) -> None:
        if any(each.partition == "1" for each in ranges):
            raise StaleBatch("not all of it", {"1": why})

    _, ended = run(job, [part("0", 0, 5), part("1", 3, 9)])
    assert ended == {"0": None, "1": why}


def test_a_sink_that_asks_for_the_same_again_does_not_spin() -> None:
    def job(ranges: Sequence[Range]) -> None:
        raise StaleBatch("as it is", {"0": 0})

    _, ended = run(job, [part("0", 0, 5)])
    assert isinstance(ended["0"], StaleBatch)


@pytest.mark.parametrize(
    ("max_events", "sizes"), [(100, [3]), (10, [2, 1]), (5, [1, 1, 1]), (3, [1, 1, 1])]
)
def test_no_job_takes_more_than_max_events(max_events: int, sizes: list[int]) -> None:
    wanted = [part(str(i), 0, 5) for i in range(3)]
    ran, _ = run(lambda ranges: None, wanted, max_events=max_events)
    assert [len(ranges) for ranges in ran] == sizes


def test_what_a_job_left_out_is_void_and_the_others_are_done() -> None:
    why = SinkUnavailable("it is elsewhere by now")
    out = {"1": None, "2": why}
    ran, ended = run(lambda ranges: out, [part("0", 0, 5), part("1", 3, 9), part("2", 0, 1)])
    assert len(ran) == 1, "no work is done twice"
    assert ended["0"] is None
    assert isinstance(ended["1"], SinkUnavailable), "its pump must not take it for handled"
    assert ended["2"] is why


def test_a_partition_that_has_to_go_waits_for_no_job() -> None:
    wanted = [part("0", 0, 5), part("1", 3, 9)]
    ran, ended = run(lambda ranges: None, wanted, wants=lambda partition: partition != "1")
    assert ran == [(part("0", 0, 5),)]
    assert ended["0"] is None
    assert isinstance(ended["1"], NotHandled)


def test_during_a_stop_no_job_is_begun() -> None:
    stopping: list[bool] = []

    def first(ranges: Sequence[Range]) -> None:
        stopping.append(True)

    ran, ended = run(
        first,
        [part("0", 0, 5), part("1", 3, 9)],
        alone=["0", "1"],
        stopping=lambda: bool(stopping),
        wants=lambda partition: not stopping,
    )
    assert len(ran) == 1
    assert ended["0"] is None
    assert isinstance(ended["1"], NotHandled)


class Slow:
    """Jobs that take as long as they are told to."""

    def __init__(self) -> None:
        self.begun: dict[str, threading.Event] = {}
        self.end: dict[str, threading.Event] = {}
        for each in "0123":
            self.begun[each], self.end[each] = threading.Event(), threading.Event()

    def __call__(self, job: SparkJob) -> Any:
        for each in job.ranges:
            self.begun[each.partition].set()
        for each in job.ranges:
            assert self.end[each.partition].wait(60)
        return {}


def jobs_of(slow: Slow, pacer: Pacer) -> Jobs:
    return Jobs(
        slow,
        threads=HandlerThreads("test"),
        clock=SystemClock(),
        gather_s=0.01,
        pacer=pacer,
        watch=lambda running, job: running,
    )


def test_in_a_backlog_the_next_job_begins_before_the_last_one_has_ended() -> None:
    slow, pacer = Slow(), Pacer(target_s=0.05, max_events=10, overlap=True)

    async def main() -> None:
        jobs = jobs_of(slow, pacer)
        asked = [
            asyncio.ensure_future(jobs.handle(part(each, 0, 5), alone=False)) for each in "0123"
        ]
        for each in "123":
            assert await asyncio.to_thread(slow.begun[each].wait, 60)
        again = asyncio.ensure_future(jobs.handle(part("0", 5, 6), alone=False))
        await asyncio.sleep(0.3)
        assert len(jobs._waiting) == 1, "no third job at the same time"
        for each in "0123":
            slow.end[each].set()
        await asyncio.gather(*asked, again)

    asyncio.run(main())


def test_in_a_backlog_jobs_that_are_quick_follow_each_other_without_a_gap() -> None:
    """While cycles are still growing, each is far from the target."""
    slow, pacer = Slow(), Pacer(target_s=3600.0, max_events=10, overlap=True)
    pacer.ended(10, 0.01)

    async def main() -> None:
        jobs = jobs_of(slow, pacer)
        asked = [
            asyncio.ensure_future(jobs.handle(part(each, 0, 5), alone=False)) for each in "0123"
        ]
        assert await asyncio.to_thread(slow.begun["2"].wait, 60)
        for each in "0123":
            slow.end[each].set()
        await asyncio.gather(*asked)

    asyncio.run(main())


def test_a_job_that_is_quick_is_not_overtaken() -> None:
    """What comes meanwhile waits, and becomes one job rather than several small ones."""
    slow, pacer = Slow(), Pacer(target_s=3600.0, max_events=10, overlap=True)
    pacer.ended(10, 0.01)

    async def main() -> None:
        jobs = jobs_of(slow, pacer)
        first = asyncio.ensure_future(jobs.handle(part("0", 0, 4), alone=False))
        assert await asyncio.to_thread(slow.begun["0"].wait, 60)
        rest = [asyncio.ensure_future(jobs.handle(part(each, 0, 1), alone=False)) for each in "12"]
        await asyncio.sleep(0.3)
        assert not slow.begun["1"].is_set()
        for each in "012":
            slow.end[each].set()
        await asyncio.gather(first, *rest)
        assert next(jobs._numbers) == 3

    asyncio.run(main())


class Slower(Pacer):
    """After its first job, a quarter as quick."""

    def ended(self, events: int, seconds: float, **more: Any) -> None:
        if events == 20:
            super().ended(20, 4 * self.target_s)


def test_what_was_claimed_before_jobs_became_slow_is_done_in_smaller_jobs() -> None:
    sizes: list[int] = []

    async def main() -> None:
        jobs = Jobs(
            lambda job: sizes.append(len(job.ranges)) or {},
            threads=HandlerThreads("test"),
            clock=SystemClock(),
            gather_s=0.01,
            pacer=Slower(target_s=2.0, max_events=20, overlap=False),
            watch=lambda running, job: running,
        )
        wanted = [part(str(i), 0, 5) for i in range(8)]
        await asyncio.gather(*(jobs.handle(each, alone=False) for each in wanted))

    asyncio.run(main())
    assert sizes == [4, 1, 1, 1, 1]


def test_a_range_that_is_far_more_than_a_job_may_have_is_cut() -> None:
    wanted = [part("0", 7, 107), part("1", 0, 30), part("2", 0, 41)]
    ran, ended = run(lambda ranges: None, wanted, max_events=20)
    assert ran == [(part("0", 7, 27),), (part("1", 0, 30),), (part("2", 0, 20),)]
    assert ended == {"0": 27, "1": None, "2": 20}, "each is told how far it was done"


def test_what_failed_before_is_not_cut() -> None:
    """Which events of it are to blame is searched for in all of it."""
    ran, _ = run(lambda ranges: None, [part("0", 0, 100)], alone=["0"], max_events=20)
    assert ran == [(part("0", 0, 100),)]


def test_an_overdue_job_blames_nobody_and_makes_the_next_ones_smaller() -> None:
    pacer = Pacer(target_s=2.0, max_events=1_000, overlap=False)
    pacer.ended(1_000, 1.0)
    limits: list[float] = []

    async def main() -> list[Any]:
        def watch(running: Any, job: SparkJob) -> Any:
            limits.append(job.overdue_s)
            if len(limits) == 1:
                raise Overdue("too long")
            return running

        jobs = Jobs(
            lambda job: {},
            threads=HandlerThreads("test"),
            clock=SystemClock(),
            gather_s=0.01,
            pacer=pacer,
            watch=watch,
        )
        asked = [jobs.handle(part(each, 0, 400), alone=False) for each in "01"]
        first = await asyncio.gather(*asked, return_exceptions=True)
        return [*first, await jobs.handle(part("0", 0, 800), alone=False)]

    one, two, end = asyncio.run(main())
    assert isinstance(one, NotHandled)
    assert isinstance(two, NotHandled)
    assert end == 200, "800 events within 0 s, of which it may be a quarter of the target"
    assert limits == [6.0, 60.0]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("alone", "tries"), [(True, 4), (False, 30)])
def test_a_partition_that_is_slow_is_done_although_the_others_are_quick(
    overlap: bool, alone: bool, tries: int
) -> None:
    """Whole or cut, each of its jobs takes more than three times the target."""
    slow: list[bool] = []
    clock = SimClock()

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        needs_s = max(20.0 if each.partition == "slow" else 0.5 for each in job.ranges)
        await clock.sleep(min(needs_s, job.overdue_s))
        if needs_s == 20.0:
            slow.append(job.overdue_s >= needs_s)
        if job.overdue_s < needs_s:
            raise Overdue("too long")
        return await running

    async def again(jobs: Jobs, *claims: Range, alone: bool) -> None:
        for claim in claims:
            at = claim.first
            while at < claim.end:
                with suppress(NotHandled):
                    at = await jobs.handle(replace(claim, first=at), alone=alone)

    async def main() -> None:
        pacer = Pacer(target_s=2.0, max_events=1_000, overlap=overlap)
        jobs = Jobs(
            lambda job: {},
            threads=AtOnce(),
            clock=clock,
            gather_s=0.05,
            pacer=pacer,
            watch=watch,
        )
        quick_ones = [part("quick", at, at + 1) for at in range(1_000)]
        quick = asyncio.ensure_future(again(jobs, *quick_ones, alone=False))
        await clock.sleep(10)
        done = asyncio.ensure_future(again(jobs, part("slow", 0, 20), alone=alone))
        while not done.done() and len(slow) < tries:
            await clock.sleep(1)
        assert done.done(), f"{slow.count(True)} of {len(slow)} of its jobs were done"
        quick.cancel()

    run_virtual(main())


@pytest.mark.parametrize("every", [2, 3, 8])
def test_jobs_that_are_slow_now_and_then_whatever_their_size_do_not_shrink_to_nothing(
    every: int,
) -> None:
    """As if a user's ``on_batch`` tidied up in every second one."""
    clock, sizes, cancelled = SimClock(), list[int](), list[int]()

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        sizes.append(job.events)
        needs_s = 0.2 + 1e-6 * job.events + (7.0 if len(sizes) % every == 0 else 0.0)
        await clock.sleep(min(needs_s, job.overdue_s))
        if job.overdue_s < needs_s:
            cancelled.append(len(sizes))
            raise Overdue("too long")
        return await running

    async def main() -> None:
        jobs = Jobs(
            lambda job: {},
            threads=AtOnce(),
            clock=clock,
            gather_s=0.05,
            pacer=Pacer(target_s=2.0, max_events=10_000_000, overlap=False),
            watch=watch,
        )
        at = 0
        while len(sizes) < 300:
            with suppress(NotHandled):
                at = await jobs.handle(part("0", at, at + 10_000_000), alone=False)

    run_virtual(main())
    assert len(cancelled) <= 3
    assert min(sizes[100:]) > 100_000


def test_jobs_that_hang_now_and_then_do_not_hold_up_for_longer_and_longer() -> None:
    """Until they are cancelled, as with a connection that is lost without a word."""
    clock, waited = SimClock(), list[float]()
    count = 0

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        nonlocal count
        count += 1
        if count % 10 == 0:
            waited.append(job.overdue_s)
            await clock.sleep(job.overdue_s)
            raise Overdue("too long")
        await clock.sleep(0.2 + 1e-6 * job.events)
        return await running

    async def main() -> None:
        jobs = Jobs(
            lambda job: {},
            threads=AtOnce(),
            clock=clock,
            gather_s=0.05,
            pacer=Pacer(target_s=2.0, max_events=10_000_000, overlap=False),
            watch=watch,
        )
        at = 0
        while count < 200:
            with suppress(NotHandled):
                at = await jobs.handle(part("0", at, at + 10_000_000), alone=False)

    run_virtual(main())
    assert len(waited) == 20
    assert max(waited) <= 100


def test_a_job_that_is_full_waits_for_no_others() -> None:
    async def main() -> None:
        clock = SimClock()
        jobs = Jobs(
            lambda job: {},
            threads=AtOnce(),
            clock=clock,
            gather_s=60.0,
            pacer=Pacer(target_s=2.0, max_events=10, overlap=False),
            watch=lambda running, job: running,
        )
        began = clock.monotonic()
        # A third of 10 each, as far as whole events go.
        await asyncio.gather(*(jobs.handle(part(each, 0, 3), alone=False) for each in "012"))
        assert clock.monotonic() == began
        await jobs.handle(part("0", 3, 6), alone=False)
        assert clock.monotonic() == began + 60.0, "what is small does"

    run_virtual(main())


def test_shares_that_were_rounded_up_are_one_job() -> None:
    wanted = [part(each, 0, 334) for each in "012"]
    ran, _ = run(lambda ranges: None, wanted, max_events=1_000)
    assert ran == [tuple(wanted)]


def test_jobs_of_few_events_each_still_have_all_partitions() -> None:
    """One that begins without the last of them leaves it a job of its own, again and again."""
    sizes: list[int] = []

    async def main() -> None:
        clock = SimClock()

        async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
            sizes.append(len(job.ranges))
            await clock.sleep(0.1)
            return await running

        jobs = Jobs(
            lambda job: {},
            threads=AtOnce(),
            clock=clock,
            gather_s=0.05,
            pacer=Pacer(target_s=2.0, max_events=64, overlap=False),
            watch=watch,
        )

        async def pump(number: int) -> None:
            for at in range(0, 40, 4):
                await clock.sleep(0.001 * (number + 1))
                await jobs.handle(part(str(number), at, at + 4), alone=False)

        await asyncio.gather(*(pump(number) for number in range(16)))

    run_virtual(main())
    assert sizes == [16] * 10


class OneCore:
    """Jobs take turns on it. From its beginning to its first task each takes a while."""

    ahead_s, fixed_s = 0.2, 0.05

    def __init__(self, clock: SimClock, rate: float) -> None:
        self.clock, self.rate = clock, rate
        self.free_at = self.began_at = clock.monotonic()
        self.idle_s: list[float] = []

    async def __call__(self, running: asyncio.Future[Any], job: SparkJob) -> Any:
        begins_at = max(self.clock.monotonic() + self.ahead_s, self.free_at)
        self.idle_s.append(begins_at - self.free_at)
        self.free_at = begins_at + self.fixed_s + job.events / self.rate
        await self.clock.sleep(self.free_at - self.clock.monotonic())
        return await running


@pytest.mark.parametrize("rate", [1e6, 3e6, 1e7])
def test_in_a_backlog_spark_waits_for_the_first_two_jobs_and_hardly_for_any_other(
    rate: float,
) -> None:
    async def main() -> OneCore:
        clock = SimClock()
        spark = OneCore(clock, rate)
        pacer = Pacer(target_s=2.0, max_events=1 << 40, overlap=True)
        jobs = Jobs(
            lambda job: {}, threads=AtOnce(), clock=clock, gather_s=0.05, pacer=pacer, watch=spark
        )

        async def pump(partition: str) -> None:
            at = 0
            while clock.monotonic() < spark.began_at + 60:
                wanted = part(partition, at, at + pacer.claim_events // 16)
                at = await jobs.handle(wanted, alone=False)

        await asyncio.gather(*(pump(str(each)) for each in range(16)))
        return spark

    spark = run_virtual(main())
    assert len(spark.idle_s) > 20
    assert sum(spark.idle_s) < 2.8 * spark.ahead_s


@pytest.mark.parametrize("costly", [1, 2])
@pytest.mark.parametrize("times", [100, 1_000, 10_000])
def test_a_partition_whose_events_cost_far_more_has_jobs_of_its_own(
    costly: int, times: int
) -> None:
    """Or it would be tried again and again as large as the quick ones allow."""
    clock, longest_s, overdue = SimClock(), 0.0, 0
    done: dict[str, int] = {str(number): 0 for number in range(16)}
    at: dict[str, list[float]] = {name: [0.0] for name in done}

    def seconds(each: Range) -> float:
        return len(each) * (times if int(each.partition) < costly else 1) / 1e6

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        nonlocal longest_s, overdue
        needs_s = 0.1 + sum(map(seconds, job.ranges))
        longest_s = max(longest_s, min(needs_s, job.overdue_s))
        await clock.sleep(min(needs_s, job.overdue_s))
        if job.overdue_s < needs_s:
            overdue += 1
            raise Overdue("too long")
        return await running

    async def main() -> None:
        pacer = Pacer(target_s=2.0, max_events=4_000_000, overlap=True)
        jobs = Jobs(
            lambda job: {}, threads=AtOnce(), clock=clock, gather_s=0.05, pacer=pacer, watch=watch
        )
        began = clock.monotonic()

        async def pump(name: str) -> None:
            while clock.monotonic() < began + 600:
                wanted = part(name, done[name], done[name] + max(1, pacer.claim_events // 16))
                with suppress(NotHandled):
                    done[name] = await jobs.handle(wanted, alone=False)
                    at[name].append(clock.monotonic() - began)

        await asyncio.gather(*map(pump, done))

    run_virtual(main())
    assert overdue <= 4
    assert longest_s <= 36.0
    assert max(b - a for each in at.values() for a, b in pairwise(each)) <= 60
    for number in range(16):
        alone = 600e6 / (times if number < costly else 1)
        assert done[str(number)] > alone / 100, f"partition {number}"


@pytest.mark.parametrize("cold", [True, False])
def test_jobs_that_hang_one_after_the_other_are_not_waited_for_without_end(cold: bool) -> None:
    clock, limits = SimClock(), list[float]()
    hang = range(1, 4) if cold else range(20, 23)
    count = 0

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        nonlocal count
        count += 1
        if count in hang:
            limits.append(job.overdue_s)
            await clock.sleep(job.overdue_s)
            raise Overdue("too long")
        await clock.sleep(0.2 + 1e-6 * job.events)
        return await running

    async def main() -> None:
        jobs = Jobs(
            lambda job: {},
            threads=AtOnce(),
            clock=clock,
            gather_s=0.05,
            pacer=Pacer(target_s=2.0, max_events=10_000_000, overlap=False),
            watch=watch,
        )
        at = 0
        while count < 40:
            with suppress(NotHandled):
                at = await jobs.handle(part("0", at, at + 10_000_000), alone=False)

    run_virtual(main())
    assert limits == ([60.0, 120.0, 240.0] if cold else [6.0, 60.0, 120.0])


def on_virtual_time(job: Callable[[Sequence[Range]], Any], count: int, **more: Any) -> list[Any]:
    """So many partitions ask for a job in the same moment: how each ended."""

    async def main() -> list[Any]:
        jobs = Jobs(
            lambda made: job(made.ranges) or {},
            threads=AtOnce(),
            gather_s=0.01,
            pacer=Pacer(target_s=2.0, max_events=1_000_000, overlap=False),
            **({"clock": SimClock(), "watch": lambda running, job: running} | more),
        )
        asked = [jobs.handle(part(str(each), 0, 5), alone=False) for each in range(count)]
        together = asyncio.gather(*asked, return_exceptions=True)
        return await asyncio.wait_for(together, timeout=3600)

    return run_virtual(main())


def test_during_a_stop_no_job_is_begun_after_one_that_failed() -> None:
    ran: list[Sequence[Range]] = []

    def job(ranges: Sequence[Range]) -> None:
        ran.append(ranges)  # and then a stop is asked for
        raise ValueError("a passing failure")

    ended = on_virtual_time(job, 16, stopping=lambda: bool(ran))
    assert len(ran) == 1
    assert all(isinstance(each, NotHandled) for each in ended)


def test_what_has_to_go_while_others_are_tried_again_is_in_no_further_job() -> None:
    clock, began = SimClock(), list[float]()

    def since() -> float:
        began.append(clock.monotonic())
        return began[-1] - began[0]

    def job(ranges: Sequence[Range]) -> None:
        names = {each.partition for each in ranges}
        assert "15" not in names or since() < 5.0, "its lease had to go at 5 s"
        if "0" in names:
            raise ValueError("poison")

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        await clock.sleep(2.0)
        return await running

    ended = on_virtual_time(
        job, 16, clock=clock, watch=watch, wants=lambda partition: partition != "15" or since() < 5
    )
    assert isinstance(ended[0], ValueError)
    assert ended[1:15] == [5] * 14
    assert isinstance(ended[15], NotHandled)


def test_a_sequence_of_numpy_is_one() -> None:
    ran: list[Sequence[Range]] = []

    def job(ranges: Sequence[Range]) -> None:
        ran.append(ranges)
        if len(ranges) == 3:
            raise StaleBatch("written already", {"0": np.int64(5)})

    assert on_virtual_time(job, 3) == [5, 5, 5]


def test_whatever_a_job_answers_everybody_is_told_something() -> None:
    ended = on_virtual_time(lambda ranges: {"1": "its target does not answer"}, 3)
    assert ended[0] == 5
    assert all(isinstance(each, BaseException) for each in ended[1:])


def test_a_stale_batch_says_what_it_takes() -> None:
    with pytest.raises(BadInput, match="for partition 7, not 'the end'"):
        StaleBatch("written already", {"7": "the end"})  # type: ignore[dict-item]


def test_a_partition_is_never_in_two_calls_even_if_the_first_was_given_up() -> None:
    """It waits for something other than Spark, and its lease comes back to the same instance."""
    end, at_work, most = threading.Event(), list[str](), 0
    given_up = asyncio.Event()

    def slow(job: SparkJob) -> Any:
        nonlocal most
        at_work.append(job.tag)
        most = max(most, len(at_work))
        end.wait(60)
        at_work.remove(job.tag)
        return {}

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        if not given_up.is_set():
            given_up.set()
            raise NotHandled("lost")
        return await running

    async def main() -> None:
        jobs = Jobs(
            slow,
            threads=HandlerThreads("test"),
            clock=SystemClock(),
            gather_s=0.01,
            pacer=Pacer(target_s=2.0, max_events=100, overlap=False),
            watch=watch,
        )
        with pytest.raises(NotHandled, match="lost"):
            await jobs.handle(part("0", 0, 5), alone=False)
        again = asyncio.ensure_future(jobs.handle(part("0", 0, 5), alone=False))
        other = asyncio.ensure_future(jobs.handle(part("1", 0, 5), alone=False))
        await asyncio.sleep(0.5)
        assert not again.done()
        end.set()
        assert await asyncio.gather(again, other) == [5, 5]

    asyncio.run(main())
    assert most == 2, "partition 1 did not wait"


def test_a_job_has_no_more_bytes_than_allowed() -> None:
    sizes = {"0": 10.0, "1": 1.0, "2": 200.0}

    def bytes_of(ranges: Sequence[Range]) -> float:
        return sum(len(each) * sizes[each.partition] for each in ranges)

    wanted = [part("0", 0, 5), part("1", 0, 50), part("2", 0, 5), part("1", 50, 60)]
    ran, ended = run(lambda ranges: None, wanted, max_bytes=100, bytes_of=bytes_of)
    assert ran == [
        (part("0", 0, 5), part("1", 0, 50)),
        (part("2", 0, 1),),  # one event at least
        (part("1", 50, 60),),
    ]
    assert ended["2"] == 1


@pytest.mark.parametrize("partitions", [1, 16])
@pytest.mark.parametrize(("before_s", "fixed_s"), [(0.2, 15.0), (0.2, 60.0), (150.0, 150.0)])
def test_jobs_that_all_become_slow_whatever_their_size_are_done(
    before_s: float, fixed_s: float, partitions: int
) -> None:
    """As where storage has become slow. Nothing but larger jobs would help."""
    clock, began, at_1000 = SimClock(), 0.0, 0
    done = dict.fromkeys(map(str, range(partitions)), 0)

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        slow = clock.monotonic() >= began + 60
        needs_s = (fixed_s if slow else before_s) + 1e-6 * job.events
        await clock.sleep(min(needs_s, job.overdue_s))
        if job.overdue_s < needs_s:
            raise Overdue("too long")
        return await running

    async def main() -> None:
        nonlocal began, at_1000
        pacer = Pacer(target_s=2.0, max_events=4_000_000, overlap=True)
        jobs = Jobs(
            lambda job: {}, threads=AtOnce(), clock=clock, gather_s=0.05, pacer=pacer, watch=watch
        )
        began = clock.monotonic()

        async def pump(name: str) -> None:
            while clock.monotonic() < began + 4_000:
                most = max(1, pacer.claim_events // partitions)
                with suppress(NotHandled):
                    wanted = part(name, done[name], done[name] + most)
                    done[name] = await jobs.handle(wanted, alone=False)

        pumps = asyncio.gather(*map(pump, done))
        await clock.sleep(1_000)
        at_1000 = sum(done.values())
        await pumps

    run_virtual(main())
    assert (sum(done.values()) - at_1000) / 3_000 > 5_000


def test_partitions_whose_jobs_hang_leave_room_for_the_others() -> None:
    clock, began, waited = SimClock(), 0.0, list[float]()

    async def watch(running: asyncio.Future[Any], job: SparkJob) -> Any:
        hangs = clock.monotonic() >= began + 60 and {"0", "1"} & {p.partition for p in job.ranges}
        await clock.sleep(job.overdue_s if hangs else 0.3)
        if hangs:
            raise Overdue("too long")
        return await running

    async def main() -> None:
        nonlocal began
        jobs = Jobs(
            lambda job: {},
            threads=AtOnce(),
            clock=clock,
            gather_s=0.05,
            pacer=Pacer(target_s=2.0, max_events=4_000_000, overlap=True),
            watch=watch,
        )
        began = clock.monotonic()

        async def pump(name: str) -> None:
            at = 0
            while clock.monotonic() < began + 3_600:
                asked = clock.monotonic()
                with suppress(NotHandled):
                    at = await jobs.handle(part(name, at, at + 60), alone=False)
                if name not in "01" and asked > began + 1_000:
                    waited.append(clock.monotonic() - asked)
                await clock.sleep(1)

        pumps = [asyncio.ensure_future(pump(str(each))) for each in range(16)]
        await asyncio.gather(*pumps[2:])
        for each in pumps[:2]:
            each.cancel()

    run_virtual(main())
    assert max(waited) < 10
