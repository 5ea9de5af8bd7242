"""The hops in docs/architecture.md are those of the code, and none goes back up a layer."""

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text().split("### One reading, hop by hop")[1]
TABLES = re.findall(r"\| hop \| what happens \|\n\|---\|---\|\n((?:\|.*\n)+)", TEXT)
WAYS = [re.findall(r"^\| `([\w/.]+)` \|", table, re.M) for table in TABLES]
HOPS = [hop for way in WAYS for hop in pairwise(way)]


def layers(pyproject):
    """The rank of each layer, the highest first; what lies in one layer has one rank."""
    contracts = tomllib.loads((ROOT / pyproject).read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (each["layers"] for each in contracts if each["id"] == "layers")
    return {name: rank for rank, layer in enumerate(found) for name in re.findall(r"\w+", layer)}


LIBRARY, HOMES = layers("pyproject.toml"), layers("homes/pyproject.toml")


def rank(path):
    """The application lies above the library."""
    if path.startswith("homes/"):
        return HOMES[path.split("/")[1]] - len(HOMES)
    return LIBRARY[path.split("/")[0].removesuffix(".py")]


def source(path):
    return ROOT / ("homes/src" if path.startswith("homes/") else "src/leasehold") / path


def dotted(path):
    name = path.removesuffix(".py").replace("/", ".")
    return name if path.startswith("homes/") else f"leasehold.{name}"


def imported(path):
    """The modules that a module imports, at its top or when it needs them."""
    for node in ast.walk(ast.parse(source(path).read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def packages(path):
    """A module is known by its own name, or by that of a package which exports what it has."""
    parts = dotted(path).split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)} - {"homes"}


def test_one_reading_and_one_alert_are_followed():
    assert len(WAYS) >= 8
    assert all(len(way) >= 4 for way in WAYS)


@pytest.mark.parametrize(("above", "below"), HOPS)
def test_no_hop_goes_back_up_a_layer(above, below):
    assert rank(above) <= rank(below)


@pytest.mark.parametrize(("above", "below"), HOPS)
def test_every_hop_is_known_by_import_or_through_a_port(above, below):
    assert source(below).exists()
    known = packages(below)
    if above.startswith("processor/") and below.startswith(("feeds/", "stores/")):
        known = {"leasehold.ports"}
    assert known & {*imported(above)}
