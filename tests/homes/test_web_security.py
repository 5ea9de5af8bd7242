"""Who may see and do what, and what happens to those who may not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import struct
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from processing import wait_until
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.requests import ClientDisconnect
from web_site import MINE, OTHER, SECRETS, Site, open_site

from leasehold.errors import BadInput
from leasehold.homes.web import Secrets
from leasehold.homes.web.live import STREAMS_PER_HOME, Live
from leasehold.homes.web.sessions import Limiter, Sessions
from leasehold.homes.web.sign_in import COOKIE

RESIDENT = ["/api/home", "/api/home/day", "/api/home/live"]
OPERATOR = ["/api/operations", "/api/operations/live"]
POSTS = [
    "/api/operations/instances",
    "/api/operations/instances/stop",
    "/api/operations/instances/kill",
    "/api/operations/co-detectors",
]
PAGES = {"/home": "resident", "/operations": "operator"}
OPEN = {"/": 303, "/sign-in": 200, "/healthz": 200, "/openapi.json": 200, "/static/style.css": 200}


def status(client: httpx.Client, method: str, path: str, **more: Any) -> int:
    """Without waiting for a stream's end."""
    with client.stream(method, path, **more) as answer:
        return answer.status_code


def test_the_routes_are_those_that_are_tested_here(site: Site) -> None:
    known = {route.path for route in site.app.routes}
    assert known == {
        *RESIDENT,
        *OPERATOR,
        *POSTS,
        *PAGES,
        "/",
        "/sign-in",
        "/sign-out",
        "/healthz",
        "/openapi.json",
        "/metrics",
        "/static",
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
        assert resident.get("/operations").status_code == 303
        assert resident.get("/metrics").status_code == 401
    with site.client(site.operator_token()) as operator:
        for path in RESIDENT:
            assert status(operator, "GET", path) == 403
        assert operator.get("/home").status_code == 303
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


def hold_streams(site: Site, stack: ExitStack, token: str, path: str, count: int) -> None:
    client = stack.enter_context(site.client(token))
    for _ in range(count):
        lines = stack.enter_context(client.stream("GET", path)).iter_lines()
        next(lines)
        stack.callback(lines.close)


def test_one_home_cannot_hold_all_the_servers_streams_not_even_with_many_sessions(
    site: Site,
) -> None:
    with site.client(site.token()) as client, ExitStack() as stack:
        for _ in range(STREAMS_PER_HOME // 4):
            hold_streams(site, stack, site.token(), "/api/home/live", 4)
        assert status(client, "GET", "/api/home/live") == 429
        with site.client(site.token(OTHER)) as other:
            assert status(other, "GET", "/api/home/live") == 200


def test_operators_have_a_limit_of_their_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.homes.web.live.STREAMS_OF_HOMES", 2)
    monkeypatch.setattr("leasehold.homes.web.live.STREAMS_OF_OPERATORS", 3)
    live = "/api/operations/live"
    with ExitStack() as stack, site.client(site.token(OTHER)) as other:
        hold_streams(site, stack, site.operator_token(), live, 2)
        hold_streams(site, stack, site.token(), "/api/home/live", 2)
        assert status(other, "GET", "/api/home/live") == 503
        hold_streams(site, stack, site.operator_token(), live, 1)
        with site.client(site.operator_token()) as operator:
            assert status(operator, "GET", live) == 429


def connections(site: Site, count: int) -> list[socket.socket]:
    """That the server has accepted."""
    name, _, port = site.url.removeprefix("http://").partition(":")
    wires = [socket.create_connection((name, int(port)), timeout=30) for _ in range(count)]
    for wire in wires:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while b"ok\n" not in wire.recv(1 << 16):
            pass
    return wires


def ask_live(wires: list[socket.socket], token: str) -> None:
    request = f"GET /api/home/live HTTP/1.1\r\nHost: localhost\r\nCookie: {COOKIE}={token}\r\n\r\n"
    for wire in wires:
        wire.sendall(request.encode())


def open_streams(site: Site) -> int:
    with site.client(site.operator_token()) as client:
        found = re.search(
            r"^leasehold_web_streams (\d+)", client.get("/metrics").text, re.MULTILINE
        )
    assert found is not None
    return int(found[1])


def test_not_even_by_asking_for_all_of_them_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, sent, read = threading.Event(), threading.Event(), site.reads.home_state

    def slow(home_id: str) -> Any:
        held.set()
        sent.wait(30)
        return read(home_id)

    monkeypatch.setattr(site.reads, "home_state", slow)
    first, *others = wires = connections(site, 61)
    ask_live([first], site.token(OTHER))
    held.wait(30)  # the server stands still until all have been sent
    ask_live(others, site.token(MINE))
    sent.set()
    statuses = sorted(wire.recv(12) for wire in others)
    assert statuses == [b"HTTP/1.1 200"] * 16 + [b"HTTP/1.1 429"] * 44
    assert open_streams(site) == 17
    for wire in wires:
        wire.close()
    wait_until(lambda: open_streams(site) == 0)


def test_who_goes_away_before_the_first_byte_is_not_counted_for_ever(site: Site) -> None:
    token = site.token()
    for _ in range(5):
        wires = connections(site, 20)
        ask_live(wires, token)
        for wire in wires:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.close()  # at once, and rudely
    wait_until(lambda: open_streams(site) == 0)
    (wire,) = connections(site, 1)
    with wire:
        ask_live([wire], token)
        assert wire.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_nor_is_who_could_not_be_sent_even_the_head(version: str) -> None:
    sessions = Sessions(SECRETS)
    live, session = Live(sessions), sessions.operator(SECRETS.operator_password)
    assert session is not None
    counted = []

    async def gone(*_: Any) -> Any:
        counted.append(live.open)
        raise OSError("the client went away")

    async def silent() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": version}}
    for _ in range(20):
        with pytest.raises((OSError, ClientDisconnect)):
            asyncio.run(live.stream(session, "home", gone)(scope, silent, gone))
    assert set(counted) == {1}
    assert live.open == 0


def sign_in(client: httpx.Client, **fields: str) -> httpx.Response:
    return client.post("/sign-in", data={"role": "resident", "home": MINE, **fields})


def test_signing_in_gives_a_cookie_that_scripts_and_other_sites_cannot_use(site: Site) -> None:
    with site.client() as client:
        answer = sign_in(client, code=site.sessions.access_code(MINE).lower().replace("-", " "))
        assert (answer.status_code, answer.headers["location"]) == (303, "/home")
        cookie = answer.headers["set-cookie"].lower()
        for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"):
            assert word in cookie
        assert "domain" not in cookie
        assert client.get("/api/home").json()["home"] == MINE


def test_behind_tls_the_cookie_is_bound_to_it(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site, site.client() as client:
        answer = sign_in(client, code=site.sessions.access_code(MINE))
        assert answer.headers["set-cookie"].startswith("__Host-leasehold_session=")
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "max-age" in answer.headers["strict-transport-security"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"code": ""},
        {"code": "AAAA-AAAA-AAAA"},
        {"home": OTHER},
        {"home": "", "code": ""},
        {"home": "H000001' OR 1=1 --", "code": "x"},
        {"home": "H" * 3000, "code": "x"},
        {"home": "../../etc/passwd", "code": "\x00"},
        {"home": "<script>alert(1)</script>", "code": "<b>"},
        {"home": "H٠٠٠٠٠١", "code": "x"},
        {"role": "operator", "password": ""},
        {"role": "operator", "password": "operators onl"},
        {"role": "admin", "code": "x"},
    ],
    ids=str,
)
def test_who_does_not_know_the_code_does_not_come_in(site: Site, fields: dict[str, str]) -> None:
    right = site.sessions.access_code(MINE)
    given_fields = {"code": right, **fields} if fields.get("home") == OTHER else fields
    with site.client() as client:
        answer = sign_in(client, **given_fields)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "<script>alert" not in answer.text


def test_codes_differ_by_home_and_secret_and_cannot_be_had_from_one_another() -> None:
    sessions = Sessions(SECRETS)
    other = Sessions(
        Secrets(secret=SECRETS.secret + "!", operator_password=SECRETS.operator_password)
    )
    codes = {sessions.access_code(f"H{n:06d}") for n in range(2000)}
    assert len(codes) == 2000
    assert all(re.fullmatch(r"[A-Z2-7]{4}-[A-Z2-7]{4}-[A-Z2-7]{4}", code) for code in codes)
    assert other.access_code(MINE) not in codes


def test_guessing_at_a_home_is_stopped_and_says_how_long(site: Site) -> None:
    with site.client() as client:
        found = [sign_in(client, code=f"WRONG{n}").status_code for n in range(11)]
        assert found == [401] * 10 + [429]
        right = sign_in(client, code=site.sessions.access_code(MINE))
        assert right.status_code == 429
        assert 0 < int(right.headers["retry-after"]) <= 300
        assert "Please wait" in right.text
        other = sign_in(client, home=OTHER, code=site.sessions.access_code(OTHER))
        assert other.status_code == 303


def test_signing_in_over_and_over_is_stopped_for_that_home_alone(site: Site) -> None:
    with site.client() as client:
        right = {"code": site.sessions.access_code(MINE)}
        assert [sign_in(client, **right).status_code for _ in range(61)] == [303] * 60 + [429]
        other = sign_in(client, home=OTHER, code=site.sessions.access_code(OTHER))
        assert other.status_code == 303
        assert sign_in(client, code="wrong").status_code == 401  # tells nothing to who lacks it


def test_more_fields_than_the_form_has_are_refused(site: Site) -> None:
    with site.client() as client:
        answer = client.post("/sign-in", data={f"field{n}": "x" for n in range(9)})
        assert answer.status_code == 400
        assert "set-cookie" not in answer.headers


def seen_from(address: str) -> dict[str, str]:
    """What a proxy adds; what the client made up comes before it."""
    return {"X-Forwarded-For": f"192.0.2.1, {address}"}


def test_nobody_can_lock_a_resident_out_from_elsewhere(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site:
        for n in range(40):
            with site.client(headers=seen_from(f"198.51.100.{n}")) as client:
                assert [sign_in(client, code="x").status_code for _ in range(11)][-2:] == [401, 429]
        with site.client(headers=seen_from("203.0.113.1")) as client:
            assert sign_in(client, code=site.sessions.access_code(MINE)).status_code == 303


def guess(client: httpx.Client, password: str = "wrong") -> int:
    return sign_in(client, role="operator", password=password).status_code


def bearer(client: httpx.Client, password: str = "wrong") -> int:
    given = {"Authorization": f"Bearer {password}"}
    return client.get("/metrics", headers=given).status_code


def test_nobody_alone_can_lock_the_operators_out(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site:
        for n in range(2):
            with site.client(headers=seen_from(f"198.51.100.{n}")) as client:
                assert [guess(client) for _ in range(11)] == [401] * 10 + [429]
        with site.client(headers=seen_from("203.0.113.1")) as client:
            assert guess(client, SECRETS.operator_password) == 303
            assert bearer(client, SECRETS.operator_password) == 200


def test_addresses_of_one_network_are_one(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site:
        for n in range(11):
            with site.client(headers=seen_from(f"2001:db8:1:1::{n:x}")) as client:
                assert guess(client) == (401 if n < 10 else 429)
        for other in ("2001:db8:1:2::1", "::ffff:198.51.100.1", "::ffff:198.51.100.2"):
            with site.client(headers=seen_from(other)) as client:
                assert guess(client, SECRETS.operator_password) == 303
                assert [guess(client) for _ in range(11)] == [401] * 10 + [429]


def test_guessing_the_password_is_stopped_wherever_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limiter, "KEYS_MAX", 5)
    monkeypatch.setattr("leasehold.homes.web.sign_in.PASSWORD_TRIES", 20)
    with open_site(tmp_path, secure=True) as site:
        for n in range(10):
            with site.client(headers=seen_from(f"198.51.100.{n}")) as client:
                assert (guess(client), bearer(client)) == (401, 401)
                for home in range(10):  # many at homes do not make it forget
                    sign_in(client, home=f"H{home:06d}", code="x")
        with site.client(headers=seen_from("203.0.113.1")) as client:
            assert guess(client, SECRETS.operator_password) == 429
            assert bearer(client, SECRETS.operator_password) == 429


def test_who_is_behind_no_proxy_cannot_make_an_address_up(site: Site) -> None:
    for n in range(11):
        with site.client(headers=seen_from(f"198.51.100.{n}")) as client:
            assert sign_in(client, code="x").status_code == (401 if n < 10 else 429)


def test_behind_a_proxy_only_what_it_added_counts(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site:
        for n in range(11):
            made_up = {"X-Forwarded-For": f"198.51.100.{n}, 203.0.113.1"}
            with site.client(headers=made_up) as client:
                assert sign_in(client, code="x").status_code == (401 if n < 10 else 429)


def test_guessing_at_many_homes_is_stopped_per_address(site: Site) -> None:
    with site.client() as client:
        for n in range(30):
            assert sign_in(client, home=f"H1{n:05d}", code="x").status_code == 401
        assert sign_in(client, home="H199999", code="x").status_code == 429
        password = {"role": "operator", "password": SECRETS.operator_password}
        assert sign_in(client, **password).status_code == 429


def test_guessing_the_password_by_metrics_is_stopped_too(site: Site) -> None:
    with site.client() as client:
        assert bearer(client, SECRETS.operator_password) == 200
        assert [bearer(client) for _ in range(11)] == [401] * 10 + [429]
        assert bearer(client, SECRETS.operator_password) == 429
        assert guess(client, SECRETS.operator_password) == 429


def test_the_limit_forgets_after_its_time_and_does_not_grow_without_bound() -> None:
    now = [0.0]
    limiter = Limiter(2, 10.0, clock=lambda: now[0])
    limiter.KEYS_MAX = 100
    limiter.add("a")
    now[0] = 4.0
    assert limiter.wait_s("a") == 0
    limiter.add("a")
    assert limiter.wait_s("a") == 6.0
    now[0] = 10.0
    assert limiter.wait_s("a") == 0
    for n in range(1000):
        limiter.add(str(n))
    assert len(limiter._times) <= 100


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "http://evil.example",
        "https://127.0.0.1:1",
        "http://127.0.0.1",
        "//",
        "http://[",
        "file://",
    ],
)
def test_what_changes_something_must_come_from_our_own_page(site: Site, origin: str | None) -> None:
    with site.client(site.operator_token()) as client:
        if origin is None:
            del client.headers["origin"]
        else:
            client.headers["origin"] = origin
        for path in (*POSTS, "/sign-in", "/sign-out"):
            answer = client.post(path, json={"name": "pipeline-1"})
            assert answer.status_code == 403, path
        client.headers.pop("origin", None)
        assert client.get("/api/operations").status_code == 200
    assert site.fleet.asked == []


@pytest.mark.parametrize(
    "host", ["evil.example", "", "127.0.0.1.evil.example", "localhost@evil.example", "["]
)
def test_another_sites_name_is_not_answered_to(site: Site, host: str) -> None:
    with site.client(site.token()) as client:
        assert client.get("/api/home", headers={"Host": host}).status_code in (400, 421)
        assert client.get("/api/home", headers={"Host": "localhost"}).status_code == 200


def test_every_answer_has_the_headers(site: Site) -> None:
    with site.client(site.token()) as client:
        for method, path in (
            ("GET", "/sign-in"),
            ("GET", "/home"),
            ("GET", "/api/home"),
            ("GET", "/api/operations"),
            ("GET", "/static/home.js"),
            ("GET", "/nothing"),
            ("POST", "/api/home"),
            ("GET", "/healthz"),
            ("PUT", "/sign-in"),
        ):
            headers = client.request(method, path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy, path
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            assert "no-store" in headers["cache-control"] or path.startswith("/static")
            assert "server" not in headers
            assert "access-control-allow-origin" not in headers


def test_pages_have_nothing_that_the_policy_would_refuse() -> None:
    folder = Path(__file__).parents[2] / "src/leasehold/homes/web"
    pages = list(folder.glob("pages/*.html"))
    assert len(pages) >= 4
    for page in pages:
        text = page.read_text()
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text), page
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), page
    for file in [*pages, *folder.glob("static/*")]:
        outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", file.read_text())
        assert set(outside) <= {"http://www.w3.org"}, file
        assert not re.search(r"innerHTML\s*\+?=[^=]|outerHTML|document\.write", file.read_text())


BODIES = [
    b"",
    b"null",
    b"[]",
    b'{"name": 1}',
    b'{"name": ""}',
    b'{"name": null}',
    b'{"name": "' + b"x" * 300 + b'"}',
    b"\xff\xfe",
    b"[" * 2000,
    b'{"name": "\\ud800"}',
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:20]))
def test_a_hostile_body_is_refused_and_nothing_happens(site: Site, body: bytes) -> None:
    with site.client(site.operator_token()) as client:
        headers = {"Content-Type": "application/json"}
        for path in POSTS[1:3]:
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code in (400, 404), body
            assert set(answer.json()) == {"error"}
    assert site.fleet.asked == []


@pytest.mark.parametrize(
    "name", ["pipeline-9", "../pipeline-1", "pipeline-1\n", "PIPELINE-1", "*", "; rm -rf /"]
)
def test_only_instances_that_there_are_can_be_ended(site: Site, name: str) -> None:
    with site.client(site.operator_token()) as client:
        assert client.post(POSTS[1], json={"name": name}).status_code == 404
        assert client.post(POSTS[1], json={"name": "pipeline-1"}).status_code == 202
        assert client.post(POSTS[2], data={"name": "pipeline-1"}).status_code == 415
    assert site.fleet.asked == [("stop", "pipeline-1")]


def test_bodies_have_a_limit_with_and_without_a_length(site: Site) -> None:
    with site.client(site.operator_token()) as client:
        assert client.post("/sign-in", content=b"x" * 5000).status_code == 413
        chunks = (b"x" * 1000 for _ in range(100))
        assert (
            client.post(
                POSTS[1], content=chunks, headers={"Content-Type": "application/json"}
            ).status_code
            == 413
        )
    for length in (b"-1", b"x", b"9" * 30, "١".encode()):
        host = site.url.removeprefix("http://")
        with socket.create_connection(host.split(":"), timeout=30) as raw:
            start = f"POST /sign-in HTTP/1.1\r\nHost: {host}\r\nOrigin: {site.url}\r\n".encode()
            raw.sendall(start + b"Content-Length: " + length + b"\r\n\r\n")
            assert raw.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 413")


def test_what_cannot_be_done_is_said_and_does_not_break_anything(site: Site) -> None:
    with site.client(site.operator_token()) as client:
        names = [client.post(POSTS[0]).json().get("name") for _ in range(2)]
        assert names == ["pipeline-2", "pipeline-3"]
        answer = client.post(POSTS[0])
        assert (answer.status_code, answer.json()["error"][:14]) == (409, "there are 3 in")
        assert client.post(POSTS[3]).status_code == 202
        assert client.get("/api/operations").json()["co_detectors"] == {
            "available": True,
            "added": True,
        }


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/secrets.py",
        "/static//etc/passwd",
        "/static/",
    ],
)
def test_nothing_but_the_static_files_is_served(site: Site, path: str) -> None:
    with site.client() as client:
        answer = client.get(path)
        assert answer.status_code == 404
        assert "import" not in answer.text


def test_an_error_tells_nothing_about_our_insides(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(home_id: str) -> Any:
        raise RuntimeError("a secret path: /srv/data")

    monkeypatch.setattr(site.reads, "home_state", broken)
    with site.client(site.token()) as client:
        answer = client.get("/api/home")
        assert answer.status_code == 500
        assert "/srv" not in answer.text
        assert "Traceback" not in answer.text


def test_secrets_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "web-secrets.json"
    made = Secrets.load(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Secrets.load(path, {}) == made
    assert len(made.secret) >= 32
    assert made.secret not in repr(made)
    assert made.operator_password not in repr(made)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    os.chmod(path, 0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        Secrets.load(path, {})


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    given_both = {"LEASEHOLD_SECRET": "e" * 32, "LEASEHOLD_OPERATOR_PASSWORD": "from outside"}
    both = Secrets.load(path, given_both)
    assert (both.secret, both.operator_password) == ("e" * 32, "from outside")
    assert not path.exists()
    one = Secrets.load(path, {"LEASEHOLD_SECRET": "e" * 32})
    assert one.secret == "e" * 32
    assert one.operator_password == Secrets.load(path, {}).operator_password


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"secret": 1, "operator_password": 2}', b"\xff"]
)
def test_damaged_secrets_are_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BadInput, match="damaged"):
        Secrets.load(path, {})


def test_short_secrets_are_refused() -> None:
    with pytest.raises(BadInput, match="LEASEHOLD_SECRET"):
        Secrets(secret="short", operator_password="long enough for us")
    with pytest.raises(BadInput, match="LEASEHOLD_OPERATOR_PASSWORD"):
        Secrets(secret="s" * 32, operator_password="short")


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_the_description_holds_under_fire(site: Site, mode: schemathesis.GenerationMode) -> None:
    """What fits the description and what does not, as nobody, as a resident, as an operator: every
    answer is one that is described, and nobody is let through."""
    schema = schemathesis.openapi.from_url(f"{site.url}/openapi.json")
    tokens = {"nobody": None, "resident": site.token(), "operator": site.operator_token()}
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/live"):  # their answers do not end
            continue
        try:
            cases = operation.as_strategy(generation_mode=mode)
            fire(site, cases, tokens)
        except Unsatisfiable:  # nothing to say wrong where nothing can be said
            continue
        tried += 1
    assert tried >= (2 if mode == schemathesis.GenerationMode.NEGATIVE else 9)


def fire(site: Site, cases: Any, tokens: dict[str, str | None]) -> None:
    @settings(max_examples=25, database=None, suppress_health_check=list(HealthCheck))
    @given(cases, st.sampled_from(sorted(tokens)))
    def shoot(case: Any, who: str) -> None:
        token = tokens[who]
        cookies = {} if token is None else {"leasehold_session": token}
        case.headers = {**(case.headers or {}), "Origin": site.url}
        case.cookies = cookies
        answer = case.call()
        case.validate_response(answer, checks=CHECKS)
        role = (case.operation.definition.raw.get("tags") or [who])[0]
        if role != who:
            assert answer.status_code in (401, 403, 413)

    shoot()
