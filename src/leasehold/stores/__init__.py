"""Where leases and dead letters are kept. A URL picks the store:
``open_store("sqlite:///data/leases.db")``, ``open_dead_letters("sqlite:///data/dead.db")``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from leasehold.errors import BadInput
from leasehold.ports import DeadLetters, LeaseStore
from leasehold.stores.dead_letters import SqliteDeadLetters
from leasehold.stores.memory import MemoryStore
from leasehold.stores.memory_dead_letters import MemoryDeadLetters

__all__ = ["open_dead_letters", "open_store"]

EXAMPLES = {
    "memory": "memory:// (this process only; memory://name is shared by name)",
    "sqlite": "sqlite:///data/leases.db (this machine; sqlite:////abs/path.db is absolute)",
    "postgresql": "postgresql://user@host:5432/database?schema=leasehold",
    "azure-blob": "azure-blob://account/container",
}
DEAD_LETTER_EXAMPLES = {
    "memory": "memory:// (this process only; memory://name is shared by name)",
    "sqlite": "sqlite:///data/dead.db (this machine; sqlite:////abs/path.db is absolute)",
}
_CLASSES = {
    "sqlite": ("leasehold.stores.sqlite", "SqliteStore"),
    "postgresql": ("leasehold.stores.postgres", "PostgresStore"),
    "postgres": ("leasehold.stores.postgres", "PostgresStore"),
    "azure-blob": ("leasehold.stores.azure_blob", "AzureBlobStore"),
}
_shared: dict[str, MemoryStore] = {}
_shared_letters: dict[str, MemoryDeadLetters] = {}


def open_store(url: str, **settings: Any) -> LeaseStore:
    """The store a URL names. Nothing is read, made or connected to before its first use."""
    scheme, rest = _parts(url, "store", EXAMPLES)
    if scheme == "memory":
        if not rest:
            return MemoryStore(**settings)
        if rest not in _shared:
            _shared[rest] = MemoryStore(**settings)
        return _shared[rest]
    if scheme not in _CLASSES:
        raise BadInput(f"unknown store scheme {scheme}://. {_valid(EXAMPLES)}")
    module, name = _CLASSES[scheme]
    # Imported on demand: each brings packages of its own that need not be installed.
    return cast(LeaseStore, getattr(import_module(module), name).from_url(url, **settings))


def open_dead_letters(url: str, **settings: Any) -> DeadLetters:
    """The same for dead letters. They may share a file with leases."""
    scheme, rest = _parts(url, "dead-letter store", DEAD_LETTER_EXAMPLES)
    if scheme == "memory":
        if not rest:
            return MemoryDeadLetters(**settings)
        if rest not in _shared_letters:
            _shared_letters[rest] = MemoryDeadLetters(**settings)
        return _shared_letters[rest]
    if scheme == "sqlite":
        return SqliteDeadLetters.from_url(url, **settings)
    raise BadInput(f"no dead letters are kept in {scheme}://. {_valid(DEAD_LETTER_EXAMPLES)}")


def _parts(url: str, what: str, examples: Mapping[str, str]) -> tuple[str, str]:
    scheme, found, rest = url.partition("://")
    if not found:
        hint = "" if ":" in url else f". For a file, write sqlite:///{url}"
        raise BadInput(f"{_shown(url)} is no {what} URL{hint}. {_valid(examples)}")
    return scheme.lower(), rest


def _valid(examples: Mapping[str, str]) -> str:
    return "Valid are:" + "".join(f"\n  {example}" for example in examples.values())


def _shown(url: str) -> str:
    # What stands before an @ may be a password.
    return repr(url) if "@" not in url else "this"
