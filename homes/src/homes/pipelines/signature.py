"""The signature on every webhook call: the receiver can tell that it is ours, and not an old one
sent again."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from leasehold import BadInput

HEADER = "Leasehold-Signature"
SECRET, SECRET_FILE = "LEASEHOLD_WEBHOOK_SECRET", "LEASEHOLD_WEBHOOK_SECRET_FILE"
SECRET_CHARS_MIN = 16
WINDOW_S = 300.0
FORM = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")


def signature(secret: str, body: bytes, at_s: int) -> str:
    """The header's value. The time is signed, too: an old call cannot be given a new one."""
    return f"t={at_s},v1={_digest(secret, body, at_s)}"


def is_signed(
    secret: str, value: str, body: bytes, *, now_s: float, window_s: float = WINDOW_S
) -> bool:
    """By who has the secret, and not longer ago than ``window_s``."""
    found = FORM.fullmatch(value)
    if found is None:
        return False
    at_s = int(found[1])
    right = hmac.compare_digest(found[2], _digest(secret, body, at_s))
    return right and abs(now_s - at_s) <= window_s


def webhook_secret(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """As given, else from the environment, else from a file that the environment names. It is never
    an argument of a command: those are for everybody on the machine to see."""
    secret = given or environ.get(SECRET)
    if not secret and (path := environ.get(SECRET_FILE)):
        try:
            secret = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{SECRET_FILE} is {path}, which cannot be read: {error}") from error
    if not secret:
        raise BadInput(
            f"webhook calls are signed: give secret=, or set {SECRET} or {SECRET_FILE}; "
            "the receiver needs the same"
        )
    if len(secret) < SECRET_CHARS_MIN:
        raise BadInput(
            f"the webhook's secret has {len(secret)} characters; give at least {SECRET_CHARS_MIN}"
        )
    return secret


def _digest(secret: str, body: bytes, at_s: int) -> str:
    return hmac.new(secret.encode(), b"%d." % at_s + body, sha256).hexdigest()
