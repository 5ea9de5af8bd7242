import asyncio
from uuid import uuid4

import pytest
from servers import Azurite

from leasehold.stores.azure_blob import AzureBlobStore
from leasehold.testing.check_lease_store import CHECKS, Check, any_group

CONTAINER = "leases"


@pytest.fixture
def url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.key)
    return f"azure-blob://{azurite.account}/{CONTAINER}?endpoint={azurite.url}"


@pytest.mark.parametrize("api_version", ["", "2017-11-09"])
@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__)
def test_azure_blob(rule: Check, api_version: str, url: str) -> None:
    async def open_store() -> AzureBlobStore:
        return AzureBlobStore.from_url(f"{url}&api_version={api_version}")

    asyncio.run(rule(open_store, any_group()))
