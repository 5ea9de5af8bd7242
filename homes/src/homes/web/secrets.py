"""The server's secret and the operators' password: from the environment, else made on first run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from homes.web.private_files import private_file
from leasehold import BadInput, strict_json

SECRET, PASSWORD = "LEASEHOLD_SECRET", "LEASEHOLD_OPERATOR_PASSWORD"
SECRET_CHARS_MIN = 32
PASSWORD_CHARS_MIN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    secret: str = field(repr=False)
    operator_password: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, value, least in (
            (SECRET, self.secret, SECRET_CHARS_MIN),
            (PASSWORD, self.operator_password, PASSWORD_CHARS_MIN),
        ):
            if len(value) < least:
                raise BadInput(f"{name} has {len(value)} characters; give at least {least}")

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str] = os.environ) -> Secrets:
        """Whatever the environment does not say is kept in a file that only its owner can read."""
        secret, password = environ.get(SECRET), environ.get(PASSWORD)
        if secret and password:
            return cls(secret=secret, operator_password=password)
        kept = _kept(path)
        return cls(
            secret=secret or kept["secret"],
            operator_password=password or kept["operator_password"],
        )


def _kept(path: Path) -> dict[str, str]:
    made = {"secret": secrets.token_urlsafe(48), "operator_password": secrets.token_urlsafe(15)}
    try:
        # Linked, not renamed: of two processes that start at once, the first one's are kept.
        with private_file(path, made) as file:
            os.link(file, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise BadInput(f"{path} cannot be made: {error}; or set {SECRET}, {PASSWORD}") from error
    return _read(path)


def _read(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_mode & 0o077:
            raise BadInput(f"{path} can be read by others; say: chmod 600 {path}")
        kept = strict_json.loads(path.read_bytes())
        if not all(isinstance(kept[name], str) for name in ("secret", "operator_password")):
            raise ValueError("its values are no text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is damaged ({error}); remove it, and new ones are made") from error
    return dict(kept)
