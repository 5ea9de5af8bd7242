import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def bench(*words):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_names_what_can_be_measured():
    text = bench("--help").stdout
    assert "python -m benchmarks" in text
    assert "Measure Leasehold on this machine" in text
    for subject in ("plan", "hub", "spark", "reads"):
        assert subject in text


def test_a_subject_is_measured_and_shown():
    done = bench("plan")
    assert done.returncode == 0, done.stderr
    assert "plan" in done.stdout
    assert "ms" in done.stdout
