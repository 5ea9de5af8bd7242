from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient

from support import servers

STARTS_A_SERVER_AND_WAITS = """
import sys, time
from contextlib import nullcontext
from support import servers
with getattr(servers, sys.argv[1])() as server:
    with server.frozen() if sys.argv[2:] else nullcontext():
        print(server.url, flush=True)
        time.sleep(600)
"""

REACHES_BOTH = """
import os, sys
import psycopg
from azure.storage.blob import BlobServiceClient
psycopg.connect(sys.argv[1]).close()
secret = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
assert not list(BlobServiceClient.from_connection_string(secret).list_containers())
sys.exit(7)
"""


def test_postgres_answers_with_the_password_of_the_environment(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_postgres_refuses_a_wrong_password(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres_url)


def test_azurite_keeps_blobs(azurite: servers.Azurite) -> None:
    with BlobServiceClient.from_connection_string(azurite.connection_string) as service:
        container = service.create_container("keeps-blobs")
        container.upload_blob("a", b"body", metadata={"ownerid": "one"})
        assert container.download_blob("a").readall() == b"body"


def test_azurite_refuses_a_wrong_key(azurite: servers.Azurite) -> None:
    credential = {"account_name": azurite.account, "account_key": "d3Jvbmc="}
    with (
        BlobServiceClient(azurite.url, credential=credential) as service,
        pytest.raises(HttpResponseError, match="AuthorizationFailure"),
    ):
        service.create_container("wrong-key")


def test_a_server_that_cannot_start_shows_what_it_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(servers.POSTGRES_SETTINGS, "no_such_setting", "1")
    with pytest.raises(servers.ServerFailed, match=r"unrecognized.*no_such_setting"):
        servers.postgres().__enter__()


def test_a_command_run_with_both_servers_reaches_them_and_its_result_comes_back() -> None:
    assert servers.main([sys.executable, "-c", REACHES_BOTH, "{postgres}"]) == 7


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[servers.Postgres]:
    with servers.postgres() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", server.password)
        yield server


def test_a_frozen_server_keeps_its_clients_waiting_and_then_answers(
    own_postgres: servers.Postgres,
) -> None:
    with closing(psycopg.connect(own_postgres.url)) as connection:
        with own_postgres.frozen():
            connection.pgconn.send_query(b"select 1")
            assert not select.select([connection], [], [], 0.5)[0]
            with pytest.raises(psycopg.OperationalError, match="timeout expired"):
                psycopg.connect(own_postgres.url, connect_timeout=2)
        assert select.select([connection], [], [], 60)[0]


def test_a_server_that_was_down_has_what_was_committed(own_postgres: servers.Postgres) -> None:
    with psycopg.connect(own_postgres.url) as connection:
        connection.execute("create table kept as select 7 as n")
    with own_postgres.down(), pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(own_postgres.url)
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("select n from kept").fetchone() == (7,)


@pytest.mark.parametrize(
    "how", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGKILL], [signal.SIGKILL, "frozen"]]
)
@pytest.mark.parametrize("kind", ["postgres", "azurite"])
def test_a_server_goes_with_the_process_that_started_it(kind: str, how: list[Any]) -> None:
    number, *frozen = how
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        process = subprocess.Popen(
            [sys.executable, "-c", STARTS_A_SERVER_AND_WAITS, kind, *frozen],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout
        with process.stdout:
            assert "127.0.0.1" in process.stdout.readline()
        assert servers.processes_within(folder)
        process.send_signal(number)
        process.wait()
        deadline = time.monotonic() + 60
        while servers.processes_within(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert servers.processes_within(folder) == []
