from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
import servers
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient

STARTS_A_SERVER_AND_WAITS = """
import sys, time
import servers
with getattr(servers, sys.argv[1])() as server:
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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["postgres", "azurite"])
def test_a_server_goes_with_the_process_that_started_it(kind: str, how: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        process = subprocess.Popen(
            [sys.executable, "-c", STARTS_A_SERVER_AND_WAITS, kind],
            env={**os.environ, "PYTHONPATH": str(Path(servers.__file__).parent), "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout
        with process.stdout:
            assert "127.0.0.1" in process.stdout.readline()
        assert processes_within(folder)
        process.send_signal(how)
        process.wait()
        deadline = time.monotonic() + 60
        while processes_within(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_within(folder) == []


def processes_within(folder: str) -> list[int]:
    """The processes whose working directory lies in the folder, as every server's does."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:  # it ended meanwhile
            continue
    return found
