"""What the broker or the SDK says went wrong, as what the caller should do about it."""

from __future__ import annotations

import re

from leasehold.errors import BadInput, FeedUnavailable, LeaseholdError, LeaseLost
from leasehold.feeds.eventhubs.address import EventHubsSettings

_BUSY = re.compile(r"server-busy|status code: 503|error code\s*:\s*5000[28]\b", re.IGNORECASE)
"""50002: beyond the throughput units; 50008: too many questions about the hub."""
STOLEN = "link:stolen"
_NO_ACCESS = ("unauthorized-access", "CBS Token authentication failed")
_NOT_FOUND = ("not-found", "Status code: 404")


def condition_of(error: BaseException) -> str:
    """The AMQP condition of an error, if it has one; else its text."""
    condition = getattr(error, "condition", None) or getattr(error, "error", None)
    if condition is None:
        return str(error)
    text = condition.value if hasattr(condition, "value") else condition
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def is_busy(error: BaseException) -> bool:
    return bool(_BUSY.search(condition_of(error)) or _BUSY.search(str(error)))


def is_crowded(error: BaseException) -> bool:
    """Whether a partition has as many readers without owner level as there may be."""
    return "resource-limit-exceeded" in condition_of(error)


def translated(
    error: BaseException, settings: EventHubsSettings, what: str, *, owner_level: int | None = None
) -> LeaseholdError:
    if isinstance(error, LeaseholdError):
        return error
    where = f"{settings.host}/{settings.hub}, {what}"
    condition, text = condition_of(error), _line(error)
    if STOLEN in condition or STOLEN in text:
        if owner_level is not None:
            return LeaseLost(
                f"{where}: another reader of the consumer group has it, at owner level "
                f"{owner_level} or above"
            )
        return FeedUnavailable(
            f"{where}: a reader with an owner level keeps all others out of the consumer group; "
            "read through another one (consumer_group= in the URL)"
        )
    if any(sign in condition or sign in text for sign in _NOT_FOUND):
        return BadInput(f"{where}: there is no such hub, consumer group or partition: {text}")
    if any(sign in condition or sign in text for sign in _NO_ACCESS):
        return BadInput(
            f"{where}: not allowed with the given credentials ({settings.secret}, or who is signed "
            f"in for azure-identity): {text}"
        )
    if is_crowded(error):
        return FeedUnavailable(
            f"{where}: it has as many readers as there may be without an owner level; read through "
            f"another consumer group (consumer_group= in the URL): {text}"
        )
    if is_busy(error):
        return FeedUnavailable(f"{where}: throttled, as the namespace's units are used up: {text}")
    if isinstance(error, TimeoutError):
        text = f"no answer within timeout_s={settings.timeout_s:g}"
    return FeedUnavailable(f"{where}: {type(error).__name__}: {text}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
