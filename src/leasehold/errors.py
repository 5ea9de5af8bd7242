"""Every error Leasehold raises. The class says what the caller should do."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from leasehold.core.model import Checkpoint

Gone = Literal["retention", "beyond end", "other feed", "rolled back"]


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


class ReadHung(FeedUnavailable):
    """A feed gave no answer to a read within ``read_timeout_s``. It is read again; after a few such
    reads in a row the lease is let go for others to try."""


class SinkUnavailable(LeaseholdError):
    """Where a handler writes to does not take it now. No event is to blame: the same is tried again
    until it works, and counts as no attempt. A handler may raise it itself."""


class StaleBatch(LeaseholdError):
    """A sink has written no part of a batch, because some of it is out of date: in the sink
    already, no longer ours, or not possible now. Do that part and the rest apart, as
    ``SparkProcessor`` does by itself: another sink may not have it yet. A handler that writes
    exactly once may raise it.

    ``begin_at`` says by partition where what is not written yet begins; None: another instance may
    have the partition; an error: it has to wait, and this is why. What it does not name may be
    written as it is.
    """

    def __init__(self, message: str, begin_at: Mapping[str, int | SinkUnavailable | None]) -> None:
        super().__init__(message)
        self.begin_at = {name: _begin_at(name, at) for name, at in begin_at.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.begin_at)


def _begin_at(partition: str, at: Any) -> int | SinkUnavailable | None:
    if at is None or isinstance(at, SinkUnavailable):
        return at
    try:
        return operator.index(at)  # of numpy, too
    except TypeError:
        raise BadInput(
            f"StaleBatch takes a sequence, None or a SinkUnavailable for partition {partition}, "
            f"not {at!r}"
        ) from None


class LetterRefused(LeaseholdError):
    """The dead letters do not take an event, however often it is put: it is too large for them, for
    instance. It is that event's matter, and of no other."""


class LeaseLost(LeaseholdError):
    """Another instance has the partition now. Stop working on it; write nothing more."""


class CheckpointMissing(LeaseholdError):
    """A partition ended and was split, and its children wait until its last event is checkpointed.
    Checkpoint it (``context.checkpoint``), or have checkpoints written for you (``every``)."""


class HandlerHung(LeaseholdError):
    """A handler exceeded its time limit. Make it faster, or raise ``handler_timeout_s``."""


class CallCancelled(LeaseholdError):
    """A handler's task was cancelled from outside, most likely since its event loop is ending. No
    event is to blame; what it had not finished is tried again, here or elsewhere."""


class DeadLettersHeld(LeaseholdError):
    """So many events in a row failed that it is hardly their fault. Mend the handler or what it
    needs; events wait meanwhile, and are tried again."""


class InstanceReplaced(LeaseholdError):
    """A newer instance runs under this name. Stop, or start again under a name of your own."""


class PositionGone(LeaseholdError):
    """The feed holds nothing at this position. Go on at ``resume``, ``earliest`` or ``latest``, or
    stop.

    ``reason`` is ``"retention"`` (the events were removed), ``"beyond end"``, ``"other feed"`` (the
    feed was recreated since the position was written, or an older copy of it restored) or
    ``"rolled back"`` (the feed has lost its newest events since).
    """

    def __init__(
        self,
        message: str,
        *,
        partition: str,
        position: Checkpoint,
        reason: Gone,
        earliest: Checkpoint,
        latest: Checkpoint,
        shared: Checkpoint | None = None,
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.position = position
        self.reason: Gone = reason
        self.earliest = earliest
        self.latest = latest
        self.shared = shared
        """Up to there, what was read on the way to the position is still what the feed holds."""

    @property
    def resume(self) -> Checkpoint:
        """Where to go on such that nothing is left out: what was processed comes again only where
        nobody knows how much of it there is still."""
        return self.shared or self.earliest

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **vars(self)), self.args


def only_lost(told: Mapping[str, float | PositionGone]) -> dict[str, PositionGone]:
    """Of what a feed tells about positions: where other events may have taken their place."""
    return {
        partition: gone
        for partition, gone in told.items()
        if isinstance(gone, PositionGone) and gone.reason != "retention"
    }


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


BLAMELESS = (StoreUnavailable, FeedUnavailable, SinkUnavailable, LeaseLost, CallCancelled)
CAUSES_MAX = 20


def blameless(error: BaseException) -> bool:
    """Whether a handler failed for want of a store, a feed or a lease, so that no event is at
    fault. An error raised ``from`` such a one counts as well; a group does if all of it does."""
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if isinstance(cause, BaseExceptionGroup):
            return all(blameless(each) for each in cause.exceptions)
        if cause is None or isinstance(cause, BLAMELESS):
            break
        cause = cause.__cause__
    return isinstance(cause, BLAMELESS)
