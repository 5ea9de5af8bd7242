"""The log of a process: floods are counted instead of written."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.processing import wait_until

from homes.local.app_log import Floods, start_log


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def log(kept: Kept) -> logging.Logger:
    log = logging.Logger("of this test", logging.INFO)
    log.addHandler(kept)
    return log


def test_of_a_flood_the_first_are_written_and_the_rest_counted(
    log: logging.Logger, kept: Kept
) -> None:
    now = [0.0]
    kept.addFilter(Floods(kept, lines=3, clock=lambda: now[0]))

    def warn(n: int) -> None:
        log.warning("sensor %d is unknown", n)

    for n in range(100):
        warn(n)
    log.warning("another place")
    now[0] = 60.0
    warn(100)
    assert kept.lines == [
        *(f"sensor {n} is unknown" for n in range(3)),
        "another place",
        "97 more within 60 s like: sensor 0 is unknown",
        "sensor 100 is unknown",
    ]


def test_the_count_is_written_by_itself_when_the_flood_ends(
    log: logging.Logger, kept: Kept
) -> None:
    kept.addFilter(Floods(kept, lines=3, within_s=0.2))

    def flood(count: int) -> None:
        for _ in range(count):
            log.warning("the same")

    flood(103)
    wait_until(lambda: len(kept.lines) == 4)  # by itself
    assert kept.lines == ["the same"] * 3 + ["100 more within 0 s like: the same"]
    flood(1)
    assert kept.lines[-1] == "the same"


@pytest.fixture
def bare_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    level = root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


def test_all_that_a_process_logs_is_escaped_its_libraries_included(
    kept: Kept, bare_root: None
) -> None:
    start_log(kept)
    logging.getLogger("some.library").warning("a name: %s", "x\nforged")
    assert kept.lines == ["a name: x\\nforged"]
