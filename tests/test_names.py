"""A class name means one thing in the code base."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / name for name in ("src/leasehold", "homes/src", "benchmarks", "tools")]


def classes(source: str) -> list[str]:
    """The classes of a module that others may import."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_no_two_classes_have_one_name() -> None:
    paths = [path for folder in SOURCES for path in folder.rglob("*.py")]
    found = Counter(name for path in paths for name in classes(path.read_text()))
    assert len(found) > 150
    assert [name for name, count in found.items() if count > 1] == []
