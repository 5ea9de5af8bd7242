"""Every error Leasehold raises. The class says what the caller should do."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from leasehold.core.model import Checkpoint


class LeaseholdError(Exception):
    """The root of all errors raised by this package."""


class BadInput(LeaseholdError):
    """Fix the input: a setting, a URL, an event, a file. Trying again cannot help."""


class MissingExtra(BadInput):
    """An optional package is not installed; the message says which extra brings it."""


class NewerVersion(BadInput):
    """The store or file was written by a newer Leasehold; upgrade this one."""


class StoreUnavailable(LeaseholdError):
    """A store did not answer, or not in time. It may have carried the request out. Try again."""


class FeedUnavailable(LeaseholdError):
    """A feed did not answer, or not in time. Try again."""


class SinkUnavailable(LeaseholdError):
    """Where a handler writes to does not take it now. No event is to blame: the same is tried again
    until it works, and counts as no attempt. A handler may raise it itself."""


class LeaseLost(LeaseholdError):
    """Another instance has the partition now. Stop working on it; write nothing more."""


class HandlerHung(LeaseholdError):
    """A handler exceeded its time limit. Make it faster, or raise ``handler_timeout_s``."""


class InstanceReplaced(LeaseholdError):
    """A newer instance runs under this name. Stop, or start again under a name of your own."""


class PositionGone(LeaseholdError):
    """The feed holds nothing at this position. Go on at ``earliest`` or ``latest``, or stop.

    ``reason`` is ``"retention"`` (the events were removed), ``"beyond end"`` or ``"other feed"``
    (the feed was made anew since the position was written).
    """

    def __init__(
        self,
        message: str,
        *,
        partition: str,
        position: Checkpoint,
        reason: Literal["retention", "beyond end", "other feed"],
        earliest: Checkpoint,
        latest: Checkpoint,
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.position = position
        self.reason = reason
        self.earliest = earliest
        self.latest = latest

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **vars(self)), self.args


class DocumentConflict(LeaseholdError):
    """A document is not as the writer expected; nothing was written. Read it, then decide again.

    ``reason`` is ``"exists"``, ``"missing"`` or ``"changed"`` (its etag is another one now).
    """

    def __init__(
        self, message: str, *, id: str, reason: Literal["exists", "missing", "changed"]
    ) -> None:
        super().__init__(message)
        self.id = id
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **vars(self)), self.args
