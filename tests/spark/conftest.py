from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from leasehold.spark import local_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the session run in one process: each Java costs seconds and a gigabyte."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores for all tests. Leave its settings as they are."""
    folder = tmp_path_factory.mktemp("spark")
    session = local_session(
        2,
        name="tests",
        settings={
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
