"""What holds for every request: origin, host, headers, bodies, errors."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from web_site import (
    POSTS,
    Site,
)


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
            ("GET", "/static/domain.js"),
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
    folder = Path(__file__).parents[2] / "src/homes/web"
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

    monkeypatch.setattr(site.activity, "home_state", broken)
    with site.client(site.token()) as client:
        answer = client.get("/api/home")
        assert answer.status_code == 500
        assert "/srv" not in answer.text
        assert "Traceback" not in answer.text


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


def test_who_goes_away_in_the_middle_of_a_request_leaves_no_trace_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    host = site.url.removeprefix("http://")
    name, port = host.split(":")
    head = f"POST /sign-in HTTP/1.1\r\nHost: {host}\r\nOrigin: {site.url}\r\nContent-Length: 99\r\n"
    for _ in range(20):
        with socket.create_connection((name, int(port)), 30) as wire:
            wire.sendall(f"{head}\r\nrole=".encode())
    with site.client() as client:  # behind them all
        assert client.get("/healthz").status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
