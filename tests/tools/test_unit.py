"""``make unit`` needs no server and no Java, and says so when a test does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKED = """
import pytest
from support import servers

def test_nothing(): pass
def test_by_fixture(postgres_url): pass
def test_by_another_fixture(spark): pass
@pytest.mark.servers
def test_marked(): servers.azurite()
@pytest.mark.takes_s(50)
def test_long(): pass
"""
UNMARKED = """
from support import servers

def test_unmarked(): servers.postgres()
def test_java():
    from leasehold.spark import local_session
    local_session(1)
"""

BY_NAME = """
import pytest

@pytest.fixture
def azurite(): pass
@pytest.fixture
def store(request): return request.getfixturevalue("azurite")

def test_it(store): pass
@pytest.mark.servers
def test_marked(store): pass
"""


def run(folder, text, *options):
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", "-c"]
    return subprocess.run(
        [*command, ROOT / "pyproject.toml", f"--rootdir={ROOT}", "-p", "conftest", folder],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_needs_a_server_or_takes_long_is_left_out(tmp_path):
    done = run(tmp_path, MARKED, "--unit")
    assert "1 passed, 4 deselected" in done.stdout, done.stdout + done.stderr


def test_what_starts_a_server_all_the_same_fails(tmp_path):
    done = run(tmp_path, UNMARKED, "--unit")
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    assert "pytest.mark.servers" in done.stdout


def test_who_asks_for_a_server_by_name_is_noticed_in_every_run(tmp_path):
    done = run(tmp_path, BY_NAME)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "pytest.mark.servers: it uses azurite" in done.stdout
