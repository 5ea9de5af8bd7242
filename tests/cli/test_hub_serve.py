from __future__ import annotations

import re
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from support.amqp_endpoint import ServedHub, served_hub
from support.command_line import PROGRAM, leasehold

from leasehold.cli.hub_serve import is_loopback


def test_it_says_where_it_listens_and_what_it_is_not_and_never_the_key(tmp_path: Path) -> None:
    path = tmp_path / "sensors.db"
    leasehold("hub", "create", path, "--partitions", "1")
    serving = subprocess.Popen(
        [*PROGRAM, "hub", "serve", str(path), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert serving.stdout
    first = serving.stdout.readline()
    assert re.fullmatch(r"serving the hub sensors on 127\.0\.0\.1:\d+ over AMQP 1\.0\n", first)
    second = serving.stdout.readline()
    assert f"{path}.connection" in second
    serving.send_signal(signal.SIGINT)
    out, err = serving.communicate(timeout=60)
    assert serving.returncode == 0
    assert "no production broker" in err
    connection = Path(f"{path}.connection")
    assert stat.S_IMODE(connection.stat().st_mode) == 0o600
    key = connection.read_text().partition("SharedAccessKey=")[2].partition(";")[0]
    assert len(key) > 40
    assert key not in first + second + out + err


def test_the_key_stays_the_same_and_the_port_is_that_of_the_last_start(tmp_path: Path) -> None:
    with served_hub(tmp_path, partitions=1) as served:
        before, port = served.connection_string, served.port
        assert served.stop() == 0
        served.port = 0
        served.start()
        assert served.connection_string == before.replace(str(port), str(served.port))


def test_a_port_that_is_taken_or_a_hub_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "sensors.db"
        leasehold("hub", "create", path)
        port = taken.getsockname()[1]
        done = leasehold("hub", "serve", path, "--port", port, ok=False)
        assert f"port {port} of 127.0.0.1 cannot be used" in done.stderr
    done = leasehold("hub", "serve", tmp_path / "none.db", ok=False)
    assert "leasehold hub create" in done.stderr


def test_with_tls_the_certificate_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    with served_hub(tmp_path, "--tls", partitions=1) as served:
        public = Path(f"{served.path}.certificate.pem")
        private = Path(f"{served.path}.tls-key.pem")
        made = public.read_bytes()
        assert b"PRIVATE" not in made
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert "UseDevelopmentEmulator" not in served.connection_string
        served.stop()
        served.start()
        assert public.read_bytes() == made


def test_a_certificate_is_made_again_for_another_host(tmp_path: Path) -> None:
    with served_hub(tmp_path, "--tls", partitions=1) as served:
        made = Path(f"{served.path}.certificate.pem").read_bytes()
        served.stop()
    again = ServedHub(path=served.path, words=("--tls", "--host", "127.0.0.9"))
    again.start()
    try:
        assert Path(f"{served.path}.certificate.pem").read_bytes() != made
    finally:
        again.stop()


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("192.168.1.7", False),
        ("example.org", False),
    ],
)
def test_what_others_can_reach_is_known(host: str, local: bool) -> None:
    assert is_loopback(host) is local
