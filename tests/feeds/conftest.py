from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub.create(
        tmp_path / "hub.db", name="sensors", namespace="homes.local", partitions=4
    ) as made:
        yield made


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    with Container.create(
        tmp_path / "c.db", name="alerts", namespace="homes.local", partition_key="/home_id"
    ) as made:
        yield made
