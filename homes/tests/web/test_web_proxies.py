"""Behind a proxy that speaks TLS: who asks, and under which address."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_site import MINE, SECRETS, Site, open_site, seen_from, sign_in

import leasehold as lh
from homes.local.places import Places
from homes.web.guard import Guard
from homes.web.proxies import Proxies, PublicUrl
from homes.web.serve import open_web
from homes.web.sessions import Sessions
from leasehold.errors import BadInput


def test_behind_tls_the_cookie_is_bound_to_it(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site, site.client() as client:
        answer = sign_in(client, code=site.sessions.access_code(MINE))
        assert answer.headers["set-cookie"].startswith("__Host-leasehold_session=")
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "max-age" in answer.headers["strict-transport-security"]


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


WRITTEN = [
    "203.0.113.1",
    "203.0.113.1:4711",
    '"203.0.113.1:4711"',
    'for="203.0.113.1:4711"',
    "::ffff:203.0.113.1",
    "[::ffff:203.0.113.1]:4711",
]
WRITTEN_IPV6 = ["2001:db8:1:1::7", "[2001:db8:1:1::8]:4711", 'for="[2001:db8:1:1::9]:4711"']


@pytest.mark.parametrize("written", [WRITTEN, WRITTEN_IPV6], ids=["IPv4", "IPv6"])
def test_an_address_is_the_same_however_a_proxy_writes_it(written: list[str]) -> None:
    assert len({Proxies().client("127.0.0.1", [each]) for each in written}) == 1


def test_another_port_is_not_another_address(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site:
        for n in range(11):
            with site.client(headers=seen_from(f"203.0.113.1:{4000 + n}")) as client:
                assert sign_in(client, code="x").status_code == (401 if n < 10 else 429)


@given(st.text(max_size=40))
def test_whatever_stands_there_is_one_address_or_the_proxys_own(text: str) -> None:
    found = Proxies().client("127.0.0.1", [text])
    assert found == "127.0.0.1" or ip_network(found, strict=False)


@given(st.lists(st.ip_addresses().map(str), max_size=4), st.ip_addresses(v=4).map(str))
def test_what_the_client_made_up_changes_nothing(made_up: list[str], seen: str) -> None:
    assert Proxies().client("127.0.0.1", [*made_up, seen]) == seen


def test_only_trusted_proxies_are_believed() -> None:
    proxies = Proxies(["10.1.0.0/16", "2001:db8::1"])
    assert proxies.client("10.2.0.1", ["203.0.113.1"]) == "10.2.0.1"
    assert proxies.client("10.1.0.1", ["203.0.113.1"]) == "203.0.113.1"
    assert proxies.client("10.1.0.1", ["192.0.2.1, 203.0.113.1", "10.1.2.3"]) == "203.0.113.1"
    assert proxies.client("2001:db8::1", ["203.0.113.1"]) == "203.0.113.1"
    # Somebody on the proxy's own machine: what stands before is made up.
    assert proxies.client("127.0.0.1", ["203.0.113.1, 127.0.0.1"]) == "127.0.0.1"


@pytest.mark.parametrize("wrong", ["x", "10.0.0.0/99", "proxy.example"])
def test_a_proxy_that_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(BadInput, match="trusted proxy"):
        Proxies([wrong])


def test_behind_tls_pages_come_from_https_alone(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site, site.client() as client:
        right = {"code": site.sessions.access_code(MINE)}
        client.headers["origin"] = site.url
        assert sign_in(client, **right).status_code == 403
        client.headers["origin"] = site.origin
        assert sign_in(client, **right).status_code == 303


def test_without_tls_https_is_another_origin(site: Site) -> None:
    with site.client(headers={"Origin": site.url.replace("http:", "https:")}) as client:
        assert sign_in(client, code=site.sessions.access_code(MINE)).status_code == 403


def test_no_answer_leads_back_to_http(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site, site.client() as client:
        for path in ("/", "/home", "/home/", "/static", "/operations/", "/sign-in/"):
            assert "http:" not in client.get(path).headers.get("location", ""), path


def test_who_comes_without_tls_is_sent_to_https(tmp_path: Path) -> None:
    clear = {"X-Forwarded-Proto": "http"}
    with open_site(tmp_path, secure=True) as site, site.client() as client:
        answer = client.get("/sign-in?x=1", headers=clear)
        assert answer.status_code == 308
        assert answer.headers["location"] == f"{site.origin}/sign-in?x=1"
        assert client.get("/sign-in", headers={"X-Forwarded-Proto": "https"}).status_code == 200
    stranger = Guard(
        pytest.fail, hosts=None, secure=True, proxies=Proxies(), origin="https://homes.example"
    )
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b""}
    headers = [(b"host", b"x"), (b"x-forwarded-proto", b"http")]
    assert stranger._refusal(scope | {"headers": headers, "client": ("192.0.2.1", 1)}) is None
    sent_on = stranger._refusal(scope | {"headers": headers, "client": ("127.0.0.1", 1)})
    assert sent_on is not None
    assert sent_on.headers["location"] == "https://homes.example/"


def test_the_public_url_says_origin_host_and_tls(tmp_path: Path) -> None:
    places = Places(tmp_path)
    lh.Hub.create(places.hub, name="sensors", namespace="homes", partitions=1).close()
    with (
        open_web(places, SECRETS, public_url="https://homes.example:8443") as server,
        httpx.Client(base_url=server.url) as client,
    ):
        headers = {"Host": "homes.example:8443", "Origin": "https://homes.example:8443"}
        code = Sessions(SECRETS).access_code(MINE)
        for host in ("homes.example:8443", "127.0.0.1"):  # as the proxy passes it on, or not
            fields = {"role": "resident", "home": MINE, "code": code}
            answer = client.post("/sign-in", data=fields, headers=headers | {"Host": host})
            assert answer.status_code == 303
            assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "wrong", ["homes.example", "ftp://x", "https://", "https://x/path", "https://u@x", "https://["]
)
def test_a_public_url_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(BadInput, match="--public-url"):
        PublicUrl.parse(wrong)
