from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.stores import (
    Store,
    azurite_store,
    in_container,
    in_schema,
    postgres_store,
    sqlite_store,
)
from support import servers
from support.kafka import Kafka, cluster
from support.servers import Azurite, Postgres

KINDS = ("sqlite", "postgresql", "azure-blob")


@pytest.fixture(params=KINDS)
def store_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Every kind of lease store, new and empty; secrets are in the environment."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    if request.param == "postgresql":
        return in_schema(request.getfixturevalue("postgres_url"))
    azurite: Azurite = request.getfixturevalue("azurite")
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.key)
    return in_container(azurite)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The same, with the ways to take it away for a while."""
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "leases.db")
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("own_postgres")
        monkeypatch.setenv("PGPASSWORD", postgres.password)
        return postgres_store(postgres)
    azurite: Azurite = request.getfixturevalue("own_azurite")
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.key)
    return azurite_store(azurite)


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[Postgres]:
    """A server that no other test misses while it is out."""
    with servers.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def own_azurite() -> Iterator[Azurite]:
    with servers.azurite() as server:
        yield server


@pytest.fixture(scope="session")
def own_kafka() -> Iterator[Kafka]:
    """One node; three for ``make soak``, where one may always be away."""
    with cluster(3 if "LEASEHOLD_CHAOS_S" in os.environ else 1) as server:
        yield server
