"""The master key, and whether a request is signed with it."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.errors import BadInput

KEY_BYTES = 64
DATE_S = 15 * 60.0
"""How far a request's date may be off."""


def keep_key(file: str | Path) -> str:
    """The key in a file that nobody else can read; a new one if there is no such file."""
    path = Path(file)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _existing(path)
    except OSError as error:
        raise BadInput(f"the key file {path} cannot be written: {error.strerror}") from error
    key = b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    with os.fdopen(descriptor, "w") as written:
        written.write(f"{key}\n")
    return key


def _existing(path: Path) -> str:
    try:
        status, key = path.stat(), path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the key file {path} cannot be read: {error}") from error
    if status.st_mode & 0o077:
        raise BadInput(f"others may read the key file {path}: chmod 600 {path}, or remove it")
    try:
        if len(b64decode(key, validate=True)) >= 16:
            return key
    except ValueError:
        pass
    raise BadInput(f"{path} holds no key in base64; remove it, and a new one is made")


class Signatures:
    def __init__(self, key: str) -> None:
        self._key = b64decode(key)

    def require(self, method: str, parts: Sequence[str], headers: Mapping[str, str]) -> None:
        """``parts``: the path, unquoted. Raises a ``Refusal`` that does not tell what was wrong
        with the signature."""
        given = headers.get("authorization", "")
        if "=" not in given:
            given = unquote(given)
        fields = dict(parse_qsl(unquote(given).replace("+", "%2B"), keep_blank_values=True))
        if fields.get("type") != "master" or fields.get("ver") != "1.0":
            raise Refusal(401, "The authorization is missing, or is none of a master key.")
        date = headers.get("x-ms-date") or headers.get("date", "")
        self._require_fresh(date)
        wanted = [self._signed(method, *each, headers) for each in _signable(parts)]
        given_signature = fields.get("sig", "").encode("ascii", "replace")
        # All are compared, so that the time taken does not tell which one fits.
        if not sum(hmac.compare_digest(given_signature, each) for each in wanted):
            raise Refusal(
                401,
                "The signature does not fit: check the key, and what was signed. The server used "
                f"the verb {method.lower()}, the path {'/'.join(parts)!r:.300} and the date "
                f"{date!r:.60}.",
            )

    def _signed(self, method: str, kind: str, link: str, headers: Mapping[str, str]) -> bytes:
        x_date = headers.get("x-ms-date", "").lower()
        date = "" if x_date else headers.get("date", "").lower()
        text = f"{method.lower()}\n{kind}\n{link}\n{x_date}\n{date}\n"
        return b64encode(hmac.new(self._key, text.encode(), sha256).digest())

    def _require_fresh(self, date: str) -> None:
        try:
            age_s = time.time() - parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            raise Refusal(401, "The header x-ms-date is missing, or is no date.") from None
        if abs(age_s) > DATE_S:
            raise Refusal(
                403, f"The request's date is {age_s:.0f} s old; {DATE_S:.0f} s are allowed."
            )


def _signable(parts: Sequence[str]) -> list[tuple[str, str]]:
    """Type and link that clients sign: by names as they are, by resource ids in lower case."""
    even = len(parts) // 2 * 2
    if not parts:
        return [("", "")]
    kind = parts[-1] if len(parts) % 2 else parts[-2]
    link = parts[:even]
    found = [(kind.lower(), "/".join(link))]
    if link:
        found.append((kind.lower(), link[-1].lower()))
    if "operations" in parts[4:]:
        found += [(each, "/".join(parts[:4])) for each in ("partitionkey", "colls")]
    return found
