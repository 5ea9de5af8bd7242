"""The unit and the manifests of the page on deploying are well-formed, and name what exists."""

from __future__ import annotations

import configparser
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from support.processing import PATIENCE_S, make_hub, wait_until

import leasehold as lh
from leasehold.settings import TIMING
from leasehold.telemetry.metrics import MEASURES

PAGE = (Path(__file__).parents[2] / "docs/how-to/deploy.md").read_text()
STOP_S = TIMING.drain_timeout_s + TIMING.balance_interval_s + TIMING.request_timeout_s


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def manifest(kind: str) -> Any:
    (found,) = [
        each
        for each in map(yaml.safe_load, blocks("yaml"))
        if isinstance(each, dict) and each["kind"] == kind
    ]
    return found


def program() -> str:
    (text,) = [each for each in blocks("python") if each.startswith("# worker.py\n")]
    return text


def read_by_the_program() -> set[str]:
    return set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', program()))


def test_the_pods_have_probes_that_exist_and_a_grace_period_that_fits() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (port,) = container["ports"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["METRICS"] == f"0.0.0.0:{port['containerPort']}"
    assert container["livenessProbe"]["httpGet"]["port"] == port["name"]
    assert given.keys() == read_by_the_program() | {"POD_NAME", "PGPASSWORD"}
    lh.open_store(given["STORE"])
    lh.open_dead_letters(given["DEAD_LETTERS"])


def test_the_scaler_asks_for_a_metric_and_labels_that_exist() -> None:
    (trigger,) = manifest("ScaledObject")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    (metric,) = re.findall(r"leasehold_\w+", query)
    (measure,) = [each for each in MEASURES if f"leasehold_{each.name}" == metric]
    assert {"group", "partition"} <= set(measure.attributes)
    registry = lh.Registry()
    registry.declare(MEASURES)
    assert f"# TYPE {metric} gauge" in registry.render()


def test_the_unit_stops_in_time_and_gives_the_program_what_it_reads() -> None:
    (text,) = blocks("ini")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(text)
    assert float(unit["Service"]["TimeoutStopSec"]) > STOP_S
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    given = dict(
        line.split("=", 2)[1:] for line in text.splitlines() if line[:12] == "Environment="
    )
    assert given.keys() == read_by_the_program()
    lh.open_store(given["STORE"])


def test_figures_on_the_page_are_those_of_the_settings() -> None:
    assert f"| {TIMING.drain_timeout_s:g} s |" in PAGE
    assert f"| {STOP_S:g} s |" in PAGE
    assert f"{TIMING.alive_s:g} s by default" in PAGE


def test_the_program_runs_answers_probes_and_stops(tmp_path: Path, port: int) -> None:
    make_hub(tmp_path, events=4).close()
    (tmp_path / "worker.py").write_text(program())
    environ = {
        **os.environ,
        "FEED": "hub.db",
        "STORE": "sqlite:///leases.db",
        "DEAD_LETTERS": "sqlite:///dead.db",
        "METRICS": f"127.0.0.1:{port}",
        "POD_NAME": "alerts-0",
    }
    process = subprocess.Popen(
        [sys.executable, "worker.py"], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    )

    url = f"http://127.0.0.1:{port}"

    def answers(path: str) -> bool:
        try:
            return urllib.request.urlopen(f"{url}{path}", timeout=60).status == 200
        except OSError:
            return False

    try:
        wait_until(lambda: answers("/readyz") and answers("/healthz"))
        metrics = urllib.request.urlopen(f"{url}/metrics", timeout=60).read()
        assert f'member="alerts-0-{process.pid}"'.encode() in metrics
        assert process.stdout is not None
        assert len([process.stdout.readline() for _ in range(16)]) == 16
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
