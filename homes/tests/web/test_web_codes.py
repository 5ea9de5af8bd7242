"""Access codes are revoked one by one, and the sessions that they began with them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_site import MINE, OTHER, SECRETS, Site, sign_in

from homes.web.codes import LOOK_S
from homes.web.sessions import Sessions
from leasehold.errors import BadInput


class Web:
    """Web processes over one file, and one clock for all."""

    def __init__(self, folder: Path) -> None:
        self.path, self.now = folder / "web-codes.json", 1_000_000.0

    def process(self) -> Sessions:
        return Sessions(SECRETS, codes=self.path, clock=lambda: self.now)


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(tmp_path)


def test_a_revoked_code_and_its_sessions_end_and_no_others(web: Web) -> None:
    here, there = web.process(), web.process()
    code, other = here.access_code(MINE), here.access_code(OTHER)
    began, others = here.resident(MINE, code), here.resident(OTHER, other)
    assert began is not None
    assert others is not None
    there.codes.revoke(MINE)
    web.now += 1
    for process in (here, there, web.process()):
        assert process.resident(MINE, code) is None
        with pytest.raises(BadInput, match="codes new"):
            process.access_code(MINE)
        assert process.resident(MINE, process._access_code(MINE, 1)) is None  # it has none now
        assert process.verify(here.sign(began)) is None
        assert process.verify(here.sign(others)) == others
        assert process.resident(OTHER, other) is not None
    assert stat.S_IMODE(web.path.stat().st_mode) == 0o600


def test_a_new_code_opens_what_the_old_one_opened(web: Web) -> None:
    process = web.process()
    old = process.access_code(MINE)
    process.codes.replace(MINE)
    new = process.access_code(MINE)
    assert new != old
    assert process.resident(MINE, old) is None
    began = process.resident(MINE, new)
    assert began is not None
    assert web.process().verify(process.sign(began)) == began


def test_a_code_that_is_replaced_while_somebody_signs_in_begins_no_session_of_the_next(
    web: Web,
) -> None:
    here = web.process()
    old = here.access_code(MINE)
    web.process().codes.replace(MINE)

    def later() -> float:
        web.now += LOOK_S * 0.6  # it looks at the file in the middle
        return web.now

    here.codes._clock = later
    began = here.resident(MINE, old)
    web.now += LOOK_S
    assert began is None or not here.valid(began)


@given(st.lists(st.sampled_from(["revoke", "replace"]), max_size=6))
def test_no_code_ever_comes_back(changes: list[str]) -> None:
    sessions, codes = Sessions(SECRETS), []
    for change in changes:
        codes.append(sessions._access_code(MINE, sessions.codes.state(MINE).number))
        getattr(sessions.codes, change)(MINE)
        assert all(sessions.resident(MINE, code) is None for code in codes)
    assert len(set(codes)) == len(codes)


def test_a_live_page_ends_with_its_code(site: Site) -> None:
    with site.client(site.token()) as client, client.stream("GET", "/api/home/live") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: home"
        site.sessions.codes.revoke(MINE)
        assert "event: signed-out" in list(lines)
    with site.client() as client:
        next_code = site.sessions._access_code(MINE, 1)
        assert sign_in(client, code=next_code).status_code == 401


@pytest.mark.parametrize("content", [b"", b"[]", b'{"H000001": 1}', b'{"H000001": {"x": 1}}'])
def test_a_damaged_file_does_not_make_revoked_codes_hold_again(web: Web, content: bytes) -> None:
    process = web.process()
    code = process.access_code(MINE)
    process.codes.revoke(MINE)
    web.path.write_bytes(content)
    web.now += 1
    assert process.resident(MINE, code) is None
    with pytest.raises(BadInput, match="cannot be read"):
        web.process()


def test_a_file_that_is_gone_does_not_either(web: Web) -> None:
    process = web.process()
    code = process.access_code(MINE)
    process.codes.revoke(MINE)
    web.path.unlink()
    web.now += 1
    assert process.resident(MINE, code) is None
