import logging
import os
from contextlib import suppress

import pytest
from support.processing import wait_until

from homes.local import patient_log
from homes.local.patient_log import PatientLog


@pytest.fixture
def pipe(monkeypatch):
    """A pipe stands for a disk: what is not read fills it up, and reading makes room."""
    monkeypatch.setattr(patient_log, "AGAIN_S", 0.01)
    out, into = os.pipe()
    os.set_blocking(into, False)
    os.set_blocking(out, False)
    yield out, into
    os.close(out)
    os.close(into)


def logger_to(file):
    log = logging.Logger("of this test", logging.INFO)
    log.addHandler(PatientLog(file))
    return log


def read_until(out, last):
    """All lines up to the one with this in it, which comes last."""
    found = b""

    def over():
        nonlocal found
        with suppress(BlockingIOError):
            found += os.read(out, 1 << 20)
        return last.encode() in found and found.endswith(b"\n")

    wait_until(over)
    return found.decode().splitlines()


def test_a_line_is_written_at_once(pipe):
    out, into = pipe
    logger_to(into).info("it begins: %s", "\udcff")
    assert os.read(out, 100) == b"it begins: \\udcff\n"


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room_untorn_and_in_order(pipe):
    out, into = pipe
    log = logger_to(into)
    lines = [f"{n} {'x' * 9_997}" for n in range(40)]  # a pipe takes six, and some of the next
    for line in [*lines, "the last line"]:
        log.info(line)
    assert read_until(out, "the last") == [*lines, "the last line"]


def test_of_very_many_lines_the_first_are_kept_and_the_others_counted(pipe, monkeypatch):
    monkeypatch.setattr(patient_log, "LINES_MAX", 50)
    out, into = pipe
    log = logger_to(into)
    for n in range(500):
        log.info("%d %s", n, "x" * 1000)
    *lines, left_out = read_until(out, "left out")
    assert [line.split()[0] for line in lines] == [str(n) for n in range(len(lines))]
    assert left_out == f"... and {500 - len(lines)} lines that were left out"
    log.info("the last line")
    assert read_until(out, "the last") == ["the last line"]


def test_a_line_that_cannot_be_made_harms_no_other(pipe, capsys):
    out, into = pipe
    log = logger_to(into)
    log.info("%d", "no number")
    log.info("the last line")
    assert read_until(out, "the last") == ["the last line"]
    assert "no number" in capsys.readouterr().err
