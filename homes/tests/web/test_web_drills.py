"""Residents of the demo raise an alarm in their own home, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from web_site import MINE, Site, open_site

from homes.web.drills import Drills


class Sent(list[tuple[str, str, float]]):
    def __call__(self, home: str, kind: str, value: float) -> None:
        self.append((home, kind, value))


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def site(tmp_path: Path, sent: Sent) -> Iterator[Site]:
    ticks = iter(range(1000))
    with open_site(tmp_path, drills=Drills(sent, lambda: float(next(ticks)))) as opened:
        yield opened


def resident(site: Site) -> httpx.Client:
    return httpx.Client(
        base_url=site.url,
        cookies={"leasehold_session": site.token(MINE)},
        headers={"Origin": site.url},
    )


def test_a_drill_sends_a_reading_of_ones_own_home(site: Site, sent: Sent) -> None:
    with resident(site) as client:
        assert client.get("/api/home").json()["drills"] == ["glass", "co"]
        answer = client.post("/api/home/drill", json={"kind": "glass"})
        assert (answer.status_code, answer.json()) == (202, {"kind": "glass"})
        client.post("/api/home/drill", json={"kind": "co", "home": "H000001"})
    assert sent == [(MINE, "glass", 1.0), (MINE, "co", 120.0)]


@pytest.mark.parametrize(
    ("body", "status"),
    [({"kind": "door"}, 404), ({"kind": ""}, 400), ({}, 400), ({"kind": 7}, 400), ([], 400)],
)
def test_a_drill_that_does_not_exist_is_refused(
    site: Site, sent: Sent, body: object, status: int
) -> None:
    with resident(site) as client:
        assert client.post("/api/home/drill", json=body).status_code == status
    assert sent == []


def test_drills_need_a_session_and_the_page_s_own_origin(site: Site, sent: Sent) -> None:
    with httpx.Client(base_url=site.url, headers={"Origin": site.url}) as nobody:
        assert nobody.post("/api/home/drill", json={"kind": "glass"}).status_code == 401
    with resident(site) as client:
        client.headers["Origin"] = "http://evil.example"
        assert client.post("/api/home/drill", json={"kind": "glass"}).status_code == 403
    assert sent == []


def test_drills_come_one_at_a_time(tmp_path: Path, sent: Sent) -> None:
    with open_site(tmp_path, drills=Drills(sent, lambda: 5.0)) as site, resident(site) as client:
        codes = [client.post("/api/home/drill", json={"kind": "co"}).status_code for _ in range(2)]
    assert codes == [202, 409]


def test_real_homes_have_no_drills(tmp_path: Path) -> None:
    with open_site(tmp_path) as site, resident(site) as client:
        assert client.get("/api/home").json()["drills"] == []
        assert client.post("/api/home/drill", json={"kind": "glass"}).status_code == 404
