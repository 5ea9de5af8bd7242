"""One partition under the user's code, on virtual time."""

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from leasehold.core.event import Event
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Group
from leasehold.core.policy import Every, every, manual
from leasehold.core.retry import Retry
from leasehold.errors import FeedUnavailable, HandlerHung, PositionGone
from leasehold.ports import Batch
from leasehold.processor.handlers import Outcome
from leasehold.processor.pump import Hold, Pace, Pump
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim_time import SimClock, run_virtual

GROUP = Group(namespace="n", feed="f", name="g")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BURY = Retry(attempts=2, then="dead-letter", backoff_s=1, backoff_max_s=4)


class ListFeed:
    namespace, name = "n", "f"

    def __init__(self, count):
        self.count = count
        self.first = 0
        self.reads = []
        self.fails = 0

    async def read(self, partition, position, max_events):
        self.reads.append(position.next_sequence)
        if self.fails:
            self.fails -= 1
            raise FeedUnavailable("try again")
        if position.next_sequence < self.first or position.next_sequence > self.count:
            raise PositionGone(
                "gone",
                partition=partition,
                position=position,
                reason="retention" if position.next_sequence < self.first else "beyond end",
                earliest=Checkpoint(next_sequence=self.first),
                latest=Checkpoint(next_sequence=self.count),
            )
        upto = min(position.next_sequence + max_events, self.count)
        events = [
            Event(b"x", n, str(n), NOON, partition) for n in range(position.next_sequence, upto)
        ]
        return Batch(events=events, next=Checkpoint(next_sequence=upto, token=str(upto - 1)))


class GappyFeed(ListFeed):
    """One whose last sequences hold nothing any more, as if what was there had been deleted."""

    def __init__(self, count, empty_from):
        super().__init__(count)
        self.empty_from = empty_from

    async def read(self, partition, position, max_events):
        batch = await super().read(partition, position, max_events)
        events = [event for event in batch.events if event.sequence < self.empty_from]
        upto = events[-1].sequence + 1 if events else self.count
        return replace(batch, events=events, next=Checkpoint(next_sequence=upto))


class Desk:
    """The work, and a record of it."""

    def __init__(self, clock, bad=(), one_by_one=False, takes_s=0.1, interruptible=True):
        self.clock, self.bad, self.takes_s = clock, set(bad), takes_s
        self.one_by_one, self.interruptible = one_by_one, interruptible
        self.calls, self.done, self.buried, self.errors = [], [], [], []
        self.closed, self.gave_up, self.pump = [], None, None
        self.opens = 0
        self.open_fails = 0

    async def open(self):
        self.opens += 1
        if self.opens <= self.open_fails:
            raise OSError("no room")

    async def handle(self, events, stop):
        self.calls.append([event.sequence for event in events])
        await self.clock.sleep(self.takes_s)
        if not self.one_by_one:
            if poison := [e.sequence for e in events if e.sequence in self.bad]:
                return Outcome(done=0, error=ValueError(f"bad {poison[0]}"))
            self.done += [event.sequence for event in events]
            return Outcome(done=len(events))
        for done, event in enumerate(events):
            if event.sequence in self.bad:
                return Outcome(done=done, error=ValueError(f"bad {event.sequence}"))
            self.done.append(event.sequence)
            if stop(done + 1):
                return Outcome(done=done + 1)
        return Outcome(done=len(events))

    async def failed(self, error):
        self.errors.append(error)

    async def bury(self, event, error, attempts):
        self.buried.append((event.sequence, error, attempts))

    def give_up(self, error):
        self.gave_up = error

    async def close(self, reason):
        self.closed.append(reason)


class Rig:
    def __init__(self, count=10, at=0, **desk):
        self.clock = SimClock()
        self.store = MemoryStore(self.clock)
        self.feed = ListFeed(count)
        self.desk = Desk(self.clock, **desk)
        self.at = at
        self.reports = []

    async def start(self, policy=None, retry=None, orphaned=False, turn=None, **pace):
        start = Checkpoint(next_sequence=self.at)
        await self.store.create(GROUP, {"0": start})
        (lease,) = await self.store.acquire([self.lease()], "a", 10.0)
        hold = Hold(lease, until=float("inf"), orphaned=orphaned)
        pump = Pump(
            hold,
            feed=self.feed,
            store=self.store,
            work=self.desk,
            clock=self.clock,
            report=lambda what, error: self.reports.append((what, error)),
            pace=Pace(**{"max_events": 10, **pace}),
            retry=retry,
            policy=policy,
            chance=lambda: 0.5,
            turn=turn,
        )
        self.desk.pump = pump
        self.task = asyncio.ensure_future(pump.run())
        return pump

    def lease(self):
        return self.store._snapshot(GROUP).leases[0]

    @property
    def checkpoint(self):
        return self.lease().checkpoint.next_sequence

    @property
    def writes(self):
        return self.store.requests["checkpoint"]


def test_events_come_in_order_and_are_checkpointed_per_batch():
    async def main():
        rig = Rig(count=25)
        pump = await rig.start()
        await asyncio.sleep(5)
        assert rig.desk.done == list(range(25))
        assert (rig.checkpoint, rig.writes) == (25, 3)
        pump.let_go("b", Reason.BALANCED)
        assert await rig.task is Reason.BALANCED
        assert (rig.lease().owner, rig.lease().offered_to) == (None, "b")
        assert rig.desk.closed == [Reason.BALANCED]

    run_virtual(main())


def test_the_next_batch_is_read_while_one_is_handled():
    async def main():
        rig = Rig(count=30, takes_s=10)
        await rig.start()
        await asyncio.sleep(1)
        assert rig.desk.calls == [list(range(10))]
        assert rig.feed.reads == [0, 10]

    run_virtual(main())


@pytest.mark.parametrize(
    ("policy", "writes"),
    [
        (every(events=1), 40),
        (every(events=7), 6),  # 7, 14, 21, 28, 35; 40 when let go
        (every(batches=2), 2),
        (every(seconds=1000), 1),
        (every(events=1000, batches=1), 4),
    ],
)
def test_checkpoints_are_as_often_as_the_policy_says(policy, writes):
    async def main():
        rig = Rig(count=40, one_by_one=True)
        pump = await rig.start(policy=policy)
        await asyncio.sleep(20)
        pump.let_go(None, Reason.SHUTDOWN)
        await rig.task
        assert rig.desk.done == list(range(40))
        assert (rig.writes, rig.checkpoint) == (writes, 40)

    run_virtual(main())


def test_a_timed_checkpoint_is_written_although_nothing_new_comes():
    async def main():
        rig = Rig(count=3)
        await rig.start(policy=every(seconds=5))
        await asyncio.sleep(3)
        assert rig.checkpoint == 0
        await asyncio.sleep(3)
        assert rig.checkpoint == 3

    run_virtual(main())


def test_with_manual_checkpoints_only_the_users_own_count():
    async def main():
        rig = Rig(count=10)
        pump = await rig.start(policy=manual())
        await asyncio.sleep(3)
        assert (rig.desk.done, rig.checkpoint) == (list(range(10)), 0)
        assert await pump.save(Checkpoint(next_sequence=4, token="3"))
        pump.let_go("b", Reason.BALANCED)
        await rig.task
        assert rig.checkpoint == 4

    run_virtual(main())


@pytest.mark.parametrize(
    ("policy", "stored", "in_the_end"),
    [
        (every(batches=1), [20, 30], 30),
        (every(events=1), [20, 30], 30),
        (every(seconds=5), [0, 20], 30),
        (every(events=1000), [0, 0], 30),
        (manual(), [0, 0], 0),
    ],
)
def test_the_checkpoint_moves_past_what_the_feed_has_nothing_of_as_the_policy_says(
    policy, stored, in_the_end
):
    async def main():
        rig = Rig()
        rig.feed = GappyFeed(20, empty_from=15)
        pump = await rig.start(policy=policy)
        await asyncio.sleep(3)
        assert rig.desk.done == list(range(15))
        assert pump.position.next_sequence == 20
        found = [rig.checkpoint]
        await asyncio.sleep(4)
        rig.feed.count = 30
        await asyncio.sleep(1)
        assert pump.position.next_sequence == 30
        assert [*found, rig.checkpoint] == stored
        writes = rig.writes
        if policy != every(seconds=5):  # it is due a little later
            await asyncio.sleep(60)
            assert rig.writes == writes
        pump.let_go("b", Reason.BALANCED)
        await rig.task
        assert rig.checkpoint == in_the_end

    run_virtual(main())


def test_where_the_user_has_checkpointed_all_the_checkpoint_moves_past_nothing_too():
    async def main():
        rig = Rig(at=5)
        rig.feed = GappyFeed(12, empty_from=8)
        pump = await rig.start(policy=manual())
        await asyncio.sleep(3)
        assert rig.checkpoint == 5  # 5 to 7 are handled, and the user has not said so
        rig.feed.empty_from = rig.feed.count = 14
        await asyncio.sleep(3)
        assert await pump.save(Checkpoint(next_sequence=14))
        rig.feed.count = 17
        await asyncio.sleep(3)
        assert rig.checkpoint == 17

    run_virtual(main())


def test_failed_tries_are_not_counted_against_others_when_what_failed_is_gone():
    async def main():
        rig = Rig(at=2)
        rig.feed = GappyFeed(5, empty_from=2)  # what failed was deleted before it was tried again
        await rig.start(orphaned=True, retry=BURY)
        await asyncio.sleep(3)
        assert rig.checkpoint == 5
        rig.desk.bad = {5}
        rig.feed.count, rig.feed.empty_from = 6, 6
        await asyncio.sleep(10)
        assert rig.desk.calls == [[5], [5]]
        assert [sequence for sequence, _, _ in rig.desk.buried] == [5]

    run_virtual(main())


def test_a_lease_lost_while_there_was_nothing_to_do_is_noticed_when_the_end_moves():
    async def main():
        rig = Rig(at=2)
        rig.feed = GappyFeed(2, empty_from=2)
        await rig.start(policy=manual())
        await asyncio.sleep(3)
        await rig.store.acquire([rig.lease()], "b", 10.0)
        rig.feed.count = 5
        assert await rig.task is Reason.LOST
        assert rig.checkpoint == 2

    run_virtual(main())


def test_exactly_the_poison_events_are_buried_and_order_is_kept():
    async def main():
        rig = Rig(count=100, bad=[3, 4, 57])
        await rig.start(retry=BURY, max_events=40)
        await asyncio.sleep(300)
        assert [sequence for sequence, _, _ in rig.desk.buried] == [3, 4, 57]
        assert rig.desk.buried[0][1] == "ValueError: bad 3"
        assert rig.desk.done == [n for n in range(100) if n not in (3, 4, 57)]
        assert (rig.checkpoint, rig.lease().attempts) == (100, 0)

    run_virtual(main())


def test_one_by_one_a_poison_event_is_buried_after_its_tries():
    async def main():
        rig = Rig(count=10, bad=[3], one_by_one=True)
        await rig.start(retry=BURY)
        await asyncio.sleep(30)
        assert [sequence for sequence, _, _ in rig.desk.buried] == [3]
        assert sum(1 for call in rig.desk.calls if call[0] == 3) + 1 >= BURY.attempts
        assert rig.desk.done == [n for n in range(10) if n != 3]
        assert rig.checkpoint == 10

    run_virtual(main())


def test_without_dead_letters_a_failing_batch_is_tried_for_ever_and_does_not_spin():
    async def main():
        rig = Rig(count=10, bad=[3])
        await rig.start(retry=Retry(backoff_s=1, backoff_max_s=8))
        await asyncio.sleep(100)
        assert rig.desk.done == []
        assert 10 < len(rig.desk.calls) < 40
        assert all(call == list(range(10)) for call in rig.desk.calls)
        assert rig.lease().attempts >= 10
        rig.desk.bad.clear()
        await asyncio.sleep(10)
        assert (rig.checkpoint, rig.lease().attempts) == (10, 0)

    run_virtual(main())


def test_a_processor_that_shall_stop_is_told_to():
    async def main():
        rig = Rig(count=10, bad=[3])
        await rig.start(retry=Retry(attempts=3, then="stop", backoff_s=1))
        await asyncio.sleep(30)
        assert str(rig.desk.gave_up) == "bad 3"
        assert len(rig.desk.calls) == 3
        assert rig.checkpoint == 0

    run_virtual(main())


def test_a_try_after_a_death_is_counted_before_it_begins():
    """A handler that kills its process must run out of attempts, too."""

    async def main():
        rig = Rig(count=1, takes_s=1000)
        await rig.start(retry=BURY, orphaned=True)
        await asyncio.sleep(1)
        assert rig.lease().attempts > 1
        assert rig.desk.done == []

    run_virtual(main())


def test_an_event_that_keeps_killing_its_process_is_buried_in_the_end():
    async def main():
        rig = Rig(count=3, takes_s=1000)
        for _ in range(12):
            await rig.start(retry=BURY, orphaned=True)
            await asyncio.sleep(5)
            rig.task.cancel()
            if rig.desk.buried:
                break
        assert [sequence for sequence, _, _ in rig.desk.buried] == [0]
        assert "died" in rig.desk.buried[0][1]

    run_virtual(main())


def test_what_was_only_at_hand_when_another_partition_killed_the_process_is_not_blamed():
    """A bystander is in its handler at every death; without taking turns, all would count."""

    async def main():
        killer, bystander = Rig(count=8), Rig(count=8, takes_s=2)
        died, survive = asyncio.Event(), killer.desk.handle

        async def die_of_the_first(events, stop):
            if events[0].sequence == 0:
                await asyncio.sleep(0.5)
                died.set()
                await asyncio.sleep(1000)
            return await survive(events, stop)

        killer.desk.handle = die_of_the_first
        lives = 0
        while not killer.desk.buried:
            lives += 1
            died.clear()
            turn = threading.Lock()
            for rig in (bystander, killer):
                await rig.start(retry=BURY, orphaned=True, turn=turn)
            await asyncio.wait({asyncio.ensure_future(died.wait())}, timeout=60)
            for rig in (bystander, killer):
                rig.task.cancel()
        assert 5 < lives < 10
        assert [sequence for sequence, _, _ in killer.desk.buried] == [0]
        assert killer.desk.done == [1, 2, 3, 4, 5, 6, 7]
        assert bystander.desk.buried == []
        assert bystander.desk.done == [0, 1, 2, 3, 4, 5, 6, 7]

    run_virtual(main())


@pytest.mark.parametrize("orphaned", [False, True])
def test_only_a_second_death_makes_a_partition_wait_for_its_turn(orphaned):
    async def main():
        taken = threading.Lock()
        taken.acquire()
        rig = Rig(count=4)
        await rig.start(retry=BURY, orphaned=orphaned, turn=taken)
        await asyncio.sleep(5)
        assert rig.desk.done == [0, 1, 2, 3]

    run_virtual(main())


def test_one_whose_next_death_would_be_its_last_waits_for_its_turn():
    async def main():
        taken = threading.Lock()
        taken.acquire()
        rig = Rig(count=4, one_by_one=True)
        once = Retry(attempts=1, then="dead-letter")
        await rig.start(retry=once, orphaned=True, turn=taken)
        await asyncio.sleep(5)
        assert rig.desk.calls == []
        taken.release()
        await asyncio.sleep(5)
        assert rig.desk.done == [0, 1, 2, 3]
        assert not taken.locked()

    run_virtual(main())


def test_healthy_batches_after_an_orderly_hand_over_cost_one_write_each():
    async def main():
        rig = Rig(count=30)
        await rig.start()
        await asyncio.sleep(5)
        assert rig.writes == 3

    run_virtual(main())


def test_a_failing_dead_letter_store_loses_nothing():
    async def main():
        rig = Rig(count=10, bad=[3])
        bury, tries = rig.desk.bury, []

        async def broken(*arguments):
            tries.append(arguments)
            if len(tries) < 4:
                raise OSError("disk full")
            await bury(*arguments)

        rig.desk.bury = broken
        await rig.start(retry=BURY)
        await asyncio.sleep(120)
        assert len(tries) == 4
        assert [sequence for sequence, _, _ in rig.desk.buried] == [3]
        assert rig.desk.done == [n for n in range(10) if n != 3]
        assert "disk full" in str(rig.reports[0][1])

    run_virtual(main())


def test_a_feed_in_trouble_is_reported_and_read_again():
    async def main():
        rig = Rig(count=5)
        rig.feed.fails = 3
        await rig.start()
        await asyncio.sleep(10)
        assert rig.desk.done == list(range(5))
        assert len(rig.reports) == 3

    run_virtual(main())


def test_an_opening_that_fails_is_tried_again():
    async def main():
        rig = Rig(count=5)
        rig.desk.open_fails = 2
        await rig.start()
        await asyncio.sleep(10)
        assert rig.desk.done == list(range(5))
        assert rig.desk.opens == 3

    run_virtual(main())


def test_a_lost_lease_writes_nothing_more():
    async def main():
        rig = Rig(count=10, takes_s=5)
        pump = await rig.start()
        await asyncio.sleep(1)
        await rig.store.acquire([rig.lease()], "b", 10.0)
        assert await rig.task is Reason.LOST
        assert (rig.checkpoint, rig.lease().owner) == (0, "b")
        assert not await pump.save(Checkpoint(next_sequence=5))

    run_virtual(main())


def test_what_a_search_got_done_is_saved_although_the_store_failed_just_then():
    """Found by the simulation: it was let go without, and delivered again."""

    async def main():
        rig = Rig(count=10)
        pump = await rig.start(orphaned=True)
        checkpoint, calls = rig.store.checkpoint, []

        async def shaky(leases):
            calls.append(leases)
            if len(calls) == 2:  # the write after the batch
                pump.let_go("b", Reason.BALANCED)
                raise OSError("the store is down")
            return await checkpoint(leases)

        rig.store.checkpoint = shaky
        await rig.task
        assert rig.desk.done == list(range(10))
        assert rig.checkpoint == 10

    run_virtual(main())


def test_one_by_one_letting_go_waits_for_one_event_only():
    async def main():
        rig = Rig(count=10, one_by_one=True)
        pump = await rig.start(policy=every(events=100))
        handle = rig.desk.handle

        async def slow(events, stop):
            for done, event in enumerate(events):
                await rig.clock.sleep(10)
                rig.desk.done.append(event.sequence)
                if stop(done + 1):
                    return Outcome(done=done + 1)
            return await handle([], stop)

        rig.desk.handle = slow
        await asyncio.sleep(25)
        pump.let_go("b", Reason.BALANCED)
        await rig.task
        assert rig.clock.monotonic() <= 31
        assert rig.checkpoint == 3

    run_virtual(main())


def test_an_async_handler_that_hangs_is_cut_off_and_tried_again():
    async def main():
        rig = Rig(count=5, takes_s=100)
        await rig.start(handler_timeout_s=2, retry=Retry(backoff_s=1))
        await asyncio.sleep(2.5)
        assert isinstance(rig.desk.errors[0], HandlerHung)
        rig.desk.takes_s = 0.1
        await asyncio.sleep(5)
        assert rig.desk.done == list(range(5))

    run_virtual(main())


def test_a_plain_handler_that_hangs_makes_the_lease_yield():
    async def main():
        rig = Rig(count=5, takes_s=100, interruptible=False)
        await rig.start(handler_timeout_s=2)
        assert await rig.task is Reason.HUNG
        assert "handler_timeout_s=2" in str(rig.desk.errors[0])
        lease = rig.lease()
        assert (lease.owner, lease.attempts, lease.checkpoint.next_sequence) == (None, 1, 0)

    run_virtual(main())


def test_a_checkpoint_before_retention_goes_on_at_the_earliest_and_says_so():
    async def main():
        rig = Rig(count=20, at=2)
        rig.feed.first = 7
        await rig.start()
        await asyncio.sleep(5)
        assert rig.desk.done == list(range(7, 20))
        assert isinstance(rig.desk.errors[0], PositionGone)
        assert rig.checkpoint == 20

    run_virtual(main())


def test_a_checkpoint_before_retention_stops_the_processor_if_so_chosen():
    async def main():
        rig = Rig(count=20, at=2)
        rig.feed.first = 7
        await rig.start(gone="fail")
        await asyncio.sleep(5)
        assert isinstance(rig.desk.gave_up, PositionGone)
        assert rig.desk.done == []

    run_virtual(main())


def test_a_feed_made_anew_is_read_from_its_beginning():
    async def main():
        rig = Rig(count=5, at=1000)
        await rig.start()
        assert await rig.task is Reason.LOST
        assert (rig.checkpoint, rig.lease().owner) == (0, None)
        await rig.start()
        await asyncio.sleep(3)
        assert rig.desk.done == list(range(5))

    run_virtual(main())


def test_a_renewal_in_between_does_not_keep_a_checkpoint_from_going_back():
    async def main():
        rig = Rig(count=5, at=1000)
        rewind, tries = rig.store.rewind, []

        async def late(leases):
            tries.append(leases)
            if len(tries) < 3:
                await rig.store.renew(leases)
            return await rewind(leases)

        rig.store.rewind = late
        await rig.start()
        assert await rig.task is Reason.LOST
        assert (len(tries), len(rig.desk.errors)) == (3, 1)
        assert (rig.checkpoint, rig.lease().owner) == (0, None)

    run_virtual(main())


def test_a_closing_callback_that_raises_does_not_keep_the_lease():
    async def main():
        rig = Rig(count=5)

        async def close(reason):
            raise OSError("cannot close")

        rig.desk.close = close
        pump = await rig.start()
        await asyncio.sleep(2)
        pump.let_go("b", Reason.BALANCED)
        await rig.task
        assert rig.lease().owner is None
        assert "cannot close" in str(rig.reports[0][1])

    run_virtual(main())


@pytest.mark.parametrize("setting", ["events", "seconds", "batches"])
def test_a_checkpoint_policy_that_cannot_work_is_refused_by_name(setting):
    with pytest.raises(ValueError, match=setting):
        Every(**{setting: 0})
    with pytest.raises(ValueError, match="manual"):
        every()


def test_a_lease_that_was_not_renewed_in_time_begins_nothing_new():
    async def main():
        rig = Rig(count=5)
        pump = await rig.start()
        pump.hold.until = 0.0
        await asyncio.sleep(5)
        assert rig.desk.calls == []
        pump.hold.until = float("inf")
        await asyncio.sleep(2)
        assert rig.desk.done == list(range(5))
        assert replace(rig.lease()).owner == "a"

    run_virtual(main())
