"""The dashboard asks for metrics and labels that exist; so do the alerts on its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

import leasehold as lh
from leasehold.telemetry.cycle_metrics import CYCLE_MEASURES
from leasehold.telemetry.metrics import MEASURES

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text())
PAGE = (DOCS / "how-to/dashboards.md").read_text()
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


def labels_by_metric() -> dict[str, set[str]]:
    """As Prometheus sees them."""
    registry = lh.Registry()
    registry.declare([*MEASURES, *CYCLE_MEASURES])
    kinds = dict(re.findall(r"# TYPE (\S+) (\w+)", registry.render()))
    found = {}
    for measure in (*MEASURES, *CYCLE_MEASURES):
        (name,) = [each for each in kinds if _stem(each) == f"leasehold_{measure.name}"]
        for suffix in SUFFIXES[kinds[name]]:
            found[name + suffix] = {*measure.attributes, *({"le"} if suffix == "_bucket" else ())}
    return found


def _stem(metric: str) -> str:
    return metric.removesuffix("_total").removesuffix("_seconds")


def check(expression: str, known: dict[str, set[str]]) -> None:
    (metric,) = re.findall(r"leasehold_\w+", expression)
    assert metric in known, metric
    by = [
        word.strip()
        for each in re.findall(r"by \(([^)]*)\)", expression)
        for word in each.split(",")
    ]
    chosen = re.findall(r"(\w+)=~", expression)
    wanted = re.findall(rf"label_values\({metric}.*, (\w+)\)", expression)
    assert {*by, *chosen, *wanted} <= known[metric], expression


def test_every_panel_asks_for_metrics_and_labels_that_exist() -> None:
    known = labels_by_metric()
    asked = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for target in asked:
        check(target["expr"], known)
        (metric,) = re.findall(r"leasehold_\w+", target["expr"])
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known[metric]
    for variable in DASHBOARD["templating"]["list"][1:]:
        check(variable["query"]["query"], known)
    shown = {metric for each in asked for metric in re.findall(r"leasehold_\w+", each["expr"])}
    told = {f"leasehold_{each.name}" for each in MEASURES}
    assert told <= {_stem(metric.removesuffix("_bucket")) for metric in shown}


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_the_alerts_of_the_page_ask_for_what_exists() -> None:
    texts = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.S | re.M)
    (rules,) = [each["groups"][0]["rules"] for each in map(yaml.safe_load, texts)]
    known = labels_by_metric()
    for rule in rules:
        check(rule["expr"], known)
    assert len(rules) == 2
