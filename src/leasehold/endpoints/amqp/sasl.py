"""SASL: the layer before AMQP. Tokens come later, by ``$cbs``; a name and a key may come here."""

from __future__ import annotations

import hmac

from leasehold.endpoints.amqp.codec import AmqpArray, Symbol, UByte
from leasehold.endpoints.amqp.frames import SaslInit, SaslMechanisms, SaslOutcome
from leasehold.endpoints.amqp.secret import AccessKey

OK, WRONG = UByte(0), UByte(1)
BY_TOKEN = ("MSSBCBS", "ANONYMOUS")
PLAIN = "PLAIN"


def mechanisms() -> SaslMechanisms:
    return SaslMechanisms(AmqpArray([Symbol(name) for name in (*BY_TOKEN, PLAIN)]))


def answer(init: SaslInit, access: AccessKey) -> tuple[SaslOutcome, bool]:
    """The outcome, and whether the peer needs no token any more."""
    if init.mechanism in BY_TOKEN:
        return SaslOutcome(OK), False
    if init.mechanism == PLAIN:
        _, _, rest = (init.initial_response or b"").partition(b"\0")
        name, _, key = rest.partition(b"\0")
        right = hmac.compare_digest(key, access.key.encode())
        if right and hmac.compare_digest(name, access.policy.encode()):
            return SaslOutcome(OK), True
    return SaslOutcome(WRONG), False
