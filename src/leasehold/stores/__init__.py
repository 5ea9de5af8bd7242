"""Where leases are kept. A URL picks the store: ``open_store("sqlite:///data/leases.db")``."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from leasehold.errors import BadInput
from leasehold.ports import LeaseStore
from leasehold.stores.memory import MemoryStore

__all__ = ["open_store"]

EXAMPLES = {
    "memory": "memory:// (this process only; memory://name is shared by name)",
    "sqlite": "sqlite:///data/leases.db (this machine; sqlite:////abs/path.db is absolute)",
    "postgresql": "postgresql://user@host:5432/database?schema=leasehold",
    "azure-blob": "azure-blob://account/container",
}
_CLASSES = {
    "sqlite": ("leasehold.stores.sqlite", "SqliteStore"),
    "postgresql": ("leasehold.stores.postgres", "PostgresStore"),
    "postgres": ("leasehold.stores.postgres", "PostgresStore"),
    "azure-blob": ("leasehold.stores.azure_blob", "AzureBlobStore"),
}
_shared: dict[str, MemoryStore] = {}


def open_store(url: str, **settings: Any) -> LeaseStore:
    """The store a URL names. Nothing is read, made or connected to before its first use."""
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found:
        hint = "" if ":" in url else f". For a file, write sqlite:///{url}"
        raise BadInput(f"{_shown(url)} is no store URL{hint}. {_valid()}")
    if scheme == "memory":
        if not rest:
            return MemoryStore(**settings)
        if rest not in _shared:
            _shared[rest] = MemoryStore(**settings)
        return _shared[rest]
    if scheme not in _CLASSES:
        raise BadInput(f"unknown store scheme {scheme}://. {_valid()}")
    module, name = _CLASSES[scheme]
    # Imported on demand: each brings packages of its own that need not be installed.
    return cast(LeaseStore, getattr(import_module(module), name).from_url(url, **settings))


def _valid() -> str:
    return "Valid are:" + "".join(f"\n  {example}" for example in EXAMPLES.values())


def _shown(url: str) -> str:
    # What stands before an @ may be a password.
    return repr(url) if "@" not in url else "this"
