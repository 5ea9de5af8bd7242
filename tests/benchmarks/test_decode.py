"""What ``make bench`` measures on decoding, at a small scale: that it measures, not what."""

from __future__ import annotations

from benchmarks import decode


def test_good_bodies_come_out_the_same_among_any_share_of_bad_ones() -> None:
    rows = list(decode.run(events=2_000, rounds=1))
    assert [row.former for row in rows] == [0.95, 17, 73, 508, 313]
    assert all(row.value > 0 for row in rows)
