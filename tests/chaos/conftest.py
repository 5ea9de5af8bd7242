from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from servers import Azurite


@pytest.fixture(params=["sqlite", "postgresql", "azure-blob"])
def store_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Every kind of lease store, new and empty; secrets are in the environment."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    if request.param == "postgresql":
        return f"{request.getfixturevalue('postgres_url')}?schema=chaos_{uuid4().hex[:8]}"
    azurite: Azurite = request.getfixturevalue("azurite")
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.key)
    container = f"chaos-{uuid4().hex[:8]}"
    return f"azure-blob://{azurite.account}/{container}?endpoint={azurite.url}"
