"""Pumps that wait for something to read: on virtual time, and on a real hub."""

import asyncio

import pytest
from support.blocking import result_of
from support.processing import (
    Seen,
    each,
    fill,
    make_hub,
    make_processor,
    open_leases,
    running,
    until,
)

from leasehold.core.model import Checkpoint
from leasehold.errors import FeedUnavailable
from leasehold.processor import news as module
from leasehold.processor.news import News
from leasehold.settings import Pace
from leasehold.testing.sim_time import SimClock, run_virtual
from leasehold.testing.sim_world import SimFeed

POLL_S = 0.5


class CountedFeed(SimFeed):
    def __init__(self, partitions):
        super().__init__(partitions)
        self.looks, self.trouble = 0, None

    async def ends(self):
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return await super().ends()


class Watchers:
    """All partitions of a feed, read to their ends."""

    def __init__(self, partitions=1000):
        self.feed = CountedFeed(partitions)
        self.news = News(self.feed, SimClock(), Pace(poll_interval_s=POLL_S))
        self.woken = []
        for partition in self.feed.leaves():
            self.watch(partition)

    def watch(self, partition):
        at = Checkpoint(next_sequence=self.feed.end[partition])
        return self.news.watch(partition, at, lambda: self.woken.append(partition))


def test_one_look_serves_all_that_wait_and_wakes_those_with_news_only():
    async def main():
        watchers = Watchers()
        await asyncio.sleep(10 * POLL_S + 0.1)
        assert (watchers.feed.looks, watchers.woken) == (10, [])
        watchers.feed.append("07", 1)
        watchers.feed.split("42")
        await asyncio.sleep(POLL_S)
        assert sorted(watchers.woken) == ["07", "42"]
        await asyncio.sleep(10 * POLL_S)
        assert len(watchers.woken) == 2  # once: they ask again when they have read
        watchers.news.close()

    run_virtual(main())


def test_nobody_is_looked_for_when_nobody_waits():
    async def main():
        watchers = Watchers(partitions=3)
        for partition in watchers.feed.leaves():
            watchers.news.forget(partition)
        await asyncio.sleep(10 * POLL_S)
        assert watchers.feed.looks <= 1
        watchers.watch("01")
        watchers.feed.append("01", 1)
        await asyncio.sleep(POLL_S + 0.1)
        assert watchers.woken == ["01"]

    run_virtual(main())


def test_a_look_that_fails_wakes_all_so_that_each_finds_out_and_tells():
    async def main():
        watchers = Watchers(partitions=3)
        watchers.feed.trouble = FeedUnavailable("the disk is gone")
        await asyncio.sleep(POLL_S + 0.1)
        assert sorted(watchers.woken) == ["00", "01", "02"]

    run_virtual(main())


def test_a_look_that_began_before_a_read_says_nothing_about_it():
    async def main():
        watchers = Watchers(partitions=2)
        ends = watchers.feed.ends

        async def slow():
            found = await ends()
            await asyncio.sleep(0.2)
            return found

        watchers.news._ends = slow
        await asyncio.sleep(POLL_S + 0.1)
        watchers.feed.append("00", 1)
        watchers.watch("00")  # it has read what came meanwhile
        await asyncio.sleep(0.2)
        assert watchers.woken == []
        watchers.news.close()

    run_virtual(main())


def test_without_ends_each_reads_again_after_the_poll_interval():
    class Silent:
        pass

    news = News(Silent(), SimClock, Pace(poll_interval_s=POLL_S))
    assert news.watch("0", Checkpoint(next_sequence=0), lambda: None) == POLL_S


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_idle_partitions_are_not_read_and_what_comes_is_handled(tmp_path, is_async):
    seen = Seen()

    async def on_loop(event):
        seen.event(event)

    async def main():
        hub = make_hub(tmp_path, partitions=40, events=1)
        handler = on_loop if is_async else seen.event
        async with running(make_processor(hub, open_leases(tmp_path), on_event=handler)):
            await until(lambda: seen.count == 40)
            await until(lambda: hub.requests["ends"] >= 5)
            looks, reads = hub.requests["ends"], hub.requests["read"]
            await until(lambda: hub.requests["ends"] >= looks + 10)
            assert hub.requests["read"] - reads < 10  # each look once was 40 reads
            fill(hub, 1, ["3", "17"])
            await until(lambda: seen.count == 42)
        return seen.by_partition

    assert asyncio.run(main()) == {**each(40, 1), "3": [0, 1], "17": [0, 1]}


def test_a_pump_reads_now_and_then_whatever_the_ends_say(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    seen, hub = Seen(), make_hub(tmp_path, partitions=2)
    stuck = result_of(hub.ends())

    async def ends():
        return stuck

    hub.ends = ends

    async def main():
        async with running(make_processor(hub, open_leases(tmp_path), on_event=seen.event)):
            await until(lambda: hub.requests["read"] >= 4)
            fill(hub, 3)
            await until(lambda: seen.count == 6)

    asyncio.run(main())


def test_the_same_answer_again_is_not_gone_through_again_but_by_those_who_came_since():
    async def main():
        watchers, compared = Watchers(partitions=3), []
        same = await SimFeed.ends(watchers.feed)

        class Answer(dict):
            def get(self, partition):
                compared.append(partition)
                return super().get(partition)

        answer = Answer(same)

        async def ends():
            return answer

        watchers.news._ends = ends
        await asyncio.sleep(4 * POLL_S + 0.1)
        assert sorted(compared) == ["00", "01", "02"]
        watchers.news.watch("01", Checkpoint(next_sequence=7), lambda: watchers.woken.append("01"))
        await asyncio.sleep(POLL_S)
        assert (compared[3:], watchers.woken) == (["01"], ["01"])
        watchers.news.close()

    run_virtual(main())


def test_a_feed_may_keep_its_ends_in_one_mapping_and_change_that():
    async def main():
        watchers = Watchers(partitions=3)
        kept = await SimFeed.ends(watchers.feed)

        async def ends():
            return kept

        watchers.news._ends = ends
        await asyncio.sleep(4 * POLL_S + 0.1)
        assert watchers.woken == []
        kept["01"] = Checkpoint(next_sequence=1)
        await asyncio.sleep(POLL_S)
        assert watchers.woken == ["01"]
        watchers.news.close()

    run_virtual(main())


@pytest.mark.parametrize("another", [False, True], ids=["itself", "another"])
def test_a_hub_gives_the_same_ends_until_somebody_writes(tmp_path, another):
    hub = make_hub(tmp_path, partitions=3, events=2)
    before = result_of(hub.ends())
    assert result_of(hub.ends()) is before
    writer = type(hub).open(hub.path) if another else hub
    fill(writer, 1, ["1"])
    after = result_of(hub.ends())
    assert [p for p in before if before[p] != after[p]] == ["1"]
    assert result_of(hub.ends()) is after
