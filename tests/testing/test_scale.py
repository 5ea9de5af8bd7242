import pytest

from leasehold.core.balance import by_count, by_weight
from leasehold.testing.scale import start_up


@pytest.mark.parametrize(("instances", "apart_s", "seed"), [(3, 4.0, 0), (2, 12.0, 2)])
def test_starting_up_by_weight_moves_no_more_than_by_count(instances, apart_s, seed):
    counted = start_up(instances, by_count, apart_s=apart_s, seed=seed)
    assert start_up(instances, by_weight(), apart_s=apart_s, seed=seed) <= counted
