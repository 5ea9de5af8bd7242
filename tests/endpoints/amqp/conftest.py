from collections.abc import Iterator

import pytest
from support.amqp_endpoint import ServedHub, served_hub


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub with four partitions behind an endpoint, shared by the tests of a file."""
    with served_hub(tmp_path_factory.mktemp("served")) as hub:
        yield hub
