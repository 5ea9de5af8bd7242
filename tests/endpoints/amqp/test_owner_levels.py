"""Which receivers may read side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from leasehold.endpoints.amqp.errors import LinkFailed
from leasehold.endpoints.amqp.owner_levels import RECEIVERS_MAX, OwnerLevels


@dataclass(eq=False)
class Reading:
    owner_level: int | None = None
    failed: list[LinkFailed] = field(default_factory=list)
    levels: OwnerLevels | None = None

    def fail(self, error: LinkFailed) -> None:
        self.failed.append(error)
        if self.levels:
            self.levels.leave("$Default", "0", self)


def entered(levels: OwnerLevels, *owner_levels: int | None) -> list[Reading]:
    made = [Reading(level) for level in owner_levels]
    for each in made:
        levels.enter("$Default", "0", each)
    return made


def test_a_higher_or_equal_level_cuts_off_what_was_there() -> None:
    levels = OwnerLevels()
    none, low, same, high = entered(levels, None, 1, 1, 5)
    assert [len(each.failed) for each in (none, low, same, high)] == [1, 1, 1, 0]
    assert low.failed[0].condition == "amqp:link:stolen"


@pytest.mark.parametrize("level", [None, 0, 4])
def test_a_lower_level_or_none_is_refused_while_a_higher_one_reads(level: int | None) -> None:
    levels = OwnerLevels()
    (owner,) = entered(levels, 5)
    with pytest.raises(LinkFailed, match="epoch 5") as refused:
        levels.enter("$Default", "0", Reading(level))
    assert refused.value.condition == "amqp:link:stolen"
    assert not owner.failed
    levels.leave("$Default", "0", owner)
    levels.enter("$Default", "0", Reading(level))


def test_groups_and_partitions_have_levels_of_their_own_and_groups_have_no_case() -> None:
    levels = OwnerLevels()
    (owner,) = entered(levels, 5)
    levels.enter("$Default", "1", Reading(1))
    levels.enter("other", "0", Reading(1))
    assert not owner.failed
    with pytest.raises(LinkFailed):
        levels.enter("$default", "0", Reading(1))


def test_five_receivers_without_a_level_read_side_by_side_and_no_more() -> None:
    levels = OwnerLevels()
    readers = entered(levels, *[None] * RECEIVERS_MAX)
    with pytest.raises(LinkFailed) as refused:
        levels.enter("$Default", "0", Reading())
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    levels.leave("$Default", "0", readers[0])
    levels.enter("$Default", "0", Reading())
    assert not any(each.failed for each in readers)


def test_who_took_over_keeps_its_level_though_the_others_leave_by_themselves() -> None:
    levels = OwnerLevels()
    levels.enter("$Default", "0", Reading(1, levels=levels))
    levels.enter("$Default", "0", Reading(2, levels=levels))
    with pytest.raises(LinkFailed, match="epoch 2"):
        levels.enter("$Default", "0", Reading(1, levels=levels))
