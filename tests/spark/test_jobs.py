"""Which ranges become one job, and who is told of a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasehold.clock import SystemClock
from leasehold.core.ranges import Range
from leasehold.errors import SinkUnavailable
from leasehold.processor.threads import Threads
from leasehold.spark.jobs import Jobs, NotAsPlanned

Ran = list[tuple[Range, ...]]


def part(partition: str, first: int, end: int) -> Range:
    return Range(partition=partition, first=first, end=end)


def run(
    job: Callable[[Sequence[Range]], None],
    wanted: Sequence[Range],
    *,
    alone: Sequence[str] = (),
    max_events: int = 1_000_000,
) -> tuple[Ran, dict[str, Any]]:
    """All asked for in the same moment; what ran, and how each ended."""
    ran: Ran = []

    def recorded(ranges: Sequence[Range]) -> None:
        ran.append(tuple(ranges))
        job(ranges)

    async def main() -> list[Any]:
        jobs = Jobs(
            recorded,
            threads=Threads("test"),
            clock=SystemClock(),
            gather_s=0.01,
            max_events=max_events,
        )
        asked = [jobs.handle(each, alone=each.partition in alone) for each in wanted]
        return await asyncio.gather(*asked, return_exceptions=True)

    ended = asyncio.run(main())
    return ran, {each.partition: end for each, end in zip(wanted, ended, strict=True)}


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


def test_a_partition_that_failed_before_is_kept_apart() -> None:
    ran, _ = run(lambda ranges: None, [part("0", 0, 5), part("1", 3, 9)], alone=["0"])
    assert ran == [(part("1", 3, 9),), (part("0", 0, 5),)]


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
            raise NotAsPlanned("some of it", begin)

    ran, ended = run(job, [part("0", 0, 5), part("1", 3, 9)])
    assert ran[-1] == (part("0", 3, 5),)
    assert set(ended.values()) == {None}


def test_a_lost_partition_is_void_and_the_others_are_done() -> None:
    def job(ranges: Sequence[Range]) -> None:
        if any(each.partition == "1" for each in ranges):
            raise NotAsPlanned("lost", {"1": None})

    ran, ended = run(job, [part("0", 0, 5), part("1", 3, 9)])
    assert ran[-1] == (part("0", 0, 5),)
    assert ended["0"] is None
    assert isinstance(ended["1"], SinkUnavailable), "its pump must not take it for handled"


def test_a_sink_that_asks_for_the_same_again_does_not_spin() -> None:
    def job(ranges: Sequence[Range]) -> None:
        raise NotAsPlanned("as it is", {"0": 0})

    _, ended = run(job, [part("0", 0, 5)])
    assert isinstance(ended["0"], NotAsPlanned)


@pytest.mark.parametrize(
    ("max_events", "sizes"), [(100, [3]), (10, [2, 1]), (5, [1, 1, 1]), (1, [1, 1, 1])]
)
def test_no_job_takes_more_than_max_events(max_events: int, sizes: list[int]) -> None:
    wanted = [part(str(i), 0, 5) for i in range(3)]
    ran, _ = run(lambda ranges: None, wanted, max_events=max_events)
    assert [len(ranges) for ranges in ran] == sizes
