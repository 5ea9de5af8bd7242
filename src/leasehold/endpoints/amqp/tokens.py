"""Shared access signatures: who may use the endpoint, and until when."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from leasehold.endpoints.amqp.secret import AccessKey

PREFIX = "SharedAccessSignature "
TOKEN_TYPE = "servicebus.windows.net:sastoken"


class Granted(NamedTuple):
    path: str
    """What the token is for: the hub, something in it, or "" for all."""
    expires_at: float


class TokenRefused(Exception):
    """The text says why."""


def check(token: str, access: AccessKey, now: float) -> Granted:
    fields = parse_qs(token.removeprefix(PREFIX), keep_blank_values=True, max_num_fields=16)
    try:
        (resource,), (expiry,), (signature,) = fields["sr"], fields["se"], fields["sig"]
        (policy,) = fields["skn"]
        expires_at = float(int(expiry))
    except (KeyError, ValueError, OverflowError):
        raise TokenRefused("MalformedToken: sr, se, sig and skn are needed once each") from None
    signed = _signed_part(token)
    expected = hmac.new(access.key.encode(), signed.encode(), hashlib.sha256).digest()
    right = hmac.compare_digest(base64.b64encode(expected), signature.encode())
    if not right or not hmac.compare_digest(policy.encode(), access.policy.encode()):
        raise TokenRefused("InvalidSignature: The token has an invalid signature.")
    if expires_at <= now:
        raise TokenRefused("ExpiredToken: The token is expired.")
    return Granted(path_of(resource), expires_at)


def _signed_part(token: str) -> str:
    """The resource as it is written in the token, and the time; clients escape differently."""
    raw = dict(part.partition("=")[::2] for part in token.removeprefix(PREFIX).split("&"))
    return f"{raw.get('sr', '')}\n{raw.get('se', '')}"


def covers(granted: str, wanted: str) -> bool:
    """Whether a token for one path is good for the other, which may lie in it."""
    granted, wanted = granted.lower(), wanted.lower()
    return not granted or wanted == granted or wanted.startswith(f"{granted}/")


def path_of(address: str) -> str:
    """An address without the scheme and host that some clients put in front."""
    if "://" in address:
        address = address.partition("://")[2].partition("/")[2]
    return unquote(address.partition("?")[0]).strip("/")
