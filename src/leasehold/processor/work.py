"""The lease that a pump works under, and what it does with the events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from leasehold.clock import within
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Lease
from leasehold.errors import FeedUnavailable, StoreUnavailable
from leasehold.ports import Clock
from leasehold.processor.handlers import Outcome, Stop

T = TypeVar("T")
Report = Callable[[str, BaseException], None]
"""What could not be done, and why. It will be tried again."""


@dataclass(slots=True)
class Hold:
    """A lease in hand, shared by the host that renews it and the pump that works under it."""

    lease: Lease
    until: float
    """The monotonic time up to which new work may begin; renewals push it on."""
    orphaned: bool = False
    """Its former owner died or was overruled, maybe because of the batch at the checkpoint."""
    overruled: bool = False
    """Its former owner was alive then, and did not let it go."""


class Worker(Protocol):
    """What the host starts for each lease it holds; ``Pump`` is one."""

    hold: Hold

    def let_go(self, offered_to: str | None, reason: Reason) -> None: ...

    def lose(self) -> None: ...

    def wake(self) -> None: ...

    async def run(self) -> Reason: ...


class Work(Protocol):
    """What is done with the events of one partition: the user's code and what surrounds it."""

    one_by_one: bool
    interruptible: bool
    """Whether a call that takes too long can be ended."""

    async def open(self) -> None: ...

    async def handle(self, events: Sequence[Any], stop: Stop) -> Outcome: ...

    async def failed(self, error: BaseException) -> None: ...

    async def bury(self, event: Any, error: BaseException | str, attempts: int) -> None:
        """Put a poison event into the dead-letter store."""

    def give_up(self, error: BaseException) -> None:
        """The user chose to stop the processor rather than go on without this."""

    async def close(self, reason: Reason) -> None: ...


async def answered(clock: Clock, limit_s: float, request: Awaitable[T]) -> T:
    """A store's answer. Whatever keeps it from that is the store's failure, and no event's."""
    try:
        return await within(clock, limit_s, request)
    except StoreUnavailable:
        raise
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within request_timeout_s={limit_s:g}") from error
    except Exception as error:
        raise StoreUnavailable(f"{type(error).__name__}: {error}") from error


async def told(clock: Clock, limit_s: float, request: Awaitable[T]) -> T:
    """A feed's answer about itself. Like a read, it may take ``read_timeout_s``."""
    try:
        return await within(clock, limit_s, request)
    except TimeoutError as error:
        raise FeedUnavailable(
            f"no answer within {limit_s:g} s; it begins at read_timeout_s"
        ) from error
