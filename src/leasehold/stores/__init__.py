"""Where leases and dead letters are kept. A URL picks the store:
``open_store("sqlite:///data/leases.db")``, ``open_dead_letters("sqlite:///data/dead.db")``."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, cast

from leasehold.errors import BadInput
from leasehold.ports import DeadLetters, LeaseStore
from leasehold.schemes import Schemes
from leasehold.stores.dead_letters.memory import MemoryDeadLetters
from leasehold.stores.memory import MemoryStore

__all__ = ["AzureContainer", "open_azure_container", "open_dead_letters", "open_store"]

STORES = Schemes(
    kind="store",
    group="leasehold.stores",
    own={
        "memory": "leasehold.stores:open_memory",
        "sqlite": "leasehold.stores.sqlite:SqliteStore.from_url",
        "postgresql": "leasehold.stores.postgres:PostgresStore.from_url",
        "postgres": "leasehold.stores.postgres:PostgresStore.from_url",
        "azure-blob": "leasehold.stores.azure_blob:AzureBlobStore.from_url",
        "cosmos": "leasehold.stores.cosmos:CosmosStore.from_url",
    },
    examples=(
        "memory:// (this process only; memory://name is shared by name)",
        "sqlite:///data/leases.db (this machine; sqlite:////abs/path.db is absolute)",
        "postgresql://user@host:5432/database?schema=leasehold",
        "azure-blob://account/container",
        "cosmos://account.documents.azure.com/database/container",
    ),
)
DEAD_LETTERS = Schemes(
    kind="dead-letter store",
    group="leasehold.dead_letters",
    own={
        "memory": "leasehold.stores:open_memory_dead_letters",
        "sqlite": "leasehold.stores.dead_letters:SqliteDeadLetters.from_url",
        "postgresql": "leasehold.stores.dead_letters.postgres:PostgresDeadLetters.from_url",
        "postgres": "leasehold.stores.dead_letters.postgres:PostgresDeadLetters.from_url",
        "azure-blob": "leasehold.stores.dead_letters.azure_blob:AzureBlobDeadLetters.from_url",
        "cosmos": "leasehold.stores.dead_letters.cosmos:CosmosDeadLetters.from_url",
    },
    examples=(
        "memory:// (this process only; memory://name is shared by name)",
        "sqlite:///data/dead.db (this machine; sqlite:////abs/path.db is absolute)",
        "postgresql://user@host:5432/database?schema=leasehold",
        "azure-blob://account/container",
        "cosmos://account.documents.azure.com/database/container",
    ),
    unknown="no dead letters are kept in {scheme}://",
)
_shared: dict[str, MemoryStore] = {}
_shared_letters: dict[str, MemoryDeadLetters] = {}


def open_store(url: str, **settings: Any) -> LeaseStore:
    """The store a URL names. Nothing is read, made or connected to before its first use."""
    return cast(LeaseStore, STORES.open(_scheme(url, STORES), url, settings))


def open_dead_letters(url: str, **settings: Any) -> DeadLetters:
    """The same for dead letters. They may share a file, schema or container with leases."""
    return cast(DeadLetters, DEAD_LETTERS.open(_scheme(url, DEAD_LETTERS), url, settings))


class AzureContainer(NamedTuple):
    """A blob container for a program's own objects."""

    client: Any
    """Azure's own blocking client; it sends nothing before its first use."""
    prefix: str
    timeout_s: float


def open_azure_container(url: str) -> AzureContainer:
    """``azure-blob://ACCOUNT/CONTAINER?prefix=PATH``, with the secret in the environment: the same
    as for a lease store, so that a program has one way to name its storage."""
    module = import_module("leasehold.local.azure")
    return AzureContainer(*module.open_blocking(url))


def open_memory(url: str, **settings: Any) -> MemoryStore:
    name = url.partition("://")[2]
    if not name:
        return MemoryStore(**settings)
    if name not in _shared:
        _shared[name] = MemoryStore(**settings)
    return _shared[name]


def open_memory_dead_letters(url: str, **settings: Any) -> MemoryDeadLetters:
    name = url.partition("://")[2]
    if not name:
        return MemoryDeadLetters(**settings)
    if name not in _shared_letters:
        _shared_letters[name] = MemoryDeadLetters(**settings)
    return _shared_letters[name]


def _scheme(url: str, schemes: Schemes) -> str:
    scheme, found, _ = url.partition("://")
    if not found:
        hint = "" if ":" in url else f". For a file, write sqlite:///{url}"
        raise BadInput(f"{_shown(url)} is no {schemes.kind} URL{hint}. {schemes.valid()}")
    return scheme.lower()


def _shown(url: str) -> str:
    # What stands before an @ may be a password.
    return repr(url) if "@" not in url else "this"
