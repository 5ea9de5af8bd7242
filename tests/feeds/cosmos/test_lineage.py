import pytest

from leasehold.feeds.cosmos.client import PhysicalRange
from leasehold.feeds.cosmos.lineage import merged_since
from leasehold.feeds.cosmos.tokens import Bounds


def ranges(**parents: str) -> list[PhysicalRange]:
    """By name, without its first letter: the ancestors, the oldest first."""
    return [
        PhysicalRange(name[1:], Bounds("", "FF"), tuple(each.split()))
        for name, each in parents.items()
    ]


SPLIT = ranges(r2="0", r3="0 1", r4="0 1")
BACK = ranges(r3="0 1 2")
RESPLIT = ranges(r4="1 2 3", r5="1 2 3")
PARTLY = ranges(r5="0 1 2 3", r4="0 2")
"""0 was split into 1 and 2, 2 into 3 and 4; 1 and 3 were merged."""


@pytest.mark.parametrize(
    ("known", "unmixed", "mixed"),
    [
        (SPLIT, "0 1 2 3 4", ""),
        (BACK, "3", "1 2"),
        (RESPLIT, "3 4 5", "1 2"),
        (PARTLY, "4 5", "1 2 3"),
    ],
)
def test_ranges_that_may_hold_keys_of_others_are_known_by_their_ancestors(
    known: list[PhysicalRange], unmixed: str, mixed: str
) -> None:
    assert not [each for each in unmixed.split() if merged_since(each, known)]
    assert not [each for each in mixed.split() if not merged_since(each, known)]
