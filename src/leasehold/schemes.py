"""What opens a URL: found by the URL's scheme, in this package or in another one that registered an
entry point for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any

from leasehold.errors import BadInput

Opener = Callable[..., Any]
"""Called with the URL and the caller's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemes:
    """The schemes of one kind of URL."""

    kind: str
    """As error messages call it: ``store``."""
    group: str
    """The entry-point group in which other packages register: the name is the scheme, the object
    is called with the URL and the settings."""
    own: Mapping[str, str]
    """By scheme, ``module:object``. Imported on demand: each may need packages of its own."""
    examples: tuple[str, ...]
    unknown: str = "unknown {kind} scheme {scheme}://"

    def open(self, scheme: str, url: str, settings: Mapping[str, Any]) -> Any:
        opener = self._find(scheme)
        try:
            inspect.signature(opener).bind(url, **settings)
        except TypeError as error:
            raise BadInput(f"a {self.kind} at {scheme}:// cannot be opened so: {error}") from error
        return opener(url, **settings)

    def valid(self) -> str:
        lines = [*self.examples, *(f"{name}://…" for name in self._registered())]
        return "Valid are:" + "".join(f"\n  {line}" for line in lines)

    def _find(self, scheme: str) -> Opener:
        if scheme in self.own:
            module, _, name = self.own[scheme].partition(":")
            own: Opener = attrgetter(name)(import_module(module))
            return own
        found = self._registered().get(scheme)
        if found is None:
            unknown = self.unknown.format(kind=self.kind, scheme=scheme)
            raise BadInput(
                f"{unknown}. {self.valid()}\nA package for {scheme}:// registers the entry point "
                f"{scheme!r} in the group {self.group!r}; install it in this environment"
            )
        return self._loaded(found)

    def _registered(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for each in entry_points(group=self.group):
            other = found.setdefault(each.name, each)
            if other.value != each.value:
                raise BadInput(
                    f"two packages register the {self.kind} scheme {each.name}://: "
                    f"{_package(other)} and {_package(each)}; uninstall one of them"
                )
        return found

    def _loaded(self, point: EntryPoint) -> Opener:
        try:
            opener: Opener = point.load()
        except BadInput:  # the package itself says what it needs
            raise
        except Exception as error:
            raise BadInput(
                f"{point.name}:// is registered by {_package(point)}, which cannot be imported: "
                f"{type(error).__name__}: {error}. Install what it needs, or another version of it"
            ) from error
        if not callable(opener):
            raise BadInput(
                f"{point.name}:// is registered by {_package(point)} as {point.value}, which is "
                "no function; it must take a URL"
            )
        return opener


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name}" if point.dist is not None else point.value
