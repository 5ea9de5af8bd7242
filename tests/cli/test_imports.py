"""A command imports what it needs: counted in modules, since seconds depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import leasehold as lh
from leasehold.cli.commands import COMMANDS, load

LISTS_ITS_MODULES = """
import atexit, json, sys
from leasehold.cli import main
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
main()
"""
NEVER = {"benchmarks", "homes", "leasehold.spark", "leasehold.testing", "pyspark", "pandas",
         "polars", "deltalake", "azure", "psycopg"}  # fmt: skip
NOT_FOR_HELP = {"pyarrow", "numpy", "sqlite3", "leasehold.feeds", "leasehold.stores",
                "leasehold.processor", "leasehold.operations"}  # fmt: skip


def modules(*words: object) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LISTS_ITS_MODULES, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_imports_no_command_and_nothing_that_only_commands_need() -> None:
    imported = modules("--help")
    assert not imported & (NEVER | NOT_FOR_HELP)
    assert len({name for name in imported if name.startswith("leasehold")}) < 12


def test_the_help_of_lag_opens_no_feed_and_needs_none() -> None:
    assert not modules("lag", "--help") & (NEVER | {"pyarrow", "numpy"})


def test_lag_imports_neither_spark_nor_anything_else_that_it_does_not_use(tmp_path: Path) -> None:
    lh.Hub.create(tmp_path / "hub.db", name="sensors", namespace="homes.local", partitions=1)
    (tmp_path / "leases.db").touch()
    store = f"sqlite:///{tmp_path}/leases.db"
    imported = modules("lag", tmp_path / "hub.db", "--group", "alerts", "--store", store)
    assert "leasehold.operations.estimator" in imported
    assert not imported & NEVER
    assert "leasehold.processor.pump" not in imported


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_begins_with(name: str) -> None:
    paragraph = load(name).help.partition("\n\n")[0]
    assert COMMANDS[name].about == " ".join(paragraph.split())


def test_every_public_name_is_there_and_others_are_not() -> None:
    for name in lh.__all__:
        assert getattr(lh, name) is not None
        assert name in dir(lh)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lh.nothing
