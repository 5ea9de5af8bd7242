"""The program of the page on clusters runs, and its manifests give it what it needs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.processing import PATIENCE_S, wait_until

import leasehold as lh
from homes.domain.reading import home_id
from homes.local.places import ACTIVITY
from homes.simulator.sensors import send_reading
from leasehold.settings import TIMING
from leasehold.telemetry.metrics import MEASURES

PAGE = (Path(__file__).parents[1] / "docs" / "beyond-one-machine.md").read_text()
STOP_S = TIMING.drain_timeout_s + TIMING.balance_interval_s + TIMING.request_timeout_s
SECRETS = {"PGPASSWORD", "KAFKA_SASL_USERNAME", "KAFKA_SASL_PASSWORD"}
STORAGE = {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"}


def program() -> str:
    (text,) = re.findall(r"```python\n(# pipeline.py\n.*?)```", PAGE, re.S)
    return str(text)


def manifest(kind: str) -> Any:
    found = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.S))
    (wanted,) = [each for each in found if each["kind"] == kind]
    return wanted


def test_the_pods_have_probes_that_exist_a_grace_period_that_fits_and_what_the_program_reads() -> (
    None
):
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    for probe in ("readinessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["path"] == "/readyz"
    (port,) = container["ports"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["METRICS"] == f"0.0.0.0:{port['containerPort']}"
    read = set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', program())) - {"SPARK"}
    assert given.keys() == read | SECRETS | STORAGE
    lh.open_store(given["STORE"])
    lh.open_dead_letters(given["DEAD_LETTERS"])


def test_the_scaler_asks_for_our_lag_of_the_pipelines_group() -> None:
    spec = manifest("ScaledObject")["spec"]
    assert spec["scaleTargetRef"]["name"] == manifest("Deployment")["metadata"]["name"]
    query = spec["triggers"][0]["metadata"]["query"]
    (metric,) = re.findall(r"leasehold_\w+", query)
    assert metric in {f"leasehold_{each.name}" for each in MEASURES}
    assert f'group="{ACTIVITY}"' in query


@pytest.mark.servers
@pytest.mark.timeout(3 * PATIENCE_S)
def test_the_program_runs_answers_probes_and_stops(tmp_path: Path, port: int) -> None:
    with lh.Hub.create(tmp_path / "hub.db", name="h", namespace="t", partitions=2) as hub:
        send_reading(hub, home_id(3), "motion", 1.0)
    (tmp_path / "pipeline.py").write_text(program())
    environ = {
        **os.environ,
        "FEED": "hub.db",
        "STORE": "sqlite:///leases.db",
        "DEAD_LETTERS": "sqlite:///dead.db",
        "TABLE": "activity",
        "HOMES": "10",
        "METRICS": f"127.0.0.1:{port}",
        "POD_NAME": "pipeline-0",
    }
    process = subprocess.Popen(
        [sys.executable, "pipeline.py"], cwd=tmp_path, env=environ, start_new_session=True
    )

    def answer(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as found:
                return str(found.read().decode())
        except OSError:
            return ""

    try:
        wait_until(lambda: bool(answer("/readyz") and answer("/healthz")))
        assert 'member="pipeline-0"' in answer("/metrics")
        wait_until((tmp_path / "activity" / "_delta_log").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
