"""One partition under the user's code, on virtual time."""

import asyncio
from dataclasses import replace

import pytest
from support.pump_rig import BURY, GappyFeed, Rig

from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint
from leasehold.core.retry import ALONE
from leasehold.errors import HandlerHung, PositionGone
from leasehold.processor.handlers import Outcome
from leasehold.processor.letter_gate import LetterGate
from leasehold.processor.turns import Turns
from leasehold.settings import Every, Retry, every, manual
from leasehold.testing.sim_time import run_virtual


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


def test_a_timed_checkpoint_is_written_although_the_feed_is_known_to_have_nothing_new():
    async def main():
        rig = Rig(count=25)

        async def ends():
            return {"0": Checkpoint(next_sequence=25)}

        rig.feed.ends = ends
        pump = await rig.start(policy=every(seconds=7))
        await asyncio.sleep(6.9)
        assert (rig.checkpoint, pump.position.next_sequence) == (0, 25)
        await asyncio.sleep(0.2)
        assert (rig.checkpoint, rig.writes) == (25, 1)

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


def test_tries_of_an_event_that_is_gone_do_not_bury_the_next_one_untried():
    """The dead letters are out of order, the instance stops, and somebody mends what failed: its
    place is another's by now."""

    async def main():
        rig = Rig(count=3, bad=[0])
        bury = rig.desk.bury

        async def no_letters(event, error, attempts):
            raise OSError("the dead letters are down")

        rig.desk.bury = no_letters
        pump = await rig.start(retry=BURY)
        await asyncio.sleep(20)
        pump.let_go("b", Reason.SHUTDOWN)
        await rig.task
        assert rig.lease().attempts >= ALONE + 2
        rig.desk.bury, rig.desk.bad = bury, {2}
        rig.feed = GappyFeed(3, empty_from=3)
        rig.feed.without = {0}
        await rig.start(retry=BURY)
        await asyncio.sleep(20)
        assert rig.desk.done == [1]
        assert [(sequence, error.splitlines()[-1]) for sequence, error, _ in rig.desk.buried] == [
            (2, "ValueError: bad 2")
        ]

    run_virtual(main())


def test_after_an_orderly_stop_what_failed_often_enough_is_tried_once_more_and_buried():
    async def main():
        rig = Rig(count=1, bad=[0])
        bury, calls = rig.desk.bury, rig.desk.calls

        async def no_letters(event, error, attempts):
            raise OSError("the dead letters are down")

        rig.desk.bury = no_letters
        pump = await rig.start(retry=BURY)
        await asyncio.sleep(20)
        pump.let_go("b", Reason.SHUTDOWN)
        await rig.task
        assert len(calls) == 2
        rig.desk.bury = bury
        await rig.start(retry=BURY)
        await asyncio.sleep(20)
        assert len(calls) == 3
        assert "ValueError: bad 0" in rig.desk.buried[0][1]

    run_virtual(main())


def test_an_event_that_makes_plain_handlers_hang_is_buried_after_its_last_try():
    async def main():
        rig = Rig(count=2, takes_s=100, interruptible=False, one_by_one=True)
        for _ in range(BURY.attempts):
            assert not rig.desk.buried
            await rig.start(handler_timeout_s=2, retry=BURY)
            assert await rig.task is Reason.HUNG
        ((sequence, error, _),) = rig.desk.buried
        assert (sequence, rig.checkpoint, rig.lease().attempts) == (0, 1, 0)
        assert "handler_timeout_s=2" in error

    run_virtual(main())


def test_only_an_owner_that_died_is_said_to_have_died():
    async def main():
        for overruled, word in [(False, "died"), (True, "did not let it go")]:
            rig = Rig(count=1, takes_s=1e9)
            for _ in range(3):
                await rig.start(retry=BURY, orphaned=True, overruled=overruled)
                await asyncio.sleep(5)
                rig.task.cancel()
            assert word in rig.desk.buried[0][1]

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
            turns = Turns()
            for rig in (bystander, killer):
                await rig.start(retry=BURY, orphaned=True, turns=turns)
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
        taken = Turns()
        assert taken.take("somebody", now=0.0, share_s=1000, again_s=1)
        rig = Rig(count=4)
        await rig.start(retry=BURY, orphaned=orphaned, turns=taken)
        await asyncio.sleep(5)
        assert rig.desk.done == [0, 1, 2, 3]

    run_virtual(main())


def test_one_whose_next_death_would_be_its_last_waits_for_its_turn():
    async def main():
        taken = Turns()
        assert taken.take("somebody", now=0.0, share_s=1000, again_s=1)
        rig = Rig(count=4, one_by_one=True)
        once = Retry(attempts=1, then="dead-letter")
        await rig.start(retry=once, orphaned=True, turns=taken)
        await asyncio.sleep(5)
        assert rig.desk.calls == []
        taken.end("somebody")
        await asyncio.sleep(5)
        assert rig.desk.done == [0, 1, 2, 3]
        assert taken.take("next", now=0.0, share_s=1, again_s=1)

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


@pytest.mark.parametrize("orphaned", [False, True])
def test_a_handler_that_does_a_part_only_is_given_the_rest(orphaned):
    """Also of a batch that is tried again, where all of it would have counted as done."""

    async def main():
        rig = Rig(count=10)
        handle = rig.desk.handle
        rig.desk.handle = lambda events, stop: handle(events[:3], stop)
        pump = await rig.start(orphaned=orphaned)
        await asyncio.sleep(20)
        assert rig.desk.calls == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        assert (rig.checkpoint, pump.attempts) == (10, 0)

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


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_handler_that_came_back_too_late_has_no_other_event_blamed(count, one_by_one):
    """As if it blocked its loop: what it did is done, and what comes next was never tried."""

    async def main():
        rig = Rig(count=count, one_by_one=one_by_one)
        healthy = rig.desk.handle

        async def late(events, stop):
            rig.desk.handle = healthy
            done = 1 if one_by_one else len(events)
            try:
                await asyncio.sleep(100)
            finally:
                rig.desk.done += [event.sequence for event in events[:done]]
                stop(done)

        rig.desk.handle = late
        once = Retry(attempts=1, then="dead-letter")
        await rig.start(handler_timeout_s=2, retry=once)
        await asyncio.sleep(5)
        assert "it did later" in str(rig.desk.errors[0])
        assert rig.lease().attempts == 0
        rig.feed.count = 6
        await asyncio.sleep(5)
        assert (rig.desk.done, rig.desk.buried) == (list(range(6)), [])
        assert len(rig.desk.errors) == 1

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
        await rig.start(on_position_gone="fail")
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


def test_being_told_again_and_again_that_a_lease_is_lost_does_not_put_its_end_off():
    """Upkeep says so at every look. Found by the simulation."""

    async def main():
        rig = Rig(count=5)
        pump = await rig.start(retry_s=5.0)

        async def down(leases):
            raise OSError("the store is down")

        await asyncio.sleep(2)
        rig.store.release = down
        pump.let_go("b", Reason.BALANCED)
        for _ in range(3):
            await asyncio.sleep(1)
            pump.lose()
        await asyncio.sleep(0)
        assert rig.task.done()
        assert rig.task.result() is Reason.LOST

    run_virtual(main())


def test_a_handler_that_fails_for_every_event_has_few_of_them_buried_and_says_so_once():
    async def main():
        rig, held = Rig(count=100, bad=range(100)), []
        retry = replace(BURY, dead_in_a_row=5, backoff_max_s=60)
        gate = LetterGate(retry, rig.clock, held.append)
        await rig.start(retry=retry, gate=gate)
        await asyncio.sleep(900)
        assert 5 <= len(rig.desk.buried) <= 5 + 900 / 60
        assert len(held) == 1
        assert "dead_in_a_row" in str(held[0])
        rig.desk.bad.clear()  # it is mended
        buried = len(rig.desk.buried)
        await asyncio.sleep(120)
        assert (len(rig.desk.buried), rig.checkpoint) == (buried, 100)
        assert len(rig.desk.done) == 100 - buried

    run_virtual(main())


def test_poison_events_with_good_ones_between_them_are_all_buried():
    async def main():
        bad = [n for n in range(100) if n % 5]
        rig, held = Rig(count=100, bad=bad), []
        retry = replace(BURY, dead_in_a_row=5)
        await rig.start(retry=retry, gate=LetterGate(retry, rig.clock, held.append))
        await asyncio.sleep(3000)
        assert [sequence for sequence, _, _ in rig.desk.buried] == bad
        assert (held, rig.checkpoint) == ([], 100)

    run_virtual(main())
