"""The generated parts of ``docs/reference``: run ``python tools/reference.py`` after a change.

Settings come from the signatures and from ``leasehold.settings``: the text below a field, or the
``Args:`` of a docstring.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from public_names import api_page

from leasehold import ChangeFeedProcessor, Estimator, Processor
from leasehold.settings import Every, JobSettings, LagSettings, Pace, Retry, Timing, every
from leasehold.spark import DeltaSink, SparkProcessor

REFERENCE = Path(__file__).resolve().parents[1] / "docs/reference"
SETTINGS: Mapping[Callable[..., Any], tuple[type, ...]] = {
    Processor: (Timing, Pace),
    ChangeFeedProcessor: (Pace,),
    SparkProcessor: (JobSettings,),
    DeltaSink: (),
    Estimator: (LagSettings,),
    Retry: (Retry,),
    every: (Every,),
}
"""What takes settings, and the classes that say what they mean, where its docstring does not."""
TABLE = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def field_texts(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(found, ast.ClassDef)
    texts = {}
    for field, text in zip(found.body, found.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """The ``Args:`` of a docstring, by name."""
    _, _, block = (inspect.getdoc(function) or "").partition("Args:\n")
    parts = re.split(r"^ {4}(\w+): ", block, flags=re.M)[1:]
    return {
        name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def shown(default: Any) -> str:
    """A default as the reference writes it."""
    if default is inspect.Parameter.empty:
        return "required"
    if default is None:
        return "none"
    if default == ():
        return "none of them"
    if callable(default):
        return f"`{default.__name__}`"
    if isinstance(default, bool | str):
        return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"
    return f"{default:,}" if isinstance(default, int) else f"{default:g}"


def settings_of(kind: Callable[..., Any]) -> Iterator[tuple[str, Any, str]]:
    """Each setting with its default and what it means."""
    given = vars(kind)["__init__"] if isinstance(kind, type) else kind
    texts = {name: text for each in SETTINGS[kind] for name, text in field_texts(each).items()}
    texts |= argument_texts(given)
    own = inspect.signature(kind).parameters
    for name, parameter in own.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            yield name, parameter.default, texts[name]
    for name in argument_texts(given).keys() - own.keys():  # of Processor, and another thing here
        yield name, inspect.signature(Processor).parameters[name].default, texts[name]


def settings_table(kind: Callable[..., Any]) -> str:
    rows = [
        f"| `{name}` | {shown(default)} | {text} |\n" for name, default, text in settings_of(kind)
    ]
    return "| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)


def settings_page(page: str) -> str:
    """The page with its tables as the code is now; the prose between them stays."""
    kinds = {kind.__name__: kind for kind in SETTINGS}
    return TABLE.sub(lambda found: found[1] + settings_table(kinds[found[2]]) + found[3], page)


def main() -> None:
    page = REFERENCE / "settings.md"
    page.write_text(settings_page(page.read_text()))
    (REFERENCE / "api.md").write_text(api_page())


if __name__ == "__main__":
    main()
