"""The cliff of many folders is measured with the former figure beside it."""

from __future__ import annotations

import pytest

from benchmarks import folders


def test_every_number_of_folders_is_measured_beside_one() -> None:
    rows = list(folders.run(rows=2_000, rounds=1))
    assert [row.former for row in rows] == list(folders.VALUES.values())
    assert rows[0].ratio == 1
    assert all(row.value > 0 and row.ratio for row in rows)


def test_a_row_that_is_dealt_out_nowhere_fails_the_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = folders.parts
    monkeypatch.setattr(folders, "parts", lambda *given: list(parts(*given))[1:])
    with pytest.raises(AssertionError, match="missing"):
        list(folders.run(rows=2_000, rounds=1))
