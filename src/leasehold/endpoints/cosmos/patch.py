"""Partial updates of a document, as Cosmos DB describes them."""

from __future__ import annotations

import copy
from typing import Any

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql import parse
from leasehold.endpoints.cosmos.sql.evaluate import evaluate
from leasehold.endpoints.cosmos.sql.values import type_of

OPERATIONS_MAX = 10
SYSTEM = ("id", "_rid", "_ts", "_etag", "_self")
MISSING = object()


Path = tuple[str, ...]


def patched(document: dict[str, Any], body: Any, fixed: tuple[Path, ...]) -> dict[str, Any]:
    """``fixed``: the paths of the partition key, which cannot be changed, nor can the id."""
    # Some clients send the operations alone.
    wish = {"operations": body} if isinstance(body, list) else body
    operations = wish.get("operations") if isinstance(wish, dict) else None
    if not isinstance(operations, list) or not 1 <= len(operations) <= OPERATIONS_MAX:
        raise Refusal(400, f"A patch has 1 to {OPERATIONS_MAX} operations.")
    _require_condition(document, wish.get("condition"))
    new = copy.deepcopy(document)
    for each in operations:
        if not isinstance(each, dict):
            raise Refusal(400, "An operation of a patch is an object.")
        paths = [_steps(each.get("path"))]
        if each.get("op") == "move":
            paths.append(_steps(each.get("from")))
        for path in paths:
            if path[0] in SYSTEM or any(path == key[: len(path)] for key in fixed):
                raise Refusal(400, f"A patch cannot change {'/'.join(path)!r:.80}.")
        _apply(new, each, *paths)
    return new


def _require_condition(document: dict[str, Any], condition: Any) -> None:
    if not condition:
        return
    query = parse(f"SELECT * {condition}")
    if query.where is not None and evaluate(query.where, document) is not True:
        raise Refusal(412, "The condition of the patch does not hold.")


def _apply(
    document: dict[str, Any], operation: dict[str, Any], path: Path, origin: Path | None = None
) -> None:
    kind = operation.get("op")
    parent, name = _parent(document, path), path[-1]
    if origin is not None:
        value = _remove(_parent(document, origin), origin[-1])
        _set(_parent(document, path), name, value, inserts=True)
        return
    if kind == "remove":
        _remove(parent, name)
        return
    value = operation.get("value", MISSING)
    if value is MISSING:
        raise Refusal(400, f"The operation {kind!r:.20} of a patch needs a value.")
    if kind in ("incr", "increment"):
        old = _get(parent, name)
        if old is MISSING:
            old = 0
        if type_of(old) != 4 or type_of(value) != 4:
            raise Refusal(400, f"{operation['path']!r:.80} is no number to be incremented.")
        _set(parent, name, old + value, inserts=False)
    elif kind == "replace":
        if _get(parent, name) is MISSING:
            raise Refusal(400, f"There is nothing at {operation['path']!r:.80} to replace.")
        _set(parent, name, value, inserts=False)
    elif kind in ("add", "set"):
        _set(parent, name, value, inserts=kind == "add")
    else:
        raise Refusal(400, f"The operation {kind!r:.40} of a patch is unknown.")


def _steps(path: Any) -> Path:
    if not isinstance(path, str) or not path.startswith("/") or len(path) < 2:
        raise Refusal(400, f"A path of a patch begins with /, not {path!r:.80}.")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/"))


def _parent(document: Any, path: Path) -> Any:
    value = document
    for step in path[:-1]:
        value = _get(value, step)
    if not isinstance(value, dict | list):
        raise Refusal(400, f"There is no object or array at /{'/'.join(path[:-1])!s:.80}.")
    return value


def _get(parent: Any, name: str) -> Any:
    if isinstance(parent, dict):
        return parent.get(name, MISSING)
    if isinstance(parent, list) and name.isascii() and name.isdigit() and len(name) < 8:
        return parent[int(name)] if int(name) < len(parent) else MISSING
    return MISSING


def _set(parent: Any, name: str, value: Any, *, inserts: bool) -> None:
    if isinstance(parent, dict):
        parent[name] = value
    elif name == "-":
        parent.append(value)
    elif inserts and name.isascii() and name.isdigit() and int(name[:8]) <= len(parent):
        parent.insert(int(name), value)
    elif _get(parent, name) is not MISSING:
        parent[int(name)] = value
    else:
        raise Refusal(400, f"The array has no place {name!r:.20}.")


def _remove(parent: Any, name: str) -> Any:
    value = _get(parent, name)
    if value is MISSING:
        raise Refusal(400, f"There is no {name!r:.80} to remove.")
    del parent[name if isinstance(parent, dict) else int(name)]
    return value
