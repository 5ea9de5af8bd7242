import os

import pytest

from leasehold.testing.sabotage import Sabotage
from leasehold.testing.scale import scale
from leasehold.testing.simulate import simulate

SEEDS = int(os.environ.get("LEASEHOLD_SIM_SEEDS", "60"))
BLOCKS = 6


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_invariant_holds_under_every_fault(block):
    size = SEEDS // BLOCKS
    for seed in range(block * size, (block + 1) * size):
        report = simulate(seed)
        assert report.violation is None, f"make sim SEED={seed}"
        assert report.faults.total() > 0


@pytest.mark.parametrize("sabotage", [each for each in Sabotage if each is not Sabotage.NONE])
def test_a_broken_mechanism_is_noticed_within_200_seeds(sabotage):
    noticed = (seed for seed in range(200) if simulate(seed, sabotage=sabotage).violation)
    assert next(noticed, None) is not None


def test_a_seed_gives_the_same_run_again_step_by_step():
    first, second = simulate(3, trace=True), simulate(3, trace=True)
    assert first == second
    assert len(first.trace) > 50


def test_different_seeds_give_different_runs():
    assert simulate(3, trace=True).trace != simulate(4, trace=True).trace


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("before", "after"), [(1, 3), (1, 12), (1, 20), (20, 5)])
def test_scaling_is_even_within_two_intervals_with_the_fewest_moves(before, after, seed):
    report = scale(before, after, partitions=32, seed=seed)
    assert report.intervals <= 2
    assert report.moves == report.least_moves
    assert report.later_moves == 0
    assert report.counts[-1] - report.counts[0] <= 1
