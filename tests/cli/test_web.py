from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from command_line import PROGRAM, leasehold

import leasehold as lh
from leasehold.homes.places import Places
from leasehold.homes.web import Secrets
from leasehold.homes.web.sessions import Sessions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    places = Places(tmp_path)
    lh.Hub.create(places.hub, name="sensors", namespace="homes", partitions=2).close()
    return tmp_path


def test_it_serves_until_it_is_stopped(folder: Path) -> None:
    command = [*PROGRAM, "web", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            assert url.startswith("http://127.0.0.1:")
            assert httpx.get(f"{url}/healthz").text == "ok\n"
            code = leasehold("web", folder, "--code-of", "H000007").stdout.strip()
            fields = {"role": "resident", "home": "H000007", "code": code}
            answer = httpx.post(f"{url}/sign-in", data=fields, headers={"Origin": url})
            assert (answer.status_code, answer.headers["location"]) == (303, "/home")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_code_of_a_home_follows_from_the_folders_secret(folder: Path) -> None:
    found = json.loads(leasehold("web", folder, "--code-of", "H000001", "--json").stdout)
    secrets = Secrets.load(Places(folder).secrets, {})
    code = Sessions(secrets).access_code("H000001")
    assert found == {"home": "H000001", "code": code}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no folder"),
        (["{folder}", "--code-of", "x"], "is no home's id"),
        (["{folder}/empty"], "there is no hub"),
        (["{folder}", "--host", "192.0.2.1"], "cannot be served on 192.0.2.1"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(folder: Path, words: list[str], said: str) -> None:
    (folder / "empty").mkdir()
    done = leasehold("web", *(word.format(folder=folder) for word in words), ok=False)
    assert done.returncode == 2
    assert said in done.stderr
