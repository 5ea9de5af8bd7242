"""A signed-out session stays signed out: after a restart, in other processes, whatever the disk."""

from __future__ import annotations

import json
import logging
import stat
import threading
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_site import MINE, SECRETS

import leasehold as lh
from homes.local.places import Places
from homes.web.kept_until import KeptUntil
from homes.web.serve import open_web
from homes.web.sessions import Session, Sessions


class Web:
    """As many web processes over one file as are asked for, and one clock for all."""

    def __init__(self, folder: Path) -> None:
        self.path, self.now = folder / "web-signed-out.json", 1_000_000.0

    def process(self) -> Sessions:
        return Sessions(SECRETS, session_s=60, signed_out=self.path, clock=lambda: self.now)

    def kept(self) -> set[str]:
        return set(json.loads(self.path.read_bytes()))


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(tmp_path)


def signed_in(process: Sessions) -> Session:
    session = process.resident(MINE, process.access_code(MINE))
    assert session is not None
    return session


def test_a_restart_does_not_sign_anybody_in_again(web: Web) -> None:
    before = web.process()
    out, still = signed_in(before), signed_in(before)
    before.end(out)
    after = web.process()
    assert after.verify(before.sign(out)) is None
    assert after.verify(before.sign(still)) == still


def test_the_page_itself_keeps_sign_outs_over_a_restart(tmp_path: Path) -> None:
    places = Places(tmp_path)
    lh.Hub.create(places.hub, name="sensors", namespace="homes", partitions=1).close()
    code = Sessions(SECRETS).access_code(MINE)
    with open_web(places, SECRETS) as server, httpx.Client(base_url=server.url) as client:
        client.headers["Origin"] = server.url
        client.post("/sign-in", data={"role": "resident", "home": MINE, "code": code})
        stolen = dict(client.cookies)
        assert client.get("/").headers["location"] == "/home"
        client.post("/sign-out")
    with open_web(places, SECRETS) as server:
        again = httpx.get(server.url, cookies=stolen)
        assert again.headers["location"] == "/sign-in"


def test_processes_learn_of_each_others_sign_outs_within_a_second(web: Web) -> None:
    one, two = web.process(), web.process()
    for _ in range(3):
        session = signed_in(one)
        assert two.valid(session)
        one.end(session)
        web.now += 1
        assert not two.valid(session)
        one, two = two, one


def test_the_file_is_looked_at_once_a_second_and_read_when_it_changed(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = web.process()
    process.end(signed_in(process))
    session, looks, reads = signed_in(process), [], []
    look, read = Path.stat, Path.read_bytes
    monkeypatch.setattr(Path, "stat", lambda path: (looks.append(path), look(path))[1])
    monkeypatch.setattr(Path, "read_bytes", lambda path: (reads.append(path), read(path))[1])
    for _ in range(40):
        assert process.valid(session)
        web.now += 0.125
    assert (len(looks), len(reads)) == (5, 1)


def test_sign_outs_at_the_same_moment_are_all_kept(web: Web) -> None:
    def sign_out(who: int) -> None:
        process = KeptUntil(web.path, lambda: web.now, what="sign-outs")
        for n in range(25):
            process.add(f"{who} {n}", int(web.now) + 60)

    threads = [threading.Thread(target=sign_out, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert web.kept() == {f"{who} {n}" for who in range(4) for n in range(25)}


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 100), st.floats(0, 30)),
        min_size=1,
        max_size=12,
    )
)
def test_what_has_not_expired_is_known_to_all_and_the_rest_is_dropped(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, int, float]]
) -> None:
    web, ended = Web(tmp_path_factory.mktemp("web")), {}
    processes = [KeptUntil(web.path, lambda: web.now, what="sign-outs") for _ in range(2)]
    for number, (who, lasts_s, passes_s) in enumerate(story):
        web.now += passes_s
        ended[str(number)] = int(web.now) + lasts_s
        processes[who].add(str(number), ended[str(number)])
    unexpired = {nonce for nonce, at in ended.items() if at > web.now}
    assert web.kept() == unexpired
    web.now += 1
    for process in (*processes, KeptUntil(web.path, lambda: web.now, what="sign-outs")):
        assert {n for n, at in ended.items() if at > web.now} <= {n for n in ended if n in process}


def test_only_its_owner_can_read_the_file_and_nothing_unfinished_is_left(web: Web) -> None:
    process = web.process()
    process.end(signed_in(process))
    process.end(signed_in(process))
    names = {each.name for each in web.path.parent.iterdir()}
    assert names == {web.path.name, f"{web.path.name}.lock"}
    for each in web.path.parent.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"x": "soon"}', b"null"])
@pytest.mark.parametrize("first", ["a request", "a sign-out"])
def test_a_damaged_file_is_reported_and_set_aside(
    web: Web, content: bytes, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    process = web.process()
    known, new, other = (signed_in(process) for _ in range(3))
    process.end(known)
    web.path.write_bytes(content)
    if first == "a sign-out":
        process.end(new)
    web.now += 1
    assert not process.valid(known)
    assert process.valid(other)
    assert "damaged" in caplog.text
    assert web.path.with_name(f"{web.path.name}.damaged").read_bytes() == content
    expected = {known.nonce, new.nonce} if first == "a sign-out" else {known.nonce}
    assert web.kept() == expected  # what this process knew is in the new one


def test_a_damaged_file_at_the_start_is_no_crash(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    web.path.write_bytes(b"no JSON")
    process = web.process()
    session = signed_in(process)
    assert process.valid(session)
    process.end(session)
    assert not web.process().valid(session)
    assert caplog.text.count("damaged (") == 1


def test_a_sign_out_that_cannot_be_written_holds_and_is_written_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "not yet there"
    web = Web(folder)
    process = web.process()
    first, second = signed_in(process), signed_in(process)
    process.end(first)
    assert not process.valid(first)
    assert "cannot be written" in caplog.text
    folder.mkdir()
    process.end(second)
    assert web.kept() == {first.nonce, second.nonce}


def test_a_file_that_cannot_be_read_is_reported_once(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    web.path.mkdir()
    process = web.process()
    session = signed_in(process)
    with caplog.at_level(logging.WARNING, "leasehold"):
        for _ in range(5):
            assert process.valid(session)
            web.now += 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    process.end(session)
    assert not process.valid(session)
