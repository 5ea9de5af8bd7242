from __future__ import annotations

import ast
import re
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest

from homes.domain.kinds import FITTED, KIND, KINDS, SENSOR_KINDS
from homes.pipelines.activity import Consolidate
from homes.pipelines.alerts import SensorReading, is_urgent
from homes.web.domain_js import domain_module
from leasehold import strict_json

PACKAGE = Path(__file__).parents[2] / "src/homes"
A_NEW_KIND_TOUCHES = {"domain/kinds.py", "simulator/days.py", "web/static/icons.js"}
OF_ITS_OWN = {"pipelines/alerts.py": {"co"}, "web/static/operations.js": {"co"}}
"""What one kind has and the others do not: a setting (co_ppm), a button that adds detectors."""


def literals(path: Path) -> set[str]:
    if path.suffix == ".py":
        found = ast.walk(ast.parse(path.read_text()))
        return {str(each.value) for each in found if isinstance(each, ast.Constant)}
    return set(re.findall(r"""["'`](\w+)["'`]|(?<=levels\.)\w+""", path.read_text()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_named_in_three_files_only(kind: str) -> None:
    sources = [path for end in ("py", "js") for path in PACKAGE.rglob(f"*.{end}")]
    assert len(sources) > 50
    named = {
        name
        for path in sources
        if kind in literals(path)
        and kind not in OF_ITS_OWN.get(name := path.relative_to(PACKAGE).as_posix(), ())
    }
    assert named <= A_NEW_KIND_TOUCHES


def test_kinds_that_are_fitted_come_first() -> None:
    assert [kind.is_fitted for kind in SENSOR_KINDS] == sorted(
        (kind.is_fitted for kind in SENSOR_KINDS), reverse=True
    )
    assert sum(kind.is_fitted for kind in SENSOR_KINDS[:FITTED]) == FITTED


@pytest.mark.parametrize("kind", SENSOR_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 49.9, 50.0, 200.0])
def test_all_agree_on_what_is_active(kind, value: float) -> None:
    rows = Consolidate()(
        pl.DataFrame(
            {
                "partition": ["0"],
                "home_id": ["H000001"],
                "type": [kind.name],
                "value": [value],
                "battery": [50.0],
                "ts": [1_700_000_000_000],
                "enqueued_at": [1_700_000_000_000_000],
            }
        ).with_columns(pl.col("enqueued_at").cast(pl.Datetime("us")))
    )
    assert rows["active"].to_list() == [int(kind.is_active(value))]
    urgent = is_urgent(SensorReading("H000001", "s", kind.name, value, 0))
    assert urgent == (bool(kind.alarm_text) and kind.is_active(value))


def test_the_page_gets_the_kinds_and_thresholds_from_the_server() -> None:
    module = dict(re.findall(r"export const (\w+) = (.+);", domain_module()))
    assert strict_json.loads(module["KINDS"]) == {name: asdict(kind) for name, kind in KIND.items()}
    assert strict_json.loads(module["SILENT_AFTER_S"]) == 300
    used = "".join(path.read_text() for path in (PACKAGE / "web/static").glob("*.js"))
    assert used.count('from "./domain.js"') == 2
