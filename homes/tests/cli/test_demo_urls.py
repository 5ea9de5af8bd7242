"""The whole application on parts beyond its folder: Kafka, PostgreSQL, Azure Blob Storage, Cosmos
DB."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.storage.blob import BlobServiceClient
from homes_command import PROGRAM
from support.cosmos import Served
from support.kafka import Kafka
from support.servers import Azurite

from homes.local.charges import read_charges
from homes.local.places import Places

pytestmark = pytest.mark.takes_s(45)

PATIENCE_S = 480.0


@pytest.mark.timeout(2 * PATIENCE_S)
def test_every_reading_is_accounted_for_on_servers(  # noqa: PLR0917  # one for each server
    tmp_path: Path,
    kafka: Kafka,
    postgres_url: str,
    azurite: Azurite,
    cosmos: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container = storage(azurite, monkeypatch)
    config = tmp_path / "homes.toml"
    config.write_text(
        f'feed = "{kafka.url(kafka.topic(partitions=4))}"\n'
        f'store = "{postgres_url}"\n'
        f'alerts = "{alert_container(cosmos)}"\n'
        f'archive = "azure-blob://{azurite.account}/{container}?prefix=archive&endpoint={azurite.url}"\n'
        f'table = "az://{container}/activity"\n'
    )
    folder = tmp_path / "data"
    words = ["--homes", "60", "--history-hours", "0.2", "--instances", "2", "--folder", str(folder)]
    words += ["--headless", "--minutes", "0.2", "--malformed", "0.01", "--config", str(config)]
    done = subprocess.run(
        [*PROGRAM, "demo", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert summary["missing"] == 0
    assert summary["sent"] == summary["aggregated"] + summary["dead_letters"]
    assert summary["dead_letters"] > 0
    places = Places(folder)
    embedded = (places.hub, places.alerts_file, places.activity, folder / "leases.db")
    assert not any(path.exists() for path in embedded)
    (charged,) = read_charges(places.charges).values()
    assert sum(charged["per_s"].values()) > 0


def alert_container(cosmos: Served) -> str:
    name = f"alerts-{uuid4().hex[:8]}"
    with CosmosClient(cosmos.url, cosmos.key) as client:
        client.get_database_client("homes").create_container(name, PartitionKey("/home_id"))
    return cosmos.url_of(name)


def storage(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new container, and the environment in which everybody finds it."""
    name = f"homes-{uuid4().hex[:8]}"
    with BlobServiceClient.from_connection_string(azurite.connection_string) as service:
        service.create_container(name)
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.key)
    # So the table's client knows that it is the emulator, which cannot list from a blob on.
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azurite.url.removesuffix(f"/{azurite.account}"))
    return name
