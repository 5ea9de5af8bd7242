"""What a pump has handled, what of it is stored, and when a partition that ended may be split."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pump_rig import BURY, GROUP, NOON, ListFeed, Rig

from leasehold.core import progress
from leasehold.core.change import Change
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint
from leasehold.errors import CheckpointMissing
from leasehold.ports import Batch
from leasehold.processor.handlers import Outcome
from leasehold.settings import every, manual
from leasehold.testing.sim_time import run_virtual


class EndingFeed(ListFeed):
    """One that was split behind its last event."""

    async def read(self, partition, position, max_events):
        batch = await super().read(partition, position, max_events)
        if batch.events:
            return batch
        end = Checkpoint(next_sequence=self.count)
        return type(batch)(next=batch.next, children={"0.0": end, "0.1": end})


def ending(count=20, **desk):
    rig = Rig(count=count, **desk)
    rig.feed = EndingFeed(count)
    return rig


def behind(event):
    """The user's checkpoint of that event."""
    return Checkpoint(next_sequence=event + 1, token=str(event))


def leases(rig):
    return {lease.partition for lease in rig.store._snapshot(GROUP).leases}


def test_with_manual_checkpoints_a_split_waits_for_the_last_one():
    async def main():
        rig = ending(20)
        pump = await rig.start(policy=manual())
        await asyncio.sleep(60)
        assert rig.desk.done == list(range(20))
        await pump.save(behind(18))
        await asyncio.sleep(60)
        assert leases(rig) == {"0"}
        await pump.save(behind(19))
        assert await rig.task is Reason.SPLIT
        assert leases(rig) == {"0.0", "0.1"}

    run_virtual(main())


def test_what_was_not_checkpointed_when_a_partition_ended_comes_back_after_a_crash():
    async def main():
        rig = ending(20)
        await rig.start(policy=manual())
        await asyncio.sleep(5)
        rig.task.cancel()
        rig.desk.done.clear()
        await rig.start(policy=manual(), orphaned=True)
        await asyncio.sleep(5)
        assert rig.desk.done == list(range(20))

    run_virtual(main())


def test_a_split_that_waits_is_told_of_costs_no_writes_and_can_be_shed():
    async def main():
        rig = ending(20)
        pump = await rig.start(policy=manual(), retry_max_s=10.0)
        await asyncio.sleep(35)
        errors = [error for _, error in rig.reports]
        assert [type(error) for error in errors] == [CheckpointMissing] * 3
        assert "event 19" in str(errors[0])
        assert (rig.writes, rig.store.requests["split"]) == (0, 0)
        before = rig.clock.monotonic()
        pump.let_go("b", Reason.BALANCED)
        assert await rig.task is Reason.BALANCED
        assert rig.clock.monotonic() == before
        assert (rig.lease().owner, rig.checkpoint) == (None, 0)

    run_virtual(main())


def test_what_the_handler_never_took_keeps_no_split_waiting():
    """Dead letters and what the feed has nothing of are not the user's to checkpoint."""

    async def main():
        rig = ending(20, bad=[18, 19])
        pump = await rig.start(policy=manual(), retry=BURY)
        await asyncio.sleep(60)
        assert [sequence for sequence, _, _ in rig.desk.buried] == [18, 19]
        await pump.save(behind(17))
        assert await rig.task is Reason.SPLIT

    run_virtual(main())


def test_where_all_is_checkpointed_dead_letters_are_passed_without_the_user():
    async def main():
        rig = Rig(count=3, bad=[0, 1, 2])
        await rig.start(policy=manual(), retry=BURY)
        await asyncio.sleep(60)
        assert len(rig.desk.buried) == 3
        assert rig.checkpoint == 3

    run_virtual(main())


@pytest.mark.parametrize("policy", [every(events=1000), every(seconds=1000), every(batches=7)])
def test_what_is_handled_is_saved_before_the_partition_is_split(policy):
    """A store may die between the steps of a split; then the parent is read again."""

    async def main():
        rig = ending(20)
        saved, split = [], rig.store.split

        async def watched(parent, children):
            saved.append(rig.checkpoint)
            return await split(parent, children)

        rig.store.split = watched
        await rig.start(policy=policy)
        assert await rig.task is Reason.SPLIT
        assert saved == [20]

    run_virtual(main())


def test_a_late_checkpoint_of_the_user_forgets_nothing_that_was_handled_since():
    async def main():
        rig = Rig(count=100)
        pump = await rig.start(policy=every(events=1000))
        await asyncio.sleep(5)
        assert await pump.save(behind(4))
        await asyncio.sleep(5)
        pump.let_go("b", Reason.BALANCED)
        await rig.task
        assert rig.checkpoint == 100

    run_virtual(main())


@pytest.mark.parametrize("policy", [every(events=30), every(batches=3), every(seconds=2)])
def test_late_checkpoints_of_the_user_do_not_put_the_policys_own_off(policy):
    async def main():
        rig = Rig(count=1000, takes_s=0.5)
        pump = await rig.start(policy=policy)
        for _ in range(40):
            await asyncio.sleep(0.5)
            await pump.save(behind(0))
            assert len(rig.desk.done) - rig.checkpoint <= 50

    run_virtual(main())


def test_a_checkpoint_of_what_is_stored_already_keeps_the_count_of_failed_tries():
    """Or a handler that begins with it would never be found to kill its process."""

    async def main():
        rig = Rig(count=4, takes_s=1000)
        pump = await rig.start(retry=BURY, orphaned=True)
        await asyncio.sleep(1)
        attempts = rig.lease().attempts
        assert attempts > 1
        assert await pump.save(Checkpoint(next_sequence=0))
        assert rig.lease().attempts == attempts

    run_virtual(main())


def test_tries_of_what_was_handled_in_the_end_condemn_nothing_at_the_next_owner():
    """The user has not checkpointed it yet, so it comes again, and is as good as any other."""

    async def main():
        rig = Rig(count=1, bad=[0])
        pump = await rig.start(policy=manual(), retry=BURY)
        await asyncio.sleep(0.2)
        assert len(rig.desk.errors) == 1
        rig.desk.bad.clear()
        await asyncio.sleep(5)
        assert rig.desk.done == [0]
        pump.let_go("b", Reason.BALANCED)
        assert await rig.task is Reason.BALANCED
        assert (rig.lease().checkpoint.next_sequence, rig.lease().attempts) == (0, 0)
        rig.desk.done.clear()
        await rig.start(policy=manual(), retry=BURY)
        await asyncio.sleep(10)
        assert (rig.desk.done, rig.desk.buried) == ([0], [])

    run_virtual(main())


class TransactionFeed(ListFeed):
    """One whose events are the changes of one transaction: all share sequence 0."""

    ends = False

    async def read(self, partition, position, max_events):
        self.reads.append(position.next_sequence)
        first = self.count if position.next_sequence else int(position.token or -1) + 1
        changes = [
            Change({}, "upsert", 0, str(n), NOON, partition, more_follow=n + 1 < self.count)
            for n in range(first, min(first + max_events, self.count))
        ]
        behind = progress.behind(changes[-1]) if changes else position
        if not changes and self.ends:
            end = Checkpoint(next_sequence=1)
            return Batch(next=behind, children={"0.0": end, "0.1": end})
        return Batch(events=changes, next=behind)


async def checkpoint_aside(rig, **settings):
    """The handler hands five changes over, and one of them is checkpointed beside it. The store's
    answer comes when the handler is done with all."""
    pump, checkpoint, aside = await rig.start(**settings), rig.store.checkpoint, []

    async def slow(leases):
        kept = await checkpoint(leases)
        await asyncio.sleep(0.05)
        return kept

    async def handle(events, stop):
        rig.desk.done += [int(event.offset) for event in events]
        aside.append(asyncio.ensure_future(pump.save(progress.behind(events[2]))))
        await asyncio.sleep(0.01)
        return Outcome(done=len(events))

    rig.store.checkpoint, rig.desk.handle = slow, handle
    await asyncio.sleep(30)
    return pump


@pytest.mark.parametrize("policy", [every(seconds=5), every(batches=1)])
def test_a_checkpoint_whose_answer_comes_late_hides_nothing_that_was_handled_since(policy):
    async def main():
        rig = Rig(takes_s=0)
        rig.feed = TransactionFeed(5)
        pump = await checkpoint_aside(rig, policy=policy)
        pump.let_go("b", Reason.SHUTDOWN)
        await rig.task
        assert rig.lease().checkpoint == Checkpoint(next_sequence=1, token="4")

    run_virtual(main())


def test_a_checkpoint_whose_answer_comes_late_lets_no_split_pass_what_is_owed():
    async def main():
        rig = Rig(takes_s=0)
        rig.feed = TransactionFeed(5)
        rig.feed.ends = True
        await checkpoint_aside(rig, policy=manual())
        assert not rig.task.done(), "changes 3 and 4 would be lost with the process"

    run_virtual(main())


@pytest.mark.parametrize("policy", [every(batches=1), manual()])
def test_a_failure_takes_no_checkpoint_back_that_the_user_wrote_within_a_transaction(policy):
    async def main():
        rig = Rig()
        rig.feed = TransactionFeed(10)
        stored, checkpoint = [], rig.store.checkpoint
        pump = await rig.start(policy=policy, max_events=4)

        async def watched(leases):
            kept = await checkpoint(leases)
            stored.append(int(kept[0].checkpoint.token))
            return kept

        async def handle(events, stop):
            fails = events[0].offset == "4" and len(rig.desk.errors) < 3
            for event in events[: 2 if fails else 4]:
                await pump.save(progress.behind(event))
            if fails:
                return Outcome(done=0, error=ValueError("bad"))
            rig.desk.done += [int(event.offset) for event in events]
            return Outcome(done=len(events))

        rig.store.checkpoint, rig.desk.handle = watched, handle
        await asyncio.sleep(0.5)
        assert stored[-1] == 5, "and not 3, which is all that the pump knows to be done"
        await asyncio.sleep(20)
        assert rig.desk.done == list(range(10))
        pump.let_go("b", Reason.SHUTDOWN)
        await rig.task
        assert rig.lease().checkpoint == Checkpoint(next_sequence=1, token="9")
        assert stored[stored.index(4) :].count(3) == 0

    run_virtual(main())


POLICIES = [every(batches=1), every(events=7), every(seconds=3), every(batches=4), manual()]
STEPS = st.lists(
    st.one_of(
        st.floats(0.05, 3.0).map(lambda seconds: ("wait", seconds)),
        st.floats(0, 1).map(lambda place: ("checkpoint", place)),
        st.integers(1, 25).map(lambda count: ("send", count)),
        st.integers(1, 2).map(lambda times: ("store fails", times)),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(POLICIES), STEPS, st.booleans(), st.sets(st.integers(0, 60), max_size=3))
def test_after_an_orderly_stop_what_was_handled_is_stored(policy, steps, one_by_one, bad):
    """Whatever the user checkpoints, and whenever: a stop leaves the checkpoint where handling
    was, or, with manual checkpoints, where the user's furthest was."""

    async def main():
        rig = Rig(count=5, bad=bad, one_by_one=one_by_one)
        pump = await rig.start(policy=policy, retry=BURY)
        furthest, failing = 0, 0
        checkpoint = rig.store.checkpoint

        async def shaky(leases):
            nonlocal failing
            if failing:
                failing -= 1
                raise OSError("the store is down")
            return await checkpoint(leases)

        rig.store.checkpoint = shaky
        for do, much in steps:
            if do == "wait":
                await asyncio.sleep(much)
            elif do == "send":
                rig.feed.count += much
            elif do == "store fails":
                failing = much
            elif rig.desk.done and not failing:
                event = rig.desk.done[int(much * (len(rig.desk.done) - 1))]
                assert await pump.save(behind(event))
                furthest = max(furthest, event + 1)
        pump.let_go("b", Reason.BALANCED)
        await rig.task
        buried = {event for event, _, _ in rig.desk.buried}
        handled = max([*rig.desk.done, *buried, -1]) + 1
        if policy != manual():
            assert rig.checkpoint == handled
            return
        assert furthest <= rig.checkpoint
        while furthest in buried:
            furthest += 1
        assert rig.checkpoint <= furthest

    run_virtual(main())
