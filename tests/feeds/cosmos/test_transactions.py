"""The changes of one transaction share an LSN. A batch, a checkpoint or a stop may come between any
two of them."""

import asyncio

import pytest
from support.cosmos_ranges import ScriptedRanges, ids, scripted_feed

from leasehold import ChangeFeedProcessor, Estimator, Processor, Retry, every, manual, open_store
from leasehold.core.model import Group
from leasehold.core.progress import behind

BIG = [f"t{n:02}" for n in range(25)]


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("AZURE_COSMOS_KEY", "a2V5")


def processor(ranges, store_url, **settings):
    return ChangeFeedProcessor(
        scripted_feed(ranges),
        name="g",
        start="beginning",
        store=open_store(store_url),
        max_items=10,
        poll_interval_s=0.01,
        **settings,
    )


def test_what_is_drained_is_all_of_a_transaction_and_comes_once(tmp_path):
    ranges, got = ScriptedRanges(), []
    ranges.write("a")
    ranges.write(*BIG)
    for _ in range(2):
        processor(
            ranges,
            f"sqlite:///{tmp_path}/l.db",
            on_changes=lambda changes: got.extend(ids(changes)),
            checkpoint=every(batches=1),
        ).run(until_drained=True)
        assert got == ["a", *BIG]


def test_a_stop_within_a_transaction_loses_and_repeats_nothing(tmp_path):
    ranges, got = ScriptedRanges(), []
    ranges.write(*BIG)

    def run(bad):
        def take(change):
            if change.document["id"] == bad:
                raise RuntimeError(bad)
            got.append(change.document["id"])

        Processor(
            scripted_feed(ranges),
            group="g",
            store=open_store(f"sqlite:///{tmp_path}/l.db"),
            on_event=take,
            max_events=10,
            retry=Retry(attempts=1, then="stop"),
        ).run(until_drained=True)

    for stops_at in (3, 7, 18):
        with pytest.raises(RuntimeError):
            run(bad=BIG[stops_at])
        assert got == BIG[:stops_at]
    run(bad=None)
    assert got == BIG


def test_what_is_left_of_a_transaction_is_behind(tmp_path):
    ranges = ScriptedRanges()
    ranges.write(*BIG)

    async def lag():
        store, feed = open_store("memory://"), scripted_feed(ranges)
        group = Group(namespace=feed.namespace, feed=feed.name, name="g")
        batch = await feed.read("0", await feed.locate("0", "earliest"), 10)
        await store.create(group, {"0": batch.next})
        told = await Estimator(feed, group="g", store=store).observe()
        feed.close()
        return told.lag_events

    assert asyncio.run(lag()) == 1


@pytest.mark.parametrize("gone", ["write", "remove"])
@pytest.mark.parametrize("other", range(5))
def test_documents_that_change_again_meanwhile_hide_no_other(gone, other):
    """The feed of newest states then has fewer changes of that transaction."""
    names = BIG[:5]

    async def rest(done):
        ranges = ScriptedRanges()
        ranges.write(*names)
        feed = scripted_feed(ranges)
        first = await feed.read("0", await feed.locate("0", "earliest"), done)
        getattr(ranges, gone)(names[other])
        found, at = [], first.next
        while (batch := await feed.read("0", at, 100)).events:
            found, at = found + ids(batch.events), batch.next
        feed.close()
        return found

    for done in range(1, 5):
        found = asyncio.run(rest(done))
        assert {*names[done:]} - {names[other]} <= {*found}
        assert len(found) <= len({*found}) <= len(names) - done + 1
        assert (names[other] in found) == (gone == "write")


def test_a_split_within_a_transaction_leaves_the_rest_to_the_child_that_has_it():
    ranges = ScriptedRanges()
    ranges.write(*BIG)

    async def work():
        feed = scripted_feed(ranges)
        first = await feed.read("0", await feed.locate("0", "earliest"), 10)
        ranges.split("0", "1", "2")
        ended = await feed.read("0", first.next, 10)
        found = [
            id
            for child, at in ended.children.items()
            for id in ids((await feed.read(child, at, 100)).events)
        ]
        feed.close()
        return found

    assert asyncio.run(work()) == BIG[10:]


def test_checkpoints_by_hand_reach_no_further_than_they_say(tmp_path):
    """Not even if the range is split then: its children begin behind what was checkpointed."""
    ranges, got, url = ScriptedRanges(), [], f"sqlite:///{tmp_path}/l.db"
    ranges.write(*BIG[:9])

    async def run(until, to):
        async def take(changes, context):
            got.append(ids(changes))
            await context.checkpoint_async(changes[to])
            if to == 2:
                ranges.split("0", "1", "2")

        running = processor(ranges, url, on_changes=take, checkpoint=manual())
        task = asyncio.ensure_future(running.run_async())
        async with asyncio.timeout(30):
            while len(got) < until:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        running.stop()
        await task

    asyncio.run(run(1, 2))
    asyncio.run(run(2, -1))
    assert got == [BIG[:9], BIG[3:9]]


def test_a_position_between_two_changes_is_still_at_their_lsn():
    ranges = ScriptedRanges()
    lsn = ranges.write("a", "b", "c")

    async def changes():
        feed = scripted_feed(ranges)
        batch = await feed.read("0", await feed.locate("0", "earliest"), 10)
        feed.close()
        return batch.events

    found = asyncio.run(changes())
    assert [behind(change).next_sequence for change in found] == [lsn, lsn, lsn + 1]
    assert len({change.offset for change in found}) == 3
