from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hypothesis
import pytest
from support import servers

# Before pytest names modules by their folders: else it takes the folder homes for the package.
import homes  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.cosmos import Served
    from support.kafka import Kafka

ROOT = Path(__file__).resolve().parent
STARTING = {"postgres_url", "azurite", "kafka", "kafka_nodes", "spark"}
PACKAGES = [ROOT / "tests" / "support" / name for name in ("lines_feed", "rows_sink")]

# A slow machine must not fail a property, nor an example that came by chance a change that has
# nothing to do with it: new ones are looked for when asked to.
hypothesis.settings.register_profile(
    "leasehold",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="EXPLORE" not in os.environ,
    print_blob=True,
)
hypothesis.settings.register_profile(
    "unit", hypothesis.settings.get_profile("leasehold"), max_examples=20
)


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("unit" if config.getoption("unit") else "leasehold")
    # Being told to end is like Ctrl-C: fixtures are torn down, no temporary folder stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The same as tools/env.sh, for a pytest that was not started by make.
    if (ROOT / ".tools" / "java" / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(ROOT / ".tools" / "java")
    # A package that registers a feed, for other processes, too: Spark's, and the command line.
    paths = [*map(str, PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Written by the fixture that starts an endpoint; Spark's workers know it from the beginning.
    os.environ["AZURE_COSMOS_KEY_FILE"] = str(
        Path(tempfile.gettempdir()) / f"leasehold-cosmos-{os.getpid()}.key"
    )
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # No Java here lives long enough to earn back what its second compiler costs: a third of a run.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--unit",
        action="store_true",
        help="leave out tests that need a server or Java or take long; fail what starts one",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, so that all workers end together."""
    items.sort(key=_takes_s, reverse=True)
    if config.getoption("unit"):
        quick = [item for item in items if not (_needs_servers(item) or _takes_s(item))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(quick)])
        items[:] = quick


def _needs_servers(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(item.get_closest_marker("servers") or fixtures & STARTING)


@pytest.fixture(scope="session", autouse=True)
def nothing_starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --unit, a test that starts a server all the same fails."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("unit"):
            for start in ("postgres", "azurite"):
                patch.setattr(servers, start, _refuse)
            patch.setenv("JAVA_HOME", "/no/java/with/--unit")
        yield


def _refuse() -> NoReturn:
    pytest.fail("--unit starts no server: mark this test with pytest.mark.servers")


@pytest.fixture(autouse=True)
def servers_are_named(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test whose fixture asks for a server by name only would fail in ``make unit``."""
    yield
    item: pytest.Item = request.node
    asked = STARTING & set(request.fixturenames)
    if asked and not (_needs_servers(item) or _takes_s(item)):
        pytest.fail(f"mark this test with pytest.mark.servers: it uses {', '.join(sorted(asked))}")


def _takes_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("takes_s")
    return float(mark.args[0]) if mark else 0.0


@pytest.fixture
def port() -> Iterator[int]:
    """A loopback port that nobody else is given while the test runs."""
    with servers.reserved_port() as reserved:
        yield reserved


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
def kafka() -> Iterator[Kafka]:
    """A Kafka broker, for all tests of a process: take a topic of your own."""
    from support.kafka import cluster  # noqa: PLC0415  # most tests need no Kafka

    with cluster(tls=True) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_nodes() -> Iterator[Kafka]:
    """Three of them."""
    from support.kafka import cluster  # noqa: PLC0415

    with cluster(3) as server:
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


@pytest.fixture(scope="session")
def cosmos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An endpoint for clients of Cosmos DB in this process, with its key in the file that the
    environment names, and the database ``homes``; each test makes containers of its own."""
    from azure.cosmos import CosmosClient  # noqa: PLC0415  # most tests need no endpoint
    from support.cosmos import serving  # noqa: PLC0415

    key_file = Path(os.environ["AZURE_COSMOS_KEY_FILE"])
    with (
        serving(tmp_path_factory.mktemp("cosmos")) as served,
        CosmosClient(served.url, served.key) as client,
    ):
        key_file.write_text(served.key)
        client.create_database("homes")
        yield served
        key_file.unlink()
