"""Partitioned feeds, shared by lease among many instances.

``public`` lists what is exported. It is imported when the first of its names is used, so that a
program that needs a part of the library, such as ``leasehold --help``, does not wait for all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasehold.log_lines import escape_logs

if TYPE_CHECKING:
    from leasehold.public import *  # noqa: F403

escape_logs()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("leasehold")
    if name == "__all__" or not name.startswith("_"):
        public = import_module("leasehold.public")
        if name == "__all__" or name in public.__all__:
            return globals().setdefault(name, getattr(public, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
