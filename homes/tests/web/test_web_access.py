"""Who may see and do what: routes, roles, cookies and their end."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_site import (
    MINE,
    OPEN,
    OPERATOR,
    OTHER,
    PAGES,
    POSTS,
    RESIDENT,
    SECRETS,
    Site,
    status,
)

from homes.web.secrets import Secrets
from homes.web.sessions import Sessions


def test_the_routes_are_those_that_are_tested_here(site: Site) -> None:
    known = {route.path for route in site.app.routes}
    assert known == {
        *RESIDENT,
        *OPERATOR,
        *POSTS,
        *PAGES,
        "/api/home/drill",  # tests/web/test_web_drills.py
        "/",
        "/sign-in",
        "/sign-out",
        "/healthz",
        "/openapi.json",
        "/metrics",
        "/static",
        "/static/domain.js",
    }


def test_without_signing_in_there_is_nothing_but_the_door(site: Site) -> None:
    with site.client() as client:
        for path, wanted in OPEN.items():
            assert status(client, "GET", path) == wanted, path
        for path in RESIDENT + OPERATOR:
            assert status(client, "GET", path) == 401, path
        for path in POSTS:
            assert status(client, "POST", path, json={"name": "pipeline-1"}) == 401, path
        for path in PAGES:
            answer = client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in"), path
        assert client.get("/metrics").status_code == 401
    assert site.fleet.asked == []
    assert site.co == []


def test_a_resident_sees_their_own_home_and_no_other(site: Site) -> None:
    for home, other in ((MINE, OTHER), (OTHER, MINE)):
        with site.client(site.token(home)) as client:
            about = client.get("/api/home").json()
            assert about["home"] == home
            for answer in (
                client.get("/api/home"),
                client.get("/api/home/day"),
                client.get("/home"),
            ):
                assert other not in answer.text
            batteries = {sensor["battery"] for sensor in about["sensors"]}
            assert (7 in batteries) == (home == OTHER)
            assert len(about["alerts"]) == (1 if home == OTHER else 0)


@pytest.mark.parametrize("guess", ["home", "home_id", "id"])
def test_no_home_can_be_named_from_outside(site: Site, guess: str) -> None:
    with site.client(site.token(MINE)) as client:
        for path in ("/api/home", "/api/home/day"):
            plain = client.get(path).json()
            guessed = client.get(path, params={guess: OTHER}, headers={"X-Home": OTHER}).json()
            for answer in (plain, guessed):
                answer.pop("now_ms", None)
            assert guessed == plain
        for path in (
            f"/api/home/{OTHER}",
            f"/api/homes/{OTHER}",
            f"/home/{OTHER}",
            "/api/home/../home/x",
        ):
            assert client.get(path).status_code == 404, path


def test_residents_are_no_operators_and_operators_no_residents(site: Site) -> None:
    with site.client(site.token()) as resident:
        for path in OPERATOR:
            assert status(resident, "GET", path) == 403
        for path in POSTS:
            assert status(resident, "POST", path, json={"name": "pipeline-1"}) == 403
        refused = resident.get("/operations")
        assert (refused.status_code, f"resident of home {MINE}" in refused.text) == (403, True)
        assert resident.get("/metrics").status_code == 401
    with site.client(site.operator_token()) as operator:
        for path in RESIDENT:
            assert status(operator, "GET", path) == 403
        refused = operator.get("/home")
        assert (refused.status_code, "signed in as an operator" in refused.text) == (403, True)
        assert operator.get("/metrics").status_code == 200
    assert site.fleet.asked == []


def forgeries(site: Site) -> dict[str, str]:
    good = site.token(MINE)
    payload, signature = good.split(".")
    fields = json.loads(urlsafe_b64decode(payload + "=="))

    def packed(*changed: Any) -> str:
        return urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")

    stranger = Sessions(Secrets(secret="x" * 40, operator_password="y" * 20))
    theirs = stranger.resident(MINE, stranger.access_code(MINE))
    assert theirs is not None
    return {
        "nothing": "",
        "no signature": payload,
        "empty signature": f"{payload}.",
        "another home": f"{packed(fields[0], OTHER, *fields[2:])}.{signature}",
        "operator": f"{packed('operator', None, *fields[2:])}.{signature}",
        "later": f"{packed(*fields[:2], fields[2] + 999_999, fields[3])}.{signature}",
        "cut": good[:-2],
        "longer": good + "A" * 600,
        "another secret": stranger.sign(theirs),
        "no base64": "%%%.%%%",
        "no ascii": "ä.ö",
        "null": "bnVsbA.bnVsbA",
        "signature of another": f"{payload}.{site.token(OTHER).split('.')[1]}",
        "signature of an operator": f"{payload}.{site.operator_token().split('.')[1]}",
    }


def test_a_forged_cookie_opens_nothing(site: Site) -> None:
    for name, token in forgeries(site).items():
        assert site.sessions.verify(token) is None, name
        if token.isascii():
            with site.client(token) as client:
                assert client.get("/api/home").status_code == 401, name
                assert client.get("/api/operations").status_code == 401, name


@given(st.text(max_size=80))
def test_no_text_is_a_cookie(text: str) -> None:
    assert Sessions(SECRETS).verify(text) is None


def test_a_cookie_expires(site: Site) -> None:
    now = [1_000_000.0]
    sessions = Sessions(SECRETS, session_s=60, clock=lambda: now[0])
    session = sessions.operator(SECRETS.operator_password)
    assert session is not None
    token = sessions.sign(session)
    now[0] += 59
    assert sessions.verify(token) == session
    now[0] += 1
    assert sessions.verify(token) is None
    old = Sessions(SECRETS, session_s=-1)
    expired = old.resident(MINE, old.access_code(MINE))
    assert expired is not None
    with site.client(old.sign(expired)) as client:
        assert client.get("/api/home").status_code == 401


def test_signing_out_ends_the_session_even_for_who_kept_the_cookie(site: Site) -> None:
    token = site.token()
    with site.client(token) as client:
        assert client.get("/api/home").status_code == 200
        out = client.post("/sign-out")
        assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    with site.client(token) as client:
        assert client.get("/api/home").status_code == 401


def test_a_new_password_ends_the_operators_sessions() -> None:
    before, after = (
        Sessions(SECRETS),
        Sessions(Secrets(secret=SECRETS.secret, operator_password="another one!")),
    )
    operator, resident = (
        before.operator(SECRETS.operator_password),
        before.resident(MINE, before.access_code(MINE)),
    )
    assert operator is not None
    assert resident is not None
    assert after.verify(before.sign(operator)) is None
    assert after.verify(before.sign(resident)) == resident


def test_a_live_page_ends_with_its_session(site: Site) -> None:
    token = site.token()
    session = site.sessions.verify(token)
    assert session is not None
    with site.client(token) as client, client.stream("GET", "/api/home/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "event: home"
        site.sessions.end(session)
        assert "event: signed-out" in list(lines)
