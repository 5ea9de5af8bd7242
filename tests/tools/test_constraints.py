from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
APPLICATION = tomllib.loads((ROOT / "homes/pyproject.toml").read_text())
PINS = dict(line.split("==") for line in LINES)
ONLY_WHERE_THE_MACHINE_LACKS_IT = ("java", "node", "postgres-server")


def needed(requirements: Iterable[str]) -> set[str]:
    """The names of everything that these bring in, with what those need in turn."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {e for n, e in seen if n == name}:
            seen.add((name, extra))
            for text in requires(name) or []:
                further = Requirement(text)
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    waiting.append(further)
    return {name for name, _ in seen}


def test_constraints_hold_names_and_versions_only() -> None:
    assert [line for line in LINES if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []
    assert sorted(LINES) == LINES


def test_everything_that_the_project_brings_in_is_pinned_and_installed_as_pinned() -> None:
    direct = ["pip", "setuptools", *PROJECT["build-system"]["requires"]]
    direct += PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    direct += PROJECT["dependency-groups"]["docs"]
    direct += APPLICATION["project"]["dependencies"]
    for project in (PROJECT, APPLICATION):
        for extra in project["project"]["optional-dependencies"].values():
            direct += extra
    names = needed(direct) - {"leasehold"}
    assert len(names) > len(direct)
    assert {name: version(name) for name in names} == {name: PINS.get(name) for name in names}


def test_what_only_some_machines_need_is_pinned_too() -> None:
    for group in ONLY_WHERE_THE_MACHINE_LACKS_IT:
        for text in PROJECT["dependency-groups"][group]:
            requirement = Requirement(text)
            assert requirement.specifier.contains(PINS[requirement.name])


def test_a_cluster_s_own_pyspark_is_not_replaced() -> None:
    """Its extra is the one for Spark, without what a cluster brings."""
    extras = PROJECT["project"]["optional-dependencies"]
    theirs = {"pyspark", "pandas"}
    assert {Requirement(each).name for each in extras["spark"]} >= theirs
    assert extras["spark-cluster"] == [
        each for each in extras["spark"] if Requirement(each).name not in theirs
    ]
    assert not needed(extras["spark-cluster"]) & theirs
