from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

# A slow machine must not fail a property, and CI must not find a new example by chance.
hypothesis.settings.register_profile(
    "leasehold",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
hypothesis.settings.load_profile("leasehold")


def pytest_configure() -> None:
    # Being told to end is like Ctrl-C: fixtures are torn down, no temporary folder stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The same as tools/env.sh, for a pytest that was not started by make.
    if (ROOT / ".tools" / "java" / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(ROOT / ".tools" / "java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL database; its password is in the environment, as libpq wants it."""
    with servers.postgres() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", server.password)
        yield server.url


@pytest.fixture(scope="session")
def azurite() -> Iterator[servers.Azurite]:
    """Azure Blob Storage, emulated: url, account, key, connection_string."""
    with servers.azurite() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores for all tests of a process. Leave its settings as they are."""
    from leasehold.spark import local_session  # noqa: PLC0415  # most tests need no Spark

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
