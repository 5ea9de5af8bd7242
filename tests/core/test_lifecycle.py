import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.lifecycle import (
    Again,
    Do,
    Done,
    Handled,
    LetGo,
    Life,
    Lost,
    Pause,
    Phase,
    Read,
    Reason,
    Refused,
    begin,
    step,
)

GIVE_UP = LetGo(Reason.BALANCED)


def run(*events):
    """The last state, and every action there was."""
    life, action = begin()
    actions = [action]
    for event in events:
        life, action = step(life, event)
        actions.append(action)
    return life, actions


def test_the_way_of_one_batch():
    life, actions = run(Done(), Read(), Handled(save=True), Done())
    assert actions == [
        Do(Phase.OPENING),
        Do(Phase.READING),
        Do(Phase.HANDLING),
        Do(Phase.SAVING),
        Do(Phase.READING),
    ]
    assert not life.unsaved


def test_a_checkpoint_follows_success_only():
    life, actions = run(Done(), Read(), Again(2.0), Done(), Again(2.0))
    assert Do(Phase.SAVING) not in actions
    assert actions[-3:] == [Pause(2.0), Do(Phase.HANDLING), Pause(2.0)]
    assert life.resume is Phase.HANDLING


def test_what_is_not_due_is_saved_before_the_lease_is_let_go():
    life, actions = run(Done(), Read(), Handled(save=False), GIVE_UP, Done())
    assert actions[-3:] == [Do(Phase.READING), Do(Phase.SAVING), Do(Phase.CLOSING)]
    assert life.ending is Reason.BALANCED


def test_a_batch_in_hand_is_finished_and_saved_before_the_lease_is_let_go():
    _, actions = run(Done(), Read(), GIVE_UP, Handled(save=False), Done(), Done())
    assert actions[-4:] == [None, Do(Phase.SAVING), Do(Phase.CLOSING), None]


def test_a_failing_batch_is_left_to_the_next_owner():
    _, actions = run(Done(), Read(), Again(30.0), GIVE_UP)
    assert actions[-1] == Do(Phase.CLOSING)
    _, actions = run(Done(), Read(), GIVE_UP, Again(30.0))
    assert actions[-1] == Do(Phase.CLOSING)


def test_a_save_that_fails_is_tried_again_before_the_lease_is_let_go():
    _, actions = run(Done(), Read(), Handled(save=True), Again(1.0), GIVE_UP, Done(), Done())
    assert actions[-4:] == [Pause(1.0), None, Do(Phase.SAVING), Do(Phase.CLOSING)]


def test_progress_within_a_failing_batch_is_saved_before_the_lease_is_let_go():
    _, actions = run(Done(), Read(), GIVE_UP, Again(1.0, unsaved=True), Done())
    assert actions[-2:] == [Do(Phase.SAVING), Do(Phase.CLOSING)]


def test_a_lost_lease_saves_nothing():
    _, actions = run(Done(), Read(), Lost(), Handled(save=True))
    assert actions[-1] == Do(Phase.CLOSING)
    _, actions = run(Done(), Read(), Handled(save=False), Lost())
    assert actions[-1] == Do(Phase.CLOSING)
    _, actions = run(Done(), Read(), Handled(save=True), Again(1.0), Lost())
    assert actions[-1] == Do(Phase.CLOSING)


def test_a_refused_checkpoint_is_a_lost_lease():
    life, actions = run(Done(), Read(), Handled(save=True), Refused())
    assert actions[-1] == Do(Phase.CLOSING)
    assert life.ending is Reason.LOST


def test_losing_outranks_letting_go():
    life, _ = run(Done(), Read(), GIVE_UP, Lost(), Handled(save=True))
    assert life.ending is Reason.LOST
    life, _ = run(Done(), Lost(), GIVE_UP)
    assert life.ending is Reason.LOST


def test_a_partition_that_ended_is_split_and_closed():
    life, actions = run(Done(), Read(ended=True), Done(), Done())
    assert actions[-3:] == [Do(Phase.SPLITTING), Do(Phase.CLOSING), None]
    assert (life.phase, life.ending) == (Phase.CLOSED, Reason.SPLIT)


def test_a_release_that_fails_is_tried_again_until_it_is_done_or_moot():
    life, actions = run(Done(), GIVE_UP, Again(1.0), Lost(), Done())
    assert actions[-3:] == [Pause(1.0), Do(Phase.CLOSING), None]
    assert (life.phase, life.ending) == (Phase.CLOSED, Reason.LOST)


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.READING, Phase.SPLITTING])
def test_a_failure_anywhere_is_tried_again(phase):
    life, action = step(Life(phase=phase), Again(3.0))
    assert action == Pause(3.0)
    assert step(life, Done())[1] == Do(phase)


signals = st.sampled_from([GIVE_UP, LetGo(Reason.SHUTDOWN), Lost()])
RESULTS = {
    Phase.OPENING: [Done(), Again(1.0)],
    Phase.READING: [Read(), Read(ended=True), Again(1.0)],
    Phase.HANDLING: [Handled(save=True), Handled(save=False), Again(1.0)],
    Phase.SAVING: [Done(), Refused(), Again(1.0)],
    Phase.SPLITTING: [Done(), Refused(), Again(1.0)],
    Phase.CLOSING: [Done(), Again(1.0)],
}


@given(st.data())
def test_whatever_happens_a_life_ends_in_order(data):
    """Signals at any time, results of any kind: every handled batch is saved before a lease is let
    go, nothing is saved after it is lost, nothing is handled once it should end."""
    life, action = begin()
    unsaved = lost = ending = False
    for _ in range(data.draw(st.integers(0, 30))):
        while data.draw(st.booleans()):
            event = data.draw(signals)
            lost, ending = lost or isinstance(event, Lost), True
            life, replaced = step(life, event)
            action = replaced or action
        if life.phase is Phase.CLOSED:
            break
        if isinstance(action, Pause):
            event = Done()
        else:
            if lost:
                assert action.phase is not Phase.SAVING or life.phase is Phase.SAVING
            assert not (
                ending and action.phase is Phase.HANDLING and life.phase is not Phase.HANDLING
            )
            if action.phase is Phase.CLOSING and life.ending in (Reason.BALANCED, Reason.SHUTDOWN):
                assert not unsaved
            event = data.draw(st.sampled_from(RESULTS[action.phase]))
            if isinstance(event, Handled):
                unsaved = True
            if action.phase is Phase.SAVING and isinstance(event, Done):
                unsaved = False
        life, action = step(life, event)
        if lost and life.phase is not Phase.CLOSED:
            assert action == Do(Phase.CLOSING) or life.resume is Phase.CLOSING


@given(st.lists(st.sampled_from([GIVE_UP, Lost()]), min_size=1, max_size=3), st.integers(0, 12))
def test_a_life_that_should_end_does_end_when_nothing_fails(endings, before):
    life, action = begin()
    for n in range(60):
        if n == before:
            for event in endings:
                life, replaced = step(life, event)
                action = replaced or action
        if life.phase is Phase.CLOSED:
            return
        event = Done() if isinstance(action, Pause) else RESULTS[action.phase][0]
        life, action = step(life, event)
    raise AssertionError(f"still {life}")
