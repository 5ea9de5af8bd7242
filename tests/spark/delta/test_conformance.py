"""``DeltaSink`` does what every sink must do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sink_world import DeltaWorld

from leasehold.testing.check_sink import CHECKS, Check


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_a_delta_table_does_what_every_sink_must_do(rule: Check, tmp_path: Path) -> None:
    rule(DeltaWorld(tmp_path))
