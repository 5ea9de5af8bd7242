from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from support.cosmos import Served, serving

_numbers = count()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An endpoint for all tests of a process; each makes containers of its own."""
    with serving(tmp_path_factory.mktemp("cosmos")) as it:
        yield it


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[CosmosClient]:
    with CosmosClient(served.url, served.key) as it:
        yield it


@pytest.fixture(scope="session")
def database(client: CosmosClient) -> Any:
    return client.create_database_if_not_exists("homes")


@pytest.fixture
def alerts(database: Any) -> Any:
    """A new container of one range."""
    return database.create_container(f"alerts-{next(_numbers)}", PartitionKey("/home_id"))
