"""The application is a user of the library like any other."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import leasehold

SOURCES = Path(__file__).parents[1] / "src"
PUBLIC = ("leasehold", "leasehold.spark", "leasehold.testing")


def used(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What a module takes from the library: from where, and which name."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "leasehold":
                    yield each.name, ""
                    aliases[each.asname or each.name] = each.name
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "leasehold":
            for each in node.names:
                yield node.module or "", each.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            yield aliases[ast.unparse(node.value)], node.attr


def not_public(source: str) -> list[str]:
    found = []
    for module, name in used(ast.parse(source)):
        exported = importlib.import_module(module).__all__ if module in PUBLIC else None
        if exported is None or (name and name not in exported):
            found.append(f"{module}.{name}")
    return found


def test_the_application_imports_only_what_the_library_exports() -> None:
    modules = list(SOURCES.rglob("*.py"))
    assert len(modules) > 40
    assert {str(path): found for path in modules if (found := not_public(path.read_text()))} == {}


def test_what_is_not_exported_is_noticed() -> None:
    for source in (
        "from leasehold.feeds.hub import Hub",
        "import leasehold.ports",
        "import leasehold as lh\nlh.core",
        "def late():\n    from leasehold import cli",
        "from leasehold.spark import frames",
    ):
        assert not_public(source), source
    assert not_public("import leasehold as lh\nfrom leasehold import Hub\nlh.Retry") == []


def test_the_application_takes_no_class_name_of_the_library() -> None:
    def names(folder: Path) -> set[str]:
        trees = (ast.parse(path.read_text()) for path in folder.rglob("*.py"))
        nodes = (node for tree in trees for node in ast.walk(tree))
        return {node.name for node in nodes if isinstance(node, ast.ClassDef)}

    library = names(Path(leasehold.__file__).parent)
    assert len(library) > 100
    assert names(SOURCES) & library == set()
