from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.model import Checkpoint
from leasehold.core.progress import begin, further


def at(sequence):
    return Checkpoint(next_sequence=sequence)


def test_a_checkpoint_covers_what_lies_before_it_and_nothing_else():
    progress = begin(at(0), 0.0).advance(at(100), events=100, taken=True).store(at(5), 9.0)
    assert progress.unsaved
    assert (progress.events, progress.saved_at) == (100, 0.0)
    progress = progress.store(at(100), 10.0)
    assert not progress.unsaved
    assert (progress.events, progress.batches, progress.saved_at) == (0, 0, 10.0)


def test_an_answer_that_was_overtaken_takes_nothing_back():
    progress = begin(at(0), 0.0).advance(at(9), taken=True).store(at(9), 1.0).store(at(5), 2.0)
    assert progress.saved == at(9)
    assert not progress.unsaved


def test_only_what_the_handler_took_is_owed():
    passed = begin(at(0), 0.0).advance(at(3))
    assert passed.unsaved
    assert not passed.owed
    assert passed.advance(at(4), taken=True).owed


def test_the_last_checkpoint_of_the_user_reaches_behind_what_was_not_theirs():
    progress = begin(at(0), 0.0).advance(at(5), taken=True).advance(at(8))
    assert progress.reach(at(4)) == at(4)
    assert progress.reach(at(5)) == at(8)
    assert progress.reach(at(9)) == at(9), "in mid-batch the user is ahead of the pump"


def test_what_the_feed_no_longer_has_is_not_owed():
    gone = begin(at(0), 0.0).advance(at(5), taken=True).jump(at(20))
    assert gone.unsaved
    assert not gone.owed


STEPS = st.lists(st.tuples(st.sampled_from(["take", "pass", "store"]), st.integers(1, 9)))


@given(STEPS)
def test_unsaved_is_what_lies_between_the_two_positions(steps):
    progress, stored = begin(at(0), 0.0), 0
    for now, (do, count) in enumerate(steps):
        if do == "store":
            position = max(0, progress.handled.next_sequence - count)
            progress, stored = progress.store(at(position), float(now)), max(stored, position)
        else:
            to = at(progress.handled.next_sequence + count)
            progress = progress.advance(to, events=count, taken=do == "take")
        assert progress.unsaved == (progress.handled.next_sequence > stored)
        assert progress.events >= progress.handled.next_sequence - stored
        assert not progress.owed or progress.unsaved


TRANSACTIONS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
WORDS = st.lists(st.tuples(st.sampled_from(["handle", "word", "write"]), st.floats(0, 1)))


def places(transactions):
    """The position behind each event, with that before the first: those of one transaction share a
    sequence, except behind its last."""
    found = [Checkpoint(next_sequence=0, token="begin")]
    for sequence, size in enumerate(transactions):
        for n in range(1, size + 1):
            found.append(Checkpoint(next_sequence=sequence + (n == size), token=f"{sequence}.{n}"))
    return found


def is_within(position):
    """Whether it lies between two events of one transaction."""
    return position.token.startswith(f"{position.next_sequence}.")


@given(TRANSACTIONS, WORDS)
def test_what_a_user_has_checkpointed_is_never_taken_back_by_the_pump(transactions, steps):
    at_place = places(transactions)
    handled = stored = 0
    progress = begin(at_place[0], 0.0)
    for now, (do, share) in enumerate(steps):
        if do == "handle":
            upto = handled + round(share * (len(at_place) - 1 - handled))
            if upto > handled:
                past = (
                    is_within(progress.saved) and progress.saved in at_place[handled + 1 : upto + 1]
                )
                progress = progress.advance(at_place[upto], taken=True, past_saved=past)
                handled = upto
            continue
        if do == "word":
            told = round(share * (len(at_place) - 1))
            ahead = told > handled and is_within(at_place[told])
            position = progress.reach(at_place[told], ahead=ahead)
        else:
            ahead, position = False, progress.known
        before, kept = stored, further(at_place[stored], position)
        stored = at_place.index(kept)
        progress = progress.store(kept, float(now), ahead=ahead and kept == position)
        assert at_place[stored] == progress.saved
        if do == "write":
            assert stored >= max(before, handled)
        assert progress.unsaved == (stored < handled)
        assert progress.owed == (stored < handled)
