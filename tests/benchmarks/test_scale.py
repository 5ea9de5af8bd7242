import pytest

from benchmarks.scale import run
from benchmarks.scale_costs import Cost, Costs
from benchmarks.scale_world import Model, cell

VERBS = ("snapshot", "plan", "heartbeat", "acquire", "renew", "release")


def costs(server_s: float, look_s: float) -> Costs:
    usual = {1: Cost(server_s=server_s, client_s=0.001, requests=1.0)}
    look = {1: Cost(server_s=look_s, client_s=0.001, requests=1.0)}
    measured = dict.fromkeys(VERBS, usual) | {"snapshot": look}
    return Costs(kind="made", measured=measured, bytes_per_look={1: 100.0, 3: 300.0})


def test_a_store_is_measured_and_a_group_on_it_gets_even(tmp_path):
    rows = run(
        [f"sqlite:///{tmp_path / 'leases.db'}"],
        cells={(16, 4): Model()},
        measured=[(16, 2), (128, 4)],
        report=tmp_path,
    )
    found = {row.what: row.value for row in rows}
    assert found["sqlite, renew of 128, client"] > found["sqlite, renew of 1, client"]
    assert 0 < found["sqlite, 16 × 4: even after a join"] < 10
    assert 0 < found["sqlite, 16 × 4: even after a tenth was lost"] < 20
    assert found["sqlite, 16 × 4: moved by the join"] == 3
    assert found["sqlite, 16 × 4: moved by the outage"] == 0
    assert found["sqlite, 16 × 4: requests given up"] == 0
    assert (tmp_path / "scale.json").exists()


def test_looks_queue_for_the_cores_of_the_store():
    slow = costs(0.001, look_s=0.5)
    one, eight = (cell(slow, 16, 8, cores=cores, phases=()) for cores in (1, 8))
    assert one.look_s > 1.5 * eight.look_s
    assert one.busy_cores <= 1.01


def test_a_smaller_group_stands_for_a_large_one():
    made = costs(0.001, look_s=0.02)
    whole = cell(made, 160, 8, cores=4)
    model = cell(made, 160, 8, cores=4, model=Model(fewer=2, thinner=5))
    assert model.start_s == pytest.approx(whole.start_s, abs=1.5)
    assert model.loss_s == pytest.approx(whole.loss_s, abs=3.0)
    assert model.requests_per_s == pytest.approx(whole.requests_per_s, rel=0.15)
    assert model.busy_cores == pytest.approx(whole.busy_cores, rel=0.15)


def test_a_look_that_takes_longer_than_the_time_limit_breaks_a_group():
    broken = cell(costs(0.001, look_s=6.0), 16, 4, cores=8)
    assert broken.start_s is None
    assert broken.late > 0


@pytest.mark.parametrize(("leases", "expected"), [(1, 100), (2, 200), (5, 500)])
def test_between_and_beyond_measured_sizes_costs_follow_a_line(leases, expected):
    assert costs(0.001, 0.001).look_bytes(leases) == pytest.approx(expected)
