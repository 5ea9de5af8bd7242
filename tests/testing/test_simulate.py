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


@pytest.mark.parametrize(
    ("before", "after", "replaced", "seeds"),
    [
        (1, 3, 0, range(6)),
        (1, 12, 0, range(70, 76)),  # among them some that once moved more than they had to
        (1, 20, 0, range(82, 88)),
        (20, 5, 0, range(12)),
        (20, 5, 0, range(12, 24)),
        (20, 19, 0, range(3)),
        (20, 1, 0, range(3)),
        (12, 4, 0, range(6)),
        (10, 10, 5, range(12)),
    ],
    ids=str,
)
def test_scaling_is_even_within_two_intervals_with_the_fewest_moves(before, after, replaced, seeds):
    for seed in seeds:
        report = scale(before, after, replaced=replaced, partitions=32, seed=seed)
        assert report.intervals <= 2, seed
        assert report.moves == report.least_moves, seed
        assert report.later_moves == 0, seed
        assert len(report.counts) == after, seed
        assert report.counts[-1] - report.counts[0] <= 1, seed
