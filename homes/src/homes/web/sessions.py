"""Who somebody is: access codes, signed cookies that expire, and a limit on trying.

Little is stored: a home's access code is computed from its id with the server's secret, and so is
a cookie's signature. Kept are sessions that were signed out, until they would expire, and which
codes were revoked.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import threading
import time
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from homes.domain.reading import HOME_ID
from homes.web.codes import Codes
from homes.web.kept_until import KeptUntil
from homes.web.secrets import Secrets
from leasehold import BadInput, strict_json

SESSION_S = 12 * 3600
TOKEN_CHARS_MAX = 512
CODE_CHARS = 12

Role = Literal["resident", "operator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    role: Role
    home_id: str | None
    expires_at: int
    nonce: str
    code: int = 0
    """The number of the access code that it began with."""

    @property
    def name(self) -> str:
        """For the audit log: who, and in which session."""
        return f"{self.home_id or self.role} {sha256(self.nonce.encode()).hexdigest()[:8]}"


class Sessions:
    def __init__(
        self,
        secrets: Secrets,
        *,
        session_s: int = SESSION_S,
        signed_out: Path | None = None,
        codes: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``signed_out``: where sign-outs are kept; ``codes``: where revoked access codes are;
        None: in memory only."""
        self._secrets, self._session_s, self._clock = secrets, session_s, clock
        self._signed_out = KeptUntil(signed_out, clock, what="sign-outs")
        self.codes = Codes(codes, clock)

    @property
    def session_s(self) -> int:
        return self._session_s

    @property
    def metrics_token(self) -> str:
        """What a scraper gives instead of the password. Nobody guesses it, so that no limit on
        guesses needs to stand in its way."""
        digest = self._digest("metrics token", self._secrets.operator_password)
        return b32encode(digest).decode().rstrip("=").lower()

    def is_metrics_token(self, given: str) -> bool:
        return _same(given, self.metrics_token)

    def access_code(self, home_id: str) -> str:
        """What the resident of a home signs in with."""
        state = self.codes.state(home_id)
        if state.revoked:
            raise BadInput(f"the code of {home_id} is revoked; make one with: homes codes new")
        return self._access_code(home_id, state.number)

    def _access_code(self, home_id: str, number: int) -> str:
        which = [str(number)] if number else []
        text = b32encode(self._digest("access code", home_id, *which)).decode()[:CODE_CHARS]
        return "-".join(text[n : n + 4] for n in range(0, CODE_CHARS, 4))

    def resident(self, home_id: str, code: str) -> Session | None:
        """None: not the code of that home, or no home's id."""
        state = self.codes.state(home_id)  # once: it may change meanwhile
        wanted = self._access_code(home_id, state.number)
        typed = re.sub(r"[\s-]", "", code).upper()
        same = _same(typed, wanted.replace("-", ""))
        if not same or state.revoked or not HOME_ID.fullmatch(home_id):
            return None
        return self._begin("resident", home_id, state.number)

    def operator(self, password: str) -> Session | None:
        same = _same(password, self._secrets.operator_password)
        return self._begin("operator", None) if same else None

    def sign(self, session: Session) -> str:
        """The cookie's value."""
        fields = [session.role, session.home_id, session.expires_at, session.nonce, session.code]
        payload = _text(json.dumps(fields, separators=(",", ":")).encode())
        return f"{payload}.{_text(self._signature(session.role, payload))}"

    def verify(self, token: str) -> Session | None:
        """None: forged, damaged, expired or signed out."""
        if len(token) > TOKEN_CHARS_MAX or not token.isascii():
            return None
        payload, _, signature = token.partition(".")
        try:
            given = urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
            # Which key it was signed with depends on the role, so both are tried before it is read.
            role: Role
            for role in ("resident", "operator"):
                if hmac.compare_digest(given, self._signature(role, payload)):
                    break
            else:
                return None
            fields = strict_json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except ValueError:
            return None
        session = Session(
            role=fields[0],
            home_id=fields[1],
            expires_at=fields[2],
            nonce=fields[3],
            code=fields[4] if len(fields) > 4 else 0,  # as they were before codes had numbers
        )
        return session if session.role == role and self.valid(session) else None

    def valid(self, session: Session) -> bool:
        """Still: neither expired nor signed out, and its code not revoked."""
        if self._clock() >= session.expires_at or session.nonce in self._signed_out:
            return False
        return session.home_id is None or session.code == self.codes.state(session.home_id).number

    def end(self, session: Session) -> None:
        self._signed_out.add(session.nonce, session.expires_at)

    def _begin(self, role: Role, home_id: str | None, code: int = 0) -> Session:
        return Session(
            role=role,
            home_id=home_id,
            expires_at=int(self._clock()) + self._session_s,
            nonce=secrets.token_urlsafe(12),
            code=code,
        )

    def _signature(self, role: Role, payload: str) -> bytes:
        # A new password ends the sessions that the old one began.
        more = self._secrets.operator_password if role == "operator" else ""
        return self._digest(f"session of a {role}", payload, more)

    def _digest(self, purpose: str, *values: str) -> bytes:
        message = json.dumps([purpose, *values]).encode()
        return hmac.new(self._secrets.secret.encode(), message, sha256).digest()


class Limiter:
    """So many per key within some time; then no more until the first is that old."""

    KEYS_MAX = 50_000

    def __init__(
        self,
        most: int,
        within_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._within_s, self._clock = most, within_s, clock
        self._times: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, key: str) -> float:
        """How long until the next try is allowed; 0: now."""
        with self._lock:
            recent = self._recent(key)
            if len(recent) < self._most:
                return 0.0
            return max(0.0, recent[-self._most] + self._within_s - self._clock())

    def add(self, key: str) -> None:
        with self._lock:
            recent = [*self._recent(key), self._clock()][-self._most :]
            self._times.pop(key, None)
            self._times[key] = recent  # behind all that came before
            while len(self._times) > self.KEYS_MAX:
                del self._times[next(iter(self._times))]

    def _recent(self, key: str) -> list[float]:
        since = self._clock() - self._within_s
        return [at for at in self._times.get(key, ()) if at > since]


def _same(given: str, wanted: str) -> bool:
    """In a time that tells nothing about how much of it is right."""
    return hmac.compare_digest(_hash(given), _hash(wanted))


def _hash(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
