"""Lease stores, new and empty, and how to take them away for a while."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

from support.servers import Azurite, Outage, Postgres

LOCKS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    url: str
    outages: Sequence[Outage]
    """Each a way to take it away."""


def sqlite_store(path: Path) -> Store:
    return Store(url=f"sqlite:///{path}?timeout_s=1", outages=[partial(locked, path)])


def postgres_store(server: Postgres) -> Store:
    """Its password belongs in the environment."""
    return Store(url=in_schema(server.url), outages=[server.frozen, server.down])


def azurite_store(server: Azurite) -> Store:
    """Its key belongs in the environment."""
    return Store(url=in_container(server), outages=[server.frozen])


def in_schema(server_url: str) -> str:
    return f"{server_url}?schema=chaos_{uuid4().hex[:8]}"


def in_container(server: Azurite) -> str:
    container = f"chaos-{uuid4().hex[:8]}"
    return f"azure-blob://{server.account}/{container}?endpoint={server.url}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A process holds the file's lock, and lets go also if this one dies: others can read then, and
    cannot write."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"locked\n"
        yield
