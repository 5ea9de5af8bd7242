"""The audit log: who did what, from where, with what result; and never a secret."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from web_site import MINE, POSTS, SECRETS, Site, bearer, guess, open_site, seen_from, sign_in

from homes.web.audit import Audit, Repeats

ADDRESS = "203.0.113.1"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def audited(tmp_path: Path, log: Path) -> Iterator[Site]:
    with open_site(tmp_path, secure=True, audit=Audit(log)) as site:
        yield site


def entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def told(log: Path) -> list[tuple[str, str, str]]:
    return [(each["action"], each["who"].split()[0], each["result"]) for each in entries(log)]


def test_sign_ins_refused_and_accepted_and_sign_outs_are_told(audited: Site, log: Path) -> None:
    right = audited.sessions.access_code(MINE)
    with audited.client(headers=seen_from(ADDRESS)) as client:
        sign_in(client, code="WRONG-GUESS")
        sign_in(client, code=right)
        guess(client, "not the password")
        guess(client, SECRETS.operator_password)
        bearer(client, "not the token")
        client.cookies.set("__Host-leasehold_session", audited.token())
        client.post("/sign-out")
    assert told(log) == [
        ("sign-in", MINE, "refused"),
        ("sign-in", MINE, "accepted"),
        ("sign-in", "operator", "refused"),
        ("sign-in", "operator", "accepted"),
        ("metrics", "operator", "refused"),
        ("sign-out", MINE, "done"),
    ]
    assert {each["address"] for each in entries(log)} == {ADDRESS}
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    for secret in (right, "WRONG-GUESS", "not the", SECRETS.operator_password):
        assert secret not in log.read_text()


def test_what_operators_do_is_told_with_its_result(audited: Site, log: Path) -> None:
    token = {"Cookie": f"__Host-leasehold_session={audited.operator_token()}"}
    with audited.client(headers=seen_from(ADDRESS) | token) as client:
        for _ in range(3):
            client.post(POSTS[0])
        client.post(POSTS[1], json={"name": "pipeline-1"})
        client.post(POSTS[2], json={"name": 'x"\n{"forged": 1}\x1b[2J'})
        client.post(POSTS[2], content=b"x")
        client.post(POSTS[3])
    found = [(each["action"], each["target"], each["result"]) for each in entries(log)]
    assert found == [
        ("add instance", "pipeline-2", "done"),
        ("add instance", "pipeline-3", "done"),
        ("add instance", None, "there are 3 instances already; that is all this machine takes"),
        ("stop instance", "pipeline-1", "done"),
        ("kill instance", 'x"\n{"forged": 1}\x1b[2J', "there is no such instance"),
        ("kill instance", None, "the body is application/json"),
        ("add co", None, "done"),
    ]
    assert len({each["who"] for each in entries(log)}) == 1
    assert log.read_bytes().isascii()


def test_a_flood_of_tries_is_counted_not_written(audited: Site, log: Path) -> None:
    with audited.client(headers=seen_from(ADDRESS)) as client:
        for _ in range(100):
            guess(client)
    assert len(entries(log)) == 11
    assert entries(log)[-1]["result"] == "too many tries"


def test_what_repeats_is_told_again_after_a_while_with_how_often() -> None:
    now = [0.0]
    repeats = Repeats(60, clock=lambda: now[0])
    assert [repeats.times("a") for _ in range(4)] == [1, 0, 0, 0]
    now[0] = 60.0
    assert [repeats.times("a"), repeats.times("b")] == [4, 1]


def test_the_log_is_bounded_and_the_newest_is_kept(log: Path) -> None:
    audit = Audit(log, file_bytes_max=2000, files=3)
    for n in range(100):
        audit.write("test", who="operator", address=ADDRESS, result="done", n=n)
    files = sorted(file for file in log.parent.iterdir() if file.suffix != ".lock")
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 2000 for file in files)
    kept = [each["n"] for file in reversed(files) for each in entries(file)]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 20


def test_a_log_that_cannot_be_written_keeps_nobody_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "audit.jsonl"
    log.mkdir()
    with open_site(tmp_path, secure=True, audit=Audit(log)) as site, site.client() as client:
        assert [guess(client, SECRETS.operator_password) for _ in range(3)] == [303] * 3
    assert sum("audit log" in record.getMessage() for record in caplog.records) == 1
