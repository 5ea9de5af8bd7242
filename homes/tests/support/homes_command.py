"""Runs the application's commands as a user does: in a process of its own."""

from __future__ import annotations

import sys
from functools import partial

from support.command_line import leasehold

PROGRAM = [sys.executable, "-m", "homes"]
run_homes = partial(leasehold, program="from homes.cli import main; main()")
