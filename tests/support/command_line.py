"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

MAIN = "from leasehold.cli import main; main()"
PROGRAM = [sys.executable, "-c", MAIN]
WIDE = {**os.environ, "COLUMNS": "200"}


def leasehold(
    *words: object, ok: bool = True, stdin: str | bytes = b"", program: str = MAIN
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=280,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    text = subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )
    assert (text.returncode == 0) is ok, text.stdout + text.stderr
    assert "Traceback" not in text.stderr
    return text
