"""The judge notices every broken rule: otherwise chaos would prove nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from chaos.instance import Log
from chaos.judge import Batch, Life, Outage, Sample, Tenure, Verdict, judge, read_log

HELD = {"0": [100, 101, 102, 103, 104, 105]}


def batch(*sequences: int, began: float = 0.0, took: float = 0.5) -> Batch:
    return Batch(
        began=began,
        ended=began + took,
        sequences=sequences,
        numbers=[100 + sequence for sequence in sequences],
    )


def tenure(epoch: int, *batches: Batch, life: Life | None = None, reason: str | None) -> Tenure:
    return Tenure(
        life=life or Life(instance=f"i{epoch}"),
        partition="0",
        epoch=epoch,
        opened=batches[0].began if batches else 0.0,
        closed=batches[-1].ended if reason and batches else inf,
        reason=reason,
        batches=list(batches),
    )


def sample(at: float, next_sequence: int, epoch: int = 1, owner: str | None = "i") -> Sample:
    return Sample(at=at, partition="0", next_sequence=next_sequence, epoch=epoch, owner=owner)


def good() -> list[Tenure]:
    return [
        tenure(1, batch(0, 1), batch(2, began=1), reason="balanced"),
        tenure(2, batch(3, 4, 5, began=2), reason="shutdown"),
    ]


END = sample(9.0, 6, epoch=2, owner=None)


def problems_of(tenures: Sequence[Tenure], *samples: Sample) -> str:
    return "; ".join(judge(HELD, tenures, [*samples, END]).problems)


def test_a_run_in_good_order_has_no_problem() -> None:
    verdict = judge(HELD, good(), [sample(0.7, 2), sample(2.2, 3), END])
    assert verdict == Verdict(events=6, calls=3, moves=verdict.moves)
    assert verdict.moves == {"orderly": 1}


def test_an_event_never_handled_is_noticed() -> None:
    tenures = good()
    tenures[1] = tenure(2, batch(3, 4, began=2), reason="shutdown")
    assert "1 events never handled, from 5 on" in problems_of(tenures)


def test_an_event_skipped_by_a_new_owner_is_noticed() -> None:
    tenures = [
        tenure(1, batch(0, 1), reason=None, life=Life(instance="i", killed=True)),
        tenure(2, batch(3, 4, 5, began=2), reason="balanced"),
        tenure(3, batch(2, 3, 4, 5, began=3), reason="shutdown"),
    ]
    assert "begins at 3 although only 2 were handled" in problems_of(tenures)


@pytest.mark.parametrize("second", [(2, 3), (3, 2), (4, 5), (1, 2)])
def test_order_broken_within_an_epoch_is_noticed(second: tuple[int, int]) -> None:
    broken = tenure(1, batch(0, 1, 2), batch(*second, began=1), reason="balanced")
    assert "handled right after" in problems_of([broken, good()[1]])


def test_two_calls_at_once_for_one_partition_are_noticed() -> None:
    tenures = [
        tenure(1, batch(0, 1), batch(2, began=0.4), reason="balanced"),
        good()[1],
    ]
    assert "two handler calls at once" in problems_of(tenures)


def test_an_event_that_is_not_what_was_sent_is_noticed() -> None:
    tenures = good()
    tenures[0].batches[1] = replace(tenures[0].batches[1], numbers=[7])
    assert "event 2 is not what was sent" in problems_of(tenures)


def test_two_owners_of_one_epoch_are_noticed() -> None:
    other = tenure(1, life=Life(instance="other"), reason="balanced")
    assert "other has the same epoch" in problems_of([*good(), other])


@pytest.mark.parametrize(
    ("reason", "life", "cause"),
    [
        (None, Life(instance="i", killed=True), "killed"),
        ("lost", Life(instance="i", pauses=[(0.1, 5.0)]), "paused"),
        (None, Life(instance="i", pauses=[(0.1, inf)], killed=True), "paused"),
        ("lost", Life(instance="i"), "overruled"),
        ("lost", Life(instance="i", pauses=[(5.0, 9.0)]), "overruled"),
    ],
)
def test_an_event_handled_twice_is_counted_by_its_cause(
    reason: str | None, life: Life, cause: str
) -> None:
    before = tenure(1, batch(0, 1, 2), life=life, reason=reason)
    after = tenure(2, batch(1, 2, 3, 4, 5, began=3), reason="shutdown")
    verdict = judge(HELD, [before, after], [END])
    assert verdict.problems == []
    assert (verdict.twice, verdict.moves) == ({cause: 2}, {cause: 1})


@pytest.mark.parametrize(
    ("reason", "life"),
    [
        ("balanced", Life(instance="i")),
        ("shutdown", Life(instance="i")),
        ("balanced", Life(instance="i", pauses=[(0.1, 0.2)])),
        ("shutdown", Life(instance="i", killed=True)),
        (None, Life(instance="i")),
    ],
)
def test_an_event_handled_twice_for_no_good_reason_is_noticed(
    reason: str | None, life: Life
) -> None:
    before = tenure(1, batch(0, 1, 2), life=life, reason=reason)
    after = tenure(2, batch(2, 3, 4, 5, began=3), reason="shutdown")
    assert "event 2 again" in problems_of([before, after])


def test_an_event_handled_again_after_a_second_and_orderly_handling_is_noticed() -> None:
    tenures = [
        tenure(1, batch(0, 1, 2), reason=None, life=Life(instance="i", killed=True)),
        tenure(2, batch(2, 3, began=2), reason="balanced"),
        tenure(3, batch(2, 3, 4, 5, began=3), reason="shutdown"),
    ]
    assert "epoch 3, i3: event 2 again" in problems_of(tenures)


OUTAGE = Outage(began=1.0, ended=9.0, ttl_s=3.0)


def cut_off(*later: Batch, taken_at: float, taker: Life | None = None) -> list[Tenure]:
    """One owner in hand of events 0 and 1 when the store goes away, and lost to another."""
    before = tenure(1, batch(0, 1), *later, reason="lost")
    after = tenure(2, batch(1, 2, 3, 4, 5, began=taken_at), life=taker, reason="shutdown")
    return [replace(before, closed=12.5), replace(after, opened=taken_at)]


def with_outage(tenures: Sequence[Tenure], *samples: Sample) -> Verdict:
    return judge(HELD, tenures, [*samples, replace(END, at=20.0)], outages=[OUTAGE])


def test_what_an_owner_had_in_hand_when_the_store_went_away_may_come_again() -> None:
    verdict = with_outage(cut_off(taken_at=12.1))
    assert verdict.problems == []
    assert (verdict.twice, verdict.moves) == ({"outage": 1}, {"outage": 1})
    assert verdict.resumed_s == pytest.approx(3.1)


def test_who_takes_a_lease_before_its_owner_had_time_to_renew_after_an_outage_is_noticed() -> None:
    witness = Life(instance="witness")
    elsewhere = replace(tenure(1, life=witness, reason="shutdown"), partition="1", opened=0.5)
    held = {**HELD, "1": []}
    end = [replace(END, at=20.0), replace(END, at=20.0, partition="1", next_sequence=0)]
    for taken_at, robs in ((11.9, True), (12.1, False)):
        tenures = [*cut_off(taken_at=taken_at, taker=witness), elsewhere]
        problems = judge(held, tenures, end, outages=[OUTAGE]).problems
        assert ["robs i1" in problem for problem in problems] == [True] * robs
    assert with_outage(cut_off(taken_at=9.5)).problems == [], "a newcomer cannot know of the outage"


def test_more_calls_than_one_begun_long_after_the_store_went_away_are_noticed() -> None:
    one, two = batch(2, began=4.1), batch(3, began=5.0)
    assert with_outage(cut_off(one, taken_at=12.1)).problems == []
    problems = with_outage(cut_off(one, two, taken_at=12.1)).problems
    assert problems == ["partition 0, epoch 1, i1: 2 calls begun when its lease was long stale"]


def test_events_that_a_checkpoint_covered_and_that_come_again_are_noticed() -> None:
    assert with_outage(cut_off(taken_at=12.1), sample(0.9, 1)).problems == []
    problems = with_outage(cut_off(taken_at=12.1), sample(0.9, 2)).problems
    assert problems == ["partition 0, epoch 2, i2: begins at 1 before checkpoint 2"]


def test_two_owners_at_work_at_once_are_noticed_unless_one_is_a_zombie() -> None:
    after = tenure(2, batch(3, 4, 5, began=2), reason="shutdown")
    zombie = Life(instance="i", pauses=[(1.1, 2.2)])
    late = [batch(0, 1), batch(2, began=1, took=1.3)]
    assert "at work at once" in problems_of([tenure(1, *late, reason="balanced"), after])
    verdict = judge(HELD, [tenure(1, *late, reason="lost", life=zombie), after], [END])
    assert verdict.problems == []
    assert verdict.at_once == {"paused": 1}


def test_a_checkpoint_or_an_epoch_that_goes_back_is_noticed() -> None:
    assert "checkpoint 3 back to 2" in problems_of(good(), sample(3, 3), sample(4, 2))
    assert "epoch from 3 back to 2" in problems_of(good(), sample(3, 3, epoch=3))


def test_a_checkpoint_ahead_of_the_handlers_is_noticed() -> None:
    assert "checkpoint 3 before these events were handled" in problems_of(good(), sample(1.4, 3))
    assert problems_of(good(), sample(1.6, 3)) == ""
    assert "checkpoint 7 before" in problems_of(good(), sample(5, 7))


def test_a_checkpoint_by_a_zombie_is_noticed() -> None:
    zombie = Life(instance="i", pauses=[(0.2, 2.5)])
    tenures = [
        tenure(1, batch(0, 1, 2, 3, took=2.6), life=zombie, reason="lost"),
        tenure(2, batch(0, 1, began=2), batch(2, 3, 4, 5, began=4), reason="shutdown"),
    ]
    found = sample(1.9, 0, epoch=2)
    assert problems_of(tenures, found, sample(2.7, 2, epoch=2), sample(4.9, 4, epoch=2)) == ""
    problems = problems_of(tenures, found, sample(2.7, 4, epoch=2))
    assert "checkpoint 4 by another epoch than 2" in problems


def test_dead_letters_may_be_missing_but_nothing_else() -> None:
    tenures = [
        tenure(1, batch(0, 1), batch(3, began=1), reason="balanced"),
        tenure(2, batch(5, began=2), reason="shutdown"),
    ]
    dead = [("0", 2), ("0", 4)]
    samples = [sample(0.7, 3), sample(1.7, 5, epoch=2), END]
    assert judge(HELD, tenures, samples, dead).problems == []
    for left_out in dead:
        one = [letter for letter in dead if letter != left_out]
        assert "never handled" in "; ".join(judge(HELD, tenures, samples, one).problems)
    assert "is dead, but was handled" in judge(HELD, good(), [END], [("0", 1)]).problems[0]


@pytest.mark.parametrize("end", [replace(END, next_sequence=5), replace(END, owner="i2")])
def test_a_lease_left_behind_or_behind_its_feed_at_the_end_is_noticed(end: Sample) -> None:
    assert "ends with" in "; ".join(judge(HELD, good(), [end]).problems)


def test_a_log_is_read_back_up_to_where_a_kill_cut_it_off(tmp_path: Path) -> None:
    path, life = tmp_path / "i.log", Life(instance="i")
    log = Log(str(path))
    log.write("open", "0", 1, 0.5)
    log.write("handled", "0", 1, 1.0, 1.5, [0, 1], [100, 101])
    log.write("close", "0", 1, 2.0, "balanced")
    log.write("open", "0", 3, 4.0)
    with path.open("a") as file:
        file.write('["handled","0",3,4.0,4.')
    first, second = read_log(path, life)
    assert (first.reason, first.closed, first.sequences) == ("balanced", 2.0, [0, 1])
    assert (second.epoch, second.reason, second.batches) == (3, None, [])
    assert list(read_log(tmp_path / "never-written", life)) == []
