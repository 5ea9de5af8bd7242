"""Who may use the endpoint."""

from __future__ import annotations

import base64
import hashlib
import hmac
import stat
import time
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import BadInput
from leasehold.endpoints.amqp.secret import AccessKey, access_key, connection_file, keep_connection
from leasehold.endpoints.amqp.tokens import TokenRefused, check, covers, path_of

ACCESS = AccessKey(key="secret", policy="reader")
NOW = 1_000_000.0


def token(
    resource: str = "sb://localhost:5672/sensors",
    expiry: object = 2_000_000,
    policy: str = "reader",
    key: str = "secret",
) -> str:
    sr = quote_plus(resource)
    signed = hmac.new(key.encode(), f"{sr}\n{expiry}".encode(), hashlib.sha256).digest()
    sig = quote_plus(base64.b64encode(signed))
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={expiry}&skn={policy}"


def test_a_token_that_is_signed_with_the_key_is_good_for_its_hub_until_it_expires() -> None:
    granted = check(token(), ACCESS, NOW)
    assert granted == ("sensors", 2_000_000.0)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (token(key="other"), "InvalidSignature"),
        (token(policy="other"), "InvalidSignature"),
        (token(expiry=999_999), "ExpiredToken"),
        (token(expiry="soon"), "MalformedToken"),
        (token().replace("se=2000000", "se=3000000"), "InvalidSignature"),
        (token().replace("sensors", "others"), "InvalidSignature"),
        (token() + "&skn=reader", "MalformedToken"),
        (token().partition("&skn")[0], "MalformedToken"),
        ("", "MalformedToken"),
    ],
)
def test_a_token_is_refused_if_signature_policy_or_time_is_wrong(wrong: str, why: str) -> None:
    with pytest.raises(TokenRefused, match=why):
        check(wrong, ACCESS, NOW)


@given(st.text(max_size=100))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        check(text, ACCESS, NOW)


@pytest.mark.parametrize(
    ("granted", "wanted", "good"),
    [
        ("", "sensors", True),
        ("sensors", "sensors", True),
        ("Sensors", "sensors/Partitions/0", True),
        ("sensors/Partitions/0", "sensors", False),
        ("sensors", "sensors2", False),
        ("others", "sensors", False),
    ],
)
def test_a_token_covers_what_lies_in_its_resource(granted: str, wanted: str, good: bool) -> None:
    assert covers(granted, wanted) is good


def test_addresses_are_known_by_their_path() -> None:
    assert path_of("amqps://localhost:5671/sensors/Partitions/0") == "sensors/Partitions/0"
    assert path_of("/sensors/") == "sensors"
    assert path_of("sb://localhost") == ""


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    hub = tmp_path / "sensors.db"
    first = access_key(hub)
    file = keep_connection(hub, first.connection_string("sensors", "localhost", 5672, tls=False))
    assert file == connection_file(hub)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert access_key(hub) == first
    assert access_key(tmp_path / "other.db") != first
    assert first.key not in repr(first)
    assert len(base64.b64decode(first.key)) == 32


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    hub = tmp_path / "sensors.db"
    file = keep_connection(hub, access_key(hub).connection_string("s", "localhost", 1, tls=True))
    file.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        access_key(hub)
    file.write_text("nothing")
    with pytest.raises(BadInput, match="remove it"):
        access_key(hub)


def test_the_connection_string_names_the_port_only_where_clients_heed_it() -> None:
    plain = ACCESS.connection_string("sensors", "localhost", 5673, tls=False)
    assert plain.startswith("Endpoint=sb://localhost:5673;")
    assert plain.endswith("EntityPath=sensors;UseDevelopmentEmulator=true")
    assert "UseDevelopmentEmulator" not in ACCESS.connection_string("s", "localhost", 1, tls=True)


def test_the_time_of_a_token_is_the_wall_clocks() -> None:
    assert check(token(expiry=int(time.time()) + 60), ACCESS, time.time())
