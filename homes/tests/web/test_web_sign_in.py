"""Signing in, and what happens to those who guess."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from web_site import (
    MINE,
    OTHER,
    SECRETS,
    Site,
    bearer,
    guess,
    open_site,
    seen_from,
    sign_in,
)

from homes.web.kept_until import KeptUntil
from homes.web.secrets import Secrets
from homes.web.sessions import Limiter, Sessions
from homes.web.sign_in import PASSWORD_TRIES, TRIES


def test_signing_in_gives_a_cookie_that_scripts_and_other_sites_cannot_use(site: Site) -> None:
    with site.client() as client:
        answer = sign_in(client, code=site.sessions.access_code(MINE).lower().replace("-", " "))
        assert (answer.status_code, answer.headers["location"]) == (303, "/home")
        cookie = answer.headers["set-cookie"].lower()
        for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"):
            assert word in cookie
        assert "domain" not in cookie
        assert client.get("/api/home").json()["home"] == MINE


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


def test_nobody_can_lock_a_resident_out_from_elsewhere(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site:
        for n in range(40):
            with site.client(headers=seen_from(f"198.51.100.{n}")) as client:
                assert [sign_in(client, code="x").status_code for _ in range(11)][-2:] == [401, 429]
        with site.client(headers=seen_from("203.0.113.1")) as client:
            assert sign_in(client, code=site.sessions.access_code(MINE)).status_code == 303


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
    monkeypatch.setattr("homes.web.sign_in.PASSWORD_TRIES", 20)
    with open_site(tmp_path, secure=True) as site:
        for n in range(10):
            with site.client(headers=seen_from(f"198.51.100.{n}")) as client:
                assert (guess(client), bearer(client)) == (401, 401)
                for home in range(10):  # many at homes do not make it forget
                    sign_in(client, home=f"H{home:06d}", code="x")
        with site.client(headers=seen_from("203.0.113.1")) as client:
            assert guess(client, SECRETS.operator_password) == 429
            assert bearer(client, SECRETS.operator_password) == 429


def test_guessing_at_many_homes_is_stopped_per_address(site: Site) -> None:
    with site.client() as client:
        for n in range(30):
            assert sign_in(client, home=f"H1{n:05d}", code="x").status_code == 401
        assert sign_in(client, home="H199999", code="x").status_code == 429
        password = {"role": "operator", "password": SECRETS.operator_password}
        assert sign_in(client, **password).status_code == 429


def test_guessing_the_password_by_metrics_is_stopped_too(site: Site) -> None:
    with site.client() as client:
        assert [bearer(client) for _ in range(11)] == [401] * 10 + [429]
        assert bearer(client, SECRETS.operator_password) == 429
        assert guess(client, SECRETS.operator_password) == 429


def attacked(site: Site) -> None:
    """Wrong passwords from so many networks that the limit for all of them is reached."""
    for n in range(PASSWORD_TRIES // TRIES):
        with site.client(headers=seen_from(f"198.51.100.{n}")) as client:
            for _ in range(TRIES):
                guess(client)
    with site.client(headers=seen_from("198.51.100.250")) as client:
        assert (guess(client), bearer(client)) == (429, 429)


def test_guesses_elsewhere_do_not_keep_operators_out_where_they_have_been(tmp_path: Path) -> None:
    right, kept = SECRETS.operator_password, tmp_path / "known.json"

    def site() -> AbstractContextManager[Site]:
        known = KeptUntil(kept, time.time, what="known addresses")
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return open_site(folder, secure=True, known=known)

    with site() as before, before.client(headers=seen_from("203.0.113.7")) as operator:
        assert guess(operator, right) == 303
    with site() as after:  # it remembers over a restart
        attacked(after)
        with after.client(headers=seen_from("203.0.113.7")) as operator:
            for _ in range(TRIES + 1):
                guess(operator)
            assert guess(operator) == 429
            assert (guess(operator, right), bearer(operator, right)) == (303, 200)
        with after.client(headers=seen_from("203.0.113.8")) as stranger:
            assert (guess(stranger, right), bearer(stranger, right)) == (429, 429)


def test_the_metrics_token_gets_through_whatever_others_guess(tmp_path: Path) -> None:
    with open_site(tmp_path, secure=True) as site:
        attacked(site)
        for n in (0, 251):  # where guesses came from, and where they did not
            with site.client(headers=seen_from(f"198.51.100.{n}")) as scraper:
                assert bearer(scraper, site.sessions.metrics_token) == 200
                assert guess(scraper, site.sessions.metrics_token) == 429  # it is no password


def test_a_new_password_means_a_new_metrics_token() -> None:
    after = Sessions(Secrets(secret=SECRETS.secret, operator_password="another one!"))
    assert not after.is_metrics_token(Sessions(SECRETS).metrics_token)


def test_known_addresses_are_bounded_and_forgotten_after_their_time(tmp_path: Path) -> None:
    now, path = [1000.0], tmp_path / "known.json"
    known = KeptUntil(path, lambda: now[0], what="known addresses", most=5)
    for n in range(20):
        known.add(f"192.0.2.{n}", 2000 + n)
    again = KeptUntil(path, lambda: now[0], what="known addresses", most=5)
    assert [f"192.0.2.{n}" in again for n in range(20)] == [False] * 15 + [True] * 5
    again.add("192.0.2.19", 3000)
    now[0] = 2500.0
    assert ("192.0.2.18" in again, "192.0.2.19" in again) == (False, True)


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
