from benchmarks.outage import run


def test_after_an_outage_nothing_moves_and_nothing_comes_again() -> None:
    found = {(row.what, row.unit): row.value for row in run([30.0])}
    assert found["outage of 30 s", "moves"] == 0
    assert found["outage of 30 s, nobody waits for the others", "moves"] > 0
    assert found["outage of 30 s, one owns at most", "of 32"] == 8
    assert found["outage of 30 s, handled again", "events"] == 0
    assert 0 < found["outage of 30 s, the last goes on after", "s"] < 90
