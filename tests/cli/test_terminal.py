"""The command line as people meet it: on terminals wide and narrow, with pipes, and with Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from support.command_line import PROGRAM, leasehold
from support.processing import PATIENCE_S, wait_until

import leasehold as lh
from leasehold.cli.tables import Column, FittedTable

BIN = Path(sys.executable).parent / "leasehold"
OWNER = "alerts-7d9f8b6c5-x2k4q-with-a-long-name-4711"
SEVERAL = """
import json, sys
from leasehold.cli import app
for words in json.loads(sys.argv[1]):
    try:
        app(words, standalone_mode=False)
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub with a group that has an owner and a dead letter, and a container with a split."""
    folder = tmp_path_factory.mktemp("terminal")
    settings = {"name": "sensors", "namespace": "homes.local", "partitions": 11}
    with lh.Hub.create(folder / "hub.db", **settings) as hub:
        for partition in range(11):
            hub.send(["bad" if partition == 10 else "good"], partition_id=partition)

        def on_event(event: lh.Event) -> None:
            if event.body == b"bad":
                raise ValueError("a reason that is told in rather many words, more than fit")

        lh.Processor(
            hub,
            group="alerts",
            store=lh.open_store(f"sqlite:///{folder}/leases.db"),
            instance=OWNER,
            on_event=on_event,
            retry=lh.Retry(attempts=1, then="dead-letter"),
            dead_letters=lh.open_dead_letters(f"sqlite:///{folder}/dead.db"),
        ).run(until_drained=True)
    settings = {"name": "alerts", "namespace": "homes.local", "partition_key": "/home"}
    with lh.Container.create(folder / "alerts.db", **settings) as container:
        container.split("0")
    return folder


def looks(folder: Path) -> list[list[str]]:
    store = ["--store", f"sqlite:///{folder}/leases.db"]
    group = [str(folder / "hub.db"), "--group", "alerts", *store]
    return [
        ["hub", "info", str(folder / "hub.db")],
        ["container", "info", str(folder / "alerts.db")],
        ["leases", *store],
        ["lag", *group],
        ["rewind", *group, "--to", "latest", "--yes"],
        ["rewind", *group, "--to", "earliest"],
        ["dead-letters", "list", "--store", f"sqlite:///{folder}/dead.db"],
    ]


def in_terminal(commands: Sequence[Sequence[str]], columns: int) -> str:
    """What a terminal of that width shows of these commands, run in one process."""
    own, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SEVERAL, json.dumps(commands)],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env={**os.environ, "COLUMNS": str(columns), "LINES": "50", "TERM": "xterm"},
    )
    os.close(its)
    shown = b"".join(_chunks(own))
    os.close(own)
    assert process.wait(PATIENCE_S) == 0
    return shown.decode()


def _chunks(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other side was closed
            return
        if not chunk:
            return
        yield chunk


@pytest.mark.parametrize("columns", [80, 40])
def test_what_is_shown_fits_the_terminal_and_nothing_is_cut(folder: Path, columns: int) -> None:
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", in_terminal(looks(folder), columns))
    lines = [line.rpartition("\r")[2] for line in shown.replace("\r\n", "\n").split("\n")]
    tables = [line for line in lines if line[:1] in "┏┃┡│└├ " or line.startswith("partition ")]
    assert tables
    assert [line for line in tables if len(line.rstrip()) > columns] == []
    assert "Traceback" not in shown
    together = " ".join(shown.replace("\r\n", "\n").split())
    for whole in (
        "last modified (UTC)",
        "next sequence",
        "homes.local/sensors/alerts",
        "caught up",
    ):
        assert whole in together
    cut = [line for line in tables if "…" in line]
    assert all("ValueError" in line for line in cut)  # which `show` has in full


@pytest.mark.parametrize("columns", range(12, 130, 7))
def test_a_table_keeps_every_cell_whole_at_any_width(columns: int) -> None:
    console = Console(width=columns, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    table = FittedTable(
        Column(name="partition"), Column(name="owner", justify="left"), title="group", footer="ab"
    )
    cells = [f"{'x' * n}{n}" for n in range(1, 10)]
    for cell in cells:
        table.add_row(cell, f"owner-{cell}")
    console.print(table)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= columns
    together = re.sub(r"[\s│]", "", shown)
    assert all(f"{cell}" in together and f"owner-{cell}" in together for cell in cells)


def test_long_work_shows_a_bar_with_an_estimate_on_a_terminal_alone(folder: Path) -> None:
    table = folder / "table"
    _write_table(table)
    lines = folder / "lines"
    lines.write_text("a line\n" * 100)
    hub, store = str(folder / "hub.db"), f"sqlite:///{folder}/leases.db"
    commands = [
        ["verify", "--seeds", "3", "--jobs", "1"],
        ["compact", str(table)],
        ["rewind", hub, "--group", "alerts", "--store", store, "--to", "latest", "--yes"],
        ["hub", "send", hub, "--file", str(lines)],
        [
            "dead-letters",
            "redrive",
            "--all",
            "--hub",
            hub,
            "--store",
            f"sqlite:///{folder}/dead.db",
        ],
    ]
    shown = in_terminal(commands, 100)
    for what in ("simulating", "compacting", "looking", "sending", "redriving"):
        assert re.search(rf"{what}.*left", shown), what
    for words in commands[1:3]:
        assert "left" not in leasehold(*words).stderr


def _write_table(path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415
    from deltalake import write_deltalake  # noqa: PLC0415

    for n in range(3):
        write_deltalake(path, pa.table({"n": list(range(n, n + 1000))}), mode="append")


def test_what_a_live_pipe_has_is_sent_when_it_pauses_and_on_ctrl_c(tmp_path: Path) -> None:
    settings = {"name": "sensors", "namespace": "homes.local", "partitions": 1}
    with lh.Hub.create(tmp_path / "hub.db", **settings) as hub:
        process = subprocess.Popen(
            [*PROGRAM, "hub", "send", str(hub.path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        wait_until(lambda: hub.properties().events == 2)
        process.stdin.write(b"three\nno end of a line")
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert hub.read_arrow(0, 0)["body"].to_pylist() == [b"one", b"two", b"three"]
        assert b"3 events had been sent, all up to line 3" in said
        assert b"Traceback" not in said


def test_ctrl_c_ends_all_workers_of_verify_at_once_and_again_changes_nothing() -> None:
    process = subprocess.Popen(
        [*PROGRAM, "verify", "--seeds", "1000000", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until(lambda: len(_children(process.pid)) >= 2)
    workers = _children(process.pid)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.05)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert said.split() == [b"stopped"]
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []


def test_terminating_verify_ends_its_workers_too() -> None:
    process = subprocess.Popen(
        [*PROGRAM, "verify", "--seeds", "1000000", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: len(_children(process.pid)) >= 2)
    workers = _children(process.pid)
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert said.split() == [b"stopped"]
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []


SIGNAL_AT_FORK = """
import os, signal, sys, time
from leasehold.cli import main
fork, send = os.fork, {"one": os.kill, "all": os.killpg}[sys.argv[2]]
number = int(sys.argv[1])
def signalled():
    pid = fork()
    if pid:
        send(os.getpid(), number)
        time.sleep(0.05)
    return pid
os.fork = signalled
sys.argv[1:] = ["verify", "--seeds", "1000000", "--jobs", "2"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to", ["one", "all"])
def test_a_signal_while_verify_begins_a_worker_leaves_none(number: int, to: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNAL_AT_FORK, str(int(number)), to],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=PATIENCE_S)  # a worker that is left keeps it open
        assert process.returncode == 130
        assert said.split() == [b"stopped"]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in listed.stdout.split()]


@pytest.mark.parametrize("on_path", [True, False])
def test_a_hint_names_the_program_as_it_can_be_typed(tmp_path: Path, on_path: bool) -> None:
    path = f"{BIN.parent}:{os.environ['PATH']}" if on_path else "/usr/bin:/bin"
    done = subprocess.run(
        [BIN, "hub", "info", "no.db"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
    )
    name = "leasehold" if on_path else str(BIN)
    assert (
        done.stderr == f"error: there is no hub at no.db; make one with: {name} hub create no.db\n"
    )


def test_the_hint_for_a_missing_container_can_be_typed(tmp_path: Path) -> None:
    missing = tmp_path / "no.db"
    said = leasehold("container", "info", missing, ok=False).stderr
    hint = said.partition("make one with: leasehold ")[2].split()
    leasehold(*hint)
    assert missing.exists()


def test_python_runs_it_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leasehold", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"leasehold {lh.__version__}\n"


def test_a_shell_completes_commands_and_options() -> None:
    typed = {"leasehold ": "dead-letters", "leasehold hub send --k": "--key-field"}
    for words, wanted in typed.items():
        env = {
            **os.environ,
            "_LEASEHOLD_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        done = subprocess.run([BIN], env=env, capture_output=True, text=True, check=False)
        assert wanted in done.stdout.split()
