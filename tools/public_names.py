"""``docs/reference/api.md``: every public class and function, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = ("leasehold", "leasehold.spark", "leasehold.testing")
HEAD = """\
# Public classes and functions

What `leasehold`, `leasehold.spark` and `leasehold.testing` export, generated from the code by
`python tools/reference.py`. What the settings mean is in [settings](settings.md).
"""
WIDTH = 100


def text_of(thing: Any) -> str:
    """Its own docstring as Markdown, without the arguments: those are settings."""
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    text = inspect.cleandoc(own or "").partition("Args:\n")[0].strip()
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else text.replace("``", "`")


def first_of(thing: Any) -> str:
    """The first paragraph, on one line."""
    return " ".join(text_of(thing).split("\n\n")[0].split())


def _default(value: Any) -> str:
    if callable(value):
        return str(getattr(value, "__name__", "…"))
    text = repr(value)
    return "…" if " at 0x" in text or len(text) > 40 else text


def _parameter(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def signature_of(name: str, thing: Any) -> str:
    """How it is called, on one line or with a parameter on each."""
    signature = inspect.signature(thing)
    parts, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY)
        parts.append(_parameter(parameter))
    answer = signature.return_annotation
    tail = (
        "" if answer is signature.empty or isinstance(thing, type) else f" -> {_annotation(answer)}"
    )
    line = f"{name}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){tail}"


def _annotation(found: Any) -> str:
    return found if isinstance(found, str) else str(inspect.formatannotation(found))


def members_of(kind: type) -> Iterator[str]:
    """A line for each public method and property of its own."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            call, text = name, first_of(member)
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            function = getattr(member, "__func__", member)
            call = " ".join(signature_of(name, function).split()).replace("( ", "(")
            call, text = call.replace(", )", ")"), first_of(function)
        else:
            continue
        yield f"- `{call}`" + (f": {text}\n" if text else "\n")


def entry(name: str, thing: Any) -> str:
    """A public name: how it is called, what it is for, and what it has."""
    if isinstance(thing, ModuleType):
        functions = [each for each in vars(thing).values() if inspect.isfunction(each)]
        mine = [each for each in functions if each.__module__ == thing.__name__]
        lines = [f"- `{signature_of(f.__name__, f)}`: {first_of(f)}\n" for f in mine if f.__doc__]
        return f"\n### `{name}`\n\n{text_of(thing)}\n\n" + "".join(lines)
    callable_as = ""
    if not isinstance(thing, type) or is_dataclass(thing) or "__init__" in vars(thing):
        callable_as = f"```text\n{signature_of(name, thing)}\n```\n\n"
    if getattr(thing, "_is_protocol", False):
        callable_as = "A protocol: whatever has these parts will do.\n\n"
    text = text_of(thing)
    members = "".join(members_of(thing)) if isinstance(thing, type) else ""
    body = callable_as + (f"{text}\n\n" if text else "") + members
    return f"\n### `{name}`\n\n{body}".rstrip("\n") + "\n"


def public() -> Iterator[tuple[str, str, Any]]:
    """Every exported name with its module and what it is."""
    for module in MODULES:
        found = import_module(module)
        for name in sorted(found.__all__, key=str.lower):
            yield module, name, getattr(found, name)


def api_page() -> str:
    parts, before = [HEAD], ""
    for module, name, thing in public():
        if module != before:
            parts.append(f"\n## `{module}`\n")
            before = module
        parts.append(entry(name, thing))
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))
