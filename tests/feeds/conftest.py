from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.feeds.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub.create(
        tmp_path / "hub.db", name="sensors", namespace="homes.local", partitions=4
    ) as made:
        yield made
