"""The stores that several machines share, used from several processes."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from support.command_line import leasehold
from support.servers import Azurite

from leasehold.core.model import Group
from leasehold.feeds.hub import Hub
from leasehold.ports import LetterFilter
from leasehold.stores import open_dead_letters
from leasehold.testing.check_dead_letters import any_letter

pytestmark = pytest.mark.servers
GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")
ALL = LetterFilter()
PUTS = 5
PUT_AND_DIE = """
import asyncio, os, signal, sys
from leasehold.stores import open_dead_letters
from leasehold.testing.check_dead_letters import any_letter
from leasehold.core.model import Group

async def main(url, partition, puts):
    store = open_dead_letters(url)
    group = Group(namespace="homes.local", feed="sensors", name="alerts")
    for n in range(int(puts)):
        await store.put([any_letter(group, n), any_letter(group, n, partition=partition)])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""
UNPICKLE_AND_PUT = """
import asyncio, pickle, sys
from leasehold.testing.check_dead_letters import any_letter
from leasehold.core.model import Group

async def main(store):
    await store.put([any_letter(Group(namespace="homes.local", feed="sensors", name="alerts"), 7)])
    await store.close()

asyncio.run(main(pickle.loads(sys.stdin.buffer.read())))
"""


@pytest.fixture(params=["postgres", "azure"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A URL, and the secret that must not be in it."""
    name = f"s{uuid4().hex[:12]}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        return f"{url}?schema={name}", os.environ["PGPASSWORD"]
    azurite: Azurite = request.getfixturevalue("azurite")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    return f"azure-blob://{azurite.account}/{name}", azurite.key


def kept(url: str) -> list[tuple[str, int]]:
    async def main() -> list[tuple[str, int]]:
        letters = open_dead_letters(url)
        found = await letters.list(ALL)
        await letters.close()
        return [(letter.partition, letter.sequence) for letter in found]

    return asyncio.run(main())


def test_two_processes_put_at_once_and_what_they_put_survives_a_kill(
    store: tuple[str, str],
) -> None:
    url, _ = store
    running = [
        subprocess.Popen([sys.executable, "-c", PUT_AND_DIE, url, partition, str(PUTS)])
        for partition in ("a", "b")
    ]
    assert [each.wait(timeout=120) for each in running] == [-signal.SIGKILL] * 2
    expected = [(partition, n) for partition in ("7", "a", "b") for n in range(PUTS)]
    assert sorted(kept(url)) == sorted(expected)


def test_a_pickled_store_works_in_another_process_and_holds_no_secret(
    store: tuple[str, str],
) -> None:
    url, secret = store
    letters = open_dead_letters(url)
    pickled = pickle.dumps(letters)
    assert secret.encode() not in pickled
    assert secret not in repr(letters)
    subprocess.run([sys.executable, "-c", UNPICKLE_AND_PUT], input=pickled, timeout=60, check=True)
    assert kept(url) == [("7", 7)]


def test_the_command_line_lists_shows_redrives_and_purges(
    store: tuple[str, str], tmp_path: Path
) -> None:
    url, secret = store
    hub = tmp_path / "sensors.db"
    Hub.create(hub, name="sensors", namespace="homes.local", partitions=4).close()

    async def put() -> None:
        letters = open_dead_letters(url)
        await letters.put([any_letter(GROUP, n, partition="1") for n in range(3)])
        await letters.close()

    assert "no dead letters" in leasehold("dead-letters", "list", "--store", url).stdout
    asyncio.run(put())
    listed = json.loads(leasehold("dead-letters", "list", "--store", url, "--json").stdout)
    assert [letter["sequence"] for letter in listed] == [2, 1, 0]
    shown = leasehold("dead-letters", "show", listed[0]["id"], "--store", url)
    assert "ValueError: no such sensor" in shown.stdout
    sent = leasehold("dead-letters", "redrive", "--all", "--store", url, "--hub", hub)
    assert "sent 3 dead letters" in sent.stdout
    purged = leasehold("dead-letters", "purge", "--redriven-only", "--yes", "--store", url)
    assert "purged 3 dead letters" in purged.stdout
    assert kept(url) == []
    assert secret not in shown.stdout + shown.stderr + sent.stdout + purged.stderr
