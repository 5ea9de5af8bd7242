from __future__ import annotations

import pytest
from support.cosmos import Served


@pytest.fixture(scope="session")
def served(cosmos: Served) -> Served:
    return cosmos
