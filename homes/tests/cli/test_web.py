from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from homes_command import PROGRAM, run_homes

import leasehold as lh
from homes.cli.codes import new
from homes.local.places import Places
from homes.web.secrets import Secrets
from homes.web.sessions import Sessions


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
            code = run_homes("web", folder, "--code-of", "H000007").stdout.strip()
            fields = {"role": "resident", "home": "H000007", "code": code}
            answer = httpx.post(f"{url}/sign-in", data=fields, headers={"Origin": url})
            assert (answer.status_code, answer.headers["location"]) == (303, "/home")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_code_of_a_home_that_is_not_there_is_refused(folder: Path) -> None:
    Places(folder).town.write_text('{"homes": 100}')
    assert run_homes("web", folder, "--code-of", "H000099").stdout.strip()
    told = run_homes("web", folder, "--code-of", "H000100", ok=False).stderr
    assert "there is no home H000100 here; the last one is H000099" in told


def test_the_code_of_a_home_follows_from_the_folders_secret(folder: Path) -> None:
    found = json.loads(run_homes("web", folder, "--code-of", "H000001", "--json").stdout)
    secrets = Secrets.load(Places(folder).secrets, {})
    code = Sessions(secrets).access_code("H000001")
    assert found == {"home": "H000001", "code": code}


def test_codes_are_revoked_and_replaced_one_by_one(folder: Path) -> None:
    def codes(*words: str) -> str:
        return run_homes("codes", words[0], folder, *words[1:]).stdout.strip()

    first = codes("show", "H000001")
    assert codes("list") == "every home has its first code"
    assert "revoked" in codes("revoke", "H000001")
    assert "revoked" in run_homes("codes", "show", folder, "H000001", ok=False).stderr
    assert "revoked" in run_homes("web", folder, "--code-of", "H000001", ok=False).stderr
    second = codes("new", "H000001")
    assert second not in (first, "")
    codes("revoke", "H000002")
    found = {each["home"]: each["state"] for each in json.loads(codes("list", "--json"))}
    assert found == {"H000001": "replaced", "H000002": "revoked"}
    assert codes("show", "H000001") == second
    assert run_homes("web", folder, "--code-of", "H000001").stdout.strip() == second
    told = [json.loads(line) for line in Places(folder).audit.read_text().splitlines()]
    assert [(each["action"], each["target"]) for each in told] == [
        ("revoke code", "H000001"),
        ("replace code", "H000001"),
        ("revoke code", "H000002"),
    ]


def test_a_user_without_a_name_can_replace_a_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.umask", lambda mask: 0)
    new(folder, "H000001")
    sessions = Sessions(Secrets.load(Places(folder).secrets, {}), codes=Places(folder).codes)
    assert capsys.readouterr().out.strip() == sessions.access_code("H000001")
    assert f"user {os.getuid()}" in Places(folder).audit.read_text()


def test_the_token_for_metrics_is_printed(folder: Path) -> None:
    token = run_homes("web", folder, "--metrics-token").stdout.strip()
    assert Sessions(Secrets.load(Places(folder).secrets, {})).is_metrics_token(token)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no folder"),
        (["{folder}", "--code-of", "x"], "is no home's id"),
        (["{folder}/empty"], "there is no hub"),
        (["{folder}", "--host", "192.0.2.1"], "cannot be served on 192.0.2.1"),
        (["{folder}", "--public-url", "homes.example"], "--public-url"),
        (["{folder}", "--trusted-proxy", "proxy.example"], "trusted proxy"),
        (["{folder}", "--idle-timeout-s", "0"], "idle_timeout_s is 0"),
        (["{folder}", "--connections-max", "99999999"], "ulimit -n"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(folder: Path, words: list[str], said: str) -> None:
    (folder / "empty").mkdir()
    done = run_homes("web", *(word.format(folder=folder) for word in words), ok=False)
    assert done.returncode == 2
    assert said in done.stderr
