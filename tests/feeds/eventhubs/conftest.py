from collections.abc import Iterator
from pathlib import Path

import pytest
from support.eventhubs import Endpoint, endpoint


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A hub with four partitions, reached by its URL."""
    with endpoint(tmp_path / "sensors.db") as made:
        monkeypatch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", made.connection_string)
        yield made
