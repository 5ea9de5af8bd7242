"""The secrets of the page, made, kept and given."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from homes.web.secrets import Secrets
from leasehold.errors import BadInput


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
