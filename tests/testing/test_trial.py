"""What users test their handlers with behaves as a processor does, and takes no time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import leasehold as lh
from leasehold.testing import Faults, try_handler

DEAD = lh.Retry(attempts=3, then="dead-letter")


def strict(event: lh.Event) -> None:
    if event.body == b"bad":
        raise ValueError("no such sensor")


def test_what_fails_for_good_is_a_dead_letter_and_the_rest_is_handled() -> None:
    trial = try_handler(["a", "bad", {"value": 1}], on_event=strict, retry=DEAD)
    assert [event.body for event in trial.handled] == [b"a", b'{"value": 1}']
    (letter,) = trial.dead_letters
    assert (letter.sequence, letter.attempts, letter.reason) == (1, 3, "ValueError: no such sensor")
    assert [type(error) for error in trial.errors] == [ValueError] * 3
    assert trial.checkpoints == {"0": 3}
    assert trial.virtual_s > 0.5  # the pauses between tries


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_context_is_as_in_a_processor(kind: str) -> None:
    seen: list[Any] = []

    def plain(events: Any, context: lh.Context) -> None:
        seen.append((context.partition, context.instance, events.arrow.num_rows))
        context.dead_letter(events[0], "left out")
        context.checkpoint()

    async def waiting(events: Any, context: lh.Context) -> None:
        seen.append((context.partition, context.instance, events.arrow.num_rows))
        await context.dead_letter_async(events[0], "left out")
        await context.checkpoint_async()

    trial = try_handler(
        "abcd",
        on_batch=plain if kind == "plain" else waiting,
        partitions=2,
        checkpoint=lh.manual(),
        dead_letters=lh.open_dead_letters("memory://"),
    )
    assert sorted(seen) == [("0", "trial", 2), ("1", "trial", 2)]
    assert [letter.error for letter in trial.dead_letters] == ["left out"] * 2
    assert trial.checkpoints == {"0": 2, "1": 2}


def test_events_keep_key_properties_and_partition() -> None:
    given = lh.Event(b"x", 99, "", datetime.now(UTC), "1", "H7", {"kind": "door"})
    (event,) = try_handler([given], on_event=lambda event: None, partitions=2).handled
    assert (event.partition, event.partition_key, event.properties) == ("1", "H7", {"kind": "door"})
    assert event.sequence == 0
    with pytest.raises(lh.BadInput, match="no partition '1' here, only 0"):
        try_handler([given], on_event=strict)


def test_nothing_is_lost_behind_a_store_that_fails() -> None:
    faults = Faults(fail_before=0.3, fail_after=0.3, delay_s=0.5)
    trial = try_handler(map(str, range(100)), on_event=strict, partitions=4, faults=faults, seed=3)
    assert {int(event.body) for event in trial.handled} == set(range(100))
    assert any(isinstance(error, lh.StoreUnavailable) for error in trial.errors)


def test_a_handler_that_always_fails_is_given_up_with_its_error() -> None:
    with pytest.raises(TimeoutError, match=r"not done after 60 s.*no such sensor"):
        try_handler(["bad"], on_event=strict, give_up_s=60)
