from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from web_site import Site, open_site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The web application over a small table, on loopback, with a fleet that only pretends."""
    with open_site(tmp_path) as site:
        yield site
