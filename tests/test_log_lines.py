"""Nothing that comes from outside forges a line of a log, or steers the terminal that shows it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leasehold as lh
from leasehold.log_lines import OneLine, one_line

FORGED = "x\n2026-01-01 00:00:00 INFO an operator signed in\x1b[2J\r\x9b1A\u2028\u202e"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """As a user of the library has it: a plain handler at the root."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("ENTRY %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    yield text
    root.removeHandler(handler)


@given(st.text())
def test_whatever_the_text_it_is_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert one_line(one_line(text)) == one_line(text)


@pytest.mark.parametrize("name", ["leasehold", "leasehold.spark"])
def test_a_message_stays_on_its_line_and_a_stack_trace_is_set_in(
    log: io.StringIO, name: str
) -> None:
    logger = logging.getLogger(name)
    logger.error("the sensor %s is unknown, 100%%", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("of %s", FORGED)
    first, second, *trace = log.getvalue().rstrip("\n").split("\n")
    assert first.startswith("ENTRY ERROR the sensor x\\n2026")
    assert first.endswith("is unknown, 100%")
    assert second.startswith("ENTRY ERROR of x\\n2026")
    assert trace
    assert all(line.startswith("  | ") for line in trace)
    assert all(line.isprintable() for line in (first, second, *trace))


def test_what_a_handler_says_of_an_event_forges_nothing(log: io.StringIO, tmp_path: Path) -> None:
    hub = lh.Hub.create(tmp_path / "hub.db", name="h", namespace="n", partitions=1)
    hub.send(lh.EventData(FORGED.encode()))

    def handle(events: list[lh.Event]) -> None:
        raise ValueError(f"the sensor {events[0].body.decode()} is unknown")

    with hub:
        lh.Processor(
            hub,
            group="g",
            store=lh.open_store("memory://"),
            on_batch=handle,
            dead_letters=lh.open_dead_letters("memory://"),
            retry=lh.Retry(attempts=1, backoff_s=0.01, then="dead-letter"),
        ).run(until_drained=True)
    lines = log.getvalue().rstrip("\n").split("\n")
    assert any("the sensor x\\n2026" in line for line in lines)
    assert all(line.startswith(("ENTRY ", "  | ")) and line.isprintable() for line in lines)


def test_an_entry_that_cannot_be_made_is_left_to_its_handler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.Logger("of this test")
    logger.addFilter(OneLine())
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.error("%d", "no number")
    assert "no number" in capsys.readouterr().err
