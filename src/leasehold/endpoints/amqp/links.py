"""Links: what every one has, whichever way its messages go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leasehold.endpoints.amqp.codec import Described, UByte, UInt, ULong
from leasehold.endpoints.amqp.errors import (
    BUSY,
    CREDIT,
    INVALID_FIELD,
    NOT_FOUND,
    TOO_LARGE,
    LinkFailed,
)
from leasehold.endpoints.amqp.frames import (
    FRAME_BYTES_MAX,
    Attach,
    Disposition,
    Flow,
    Transfer,
)
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.session import AmqpSession

MESSAGE_BYTES_MAX = 1 << 20
CREDIT_GIVEN = 300
MODULUS = 1 << 32

ACCEPTED = Described(ULong(0x24), [])
REJECTED = ULong(0x25)
_SOURCE, _TARGET = 0x28, 0x29


def distance(begin: int, end: int) -> int:
    """From a serial number to a later one, which may have begun at 0 again; else 0."""
    ahead = (end - begin) % MODULUS
    return ahead if ahead < MODULUS // 2 else 0


class Link:
    message_bytes_max = MESSAGE_BYTES_MAX

    def __init__(self, session: AmqpSession, attach: Attach) -> None:
        self.session = session
        self.handle = attach.handle
        self.delivery_count = 0
        self.credit = 0
        self.closed = False
        self.needs_token: str | None = None
        """The path that a token must be valid for, as long as the link lives."""

    def begin(self, attach: Attach) -> None:
        """Answer the peer, and go to work. What it said is not kept: it may be large."""

    def close(self) -> None:
        self.closed = True

    def fail(self, error: LinkFailed) -> None:
        self.session.detach(self, error)

    def answer(self, attach: Attach, **fields: Any) -> None:
        """The mirror image of what the peer said."""
        self.session.send(
            Attach(
                attach.name,
                UInt(attach.handle),
                not attach.role,
                UByte(attach.snd_settle_mode or 0),
                UByte(attach.rcv_settle_mode or 0),
                _mirrored(attach.source),
                _mirrored(attach.target),
                max_message_size=ULong(self.message_bytes_max),
                properties={},
                **fields,
            )
        )


class IncomingLink(Link):
    """The peer sends. Frames are put together; ``deliver`` gets whole messages."""

    def __init__(self, session: AmqpSession, attach: Attach) -> None:
        super().__init__(session, attach)
        self._parts: list[bytes] = []
        self._size = 0
        self._delivery_id = 0
        self._format = 0

    def begin(self, attach: Attach) -> None:
        self.answer(attach)
        self.delivery_count = attach.initial_delivery_count or 0
        self.give_credit()

    def close(self) -> None:
        super().close()
        self._drop_parts()

    def give_credit(self) -> None:
        self.credit = CREDIT_GIVEN
        self.session.send_flow(self)

    def receive(self, transfer: Transfer, payload: bytes) -> None:
        if not self._parts:
            if self.credit <= 0:
                raise LinkFailed(CREDIT, "there was no credit for this message")
            if transfer.delivery_id is None:
                raise LinkFailed(INVALID_FIELD, "a delivery begins with its delivery-id")
            self._delivery_id, self._format = transfer.delivery_id, transfer.message_format or 0
        if transfer.aborted:
            self._drop_parts()
            self._count()
            return
        if not payload and self._parts and transfer.more:
            return  # nothing else would bound their number
        self._parts.append(payload)
        self._size += len(payload)
        self.session.connection.hold_parts(len(payload))
        if self._size > self.message_bytes_max + FRAME_BYTES_MAX:
            raise LinkFailed(TOO_LARGE, f"a message takes at most {self.message_bytes_max} bytes")
        if transfer.more:
            return
        message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._drop_parts()
        settled = bool(transfer.settled)
        self.deliver(message, self._format, None if settled else self._delivery_id)
        self._count()

    def _count(self) -> None:
        self.delivery_count = (self.delivery_count + 1) % MODULUS
        self.credit -= 1
        if self.credit < CREDIT_GIVEN // 2 and not self.closed:
            self.give_credit()

    def deliver(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """``delivery_id`` is None if the peer wants no answer."""
        raise NotImplementedError

    def settle(self, delivery_id: int | None, error: Any = None) -> None:
        if delivery_id is None or self.closed:
            return
        state = ACCEPTED if error is None else Described(REJECTED, [error.described()])
        self.session.send(
            Disposition(True, UInt(delivery_id), UInt(delivery_id), True, state, None)
        )

    def _drop_parts(self) -> None:
        self.session.connection.hold_parts(-self._size)
        self._parts, self._size = [], 0


class OutgoingLink(Link):
    """The peer receives, in a task of the link's own."""

    def __init__(self, session: AmqpSession, attach: Attach) -> None:
        super().__init__(session, attach)
        self.drain = False
        self.changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, attach: Attach) -> None:
        self.answer(attach, initial_delivery_count=UInt(0))
        self._task = self.session.connection.endpoint.spawn(self.run(), self.failed)

    def close(self) -> None:
        super().close()
        if self._task is not None:
            self._task.cancel()

    def credited(self, flow: Flow) -> None:
        begin = flow.delivery_count or 0
        in_use = distance(begin, self.delivery_count)
        self.credit = max(0, (flow.link_credit or 0) - in_use)
        self.drain = bool(flow.drain)
        self.changed.set()

    def drained(self) -> None:
        """Give back the credit that there is nothing for."""
        self.delivery_count = (self.delivery_count + self.credit) % MODULUS
        self.credit = 0
        self.session.send_flow(self, drain=True)

    async def run(self) -> None:
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        if isinstance(error, LeaseholdError):
            error = unavailable(error)
        reason = error if isinstance(error, LinkFailed) else self.session.connection.internal(error)
        self.session.detach(self, reason)


def not_found(address: str) -> LinkFailed:
    return LinkFailed(NOT_FOUND, f"The messaging entity '{address}' could not be found.")


def unavailable(error: LeaseholdError) -> LinkFailed:
    """The hub's file is locked or away: clients come again after a while."""
    return LinkFailed(BUSY, str(error))


def address_of(terminus: Described | None) -> str:
    fields = terminus_fields(terminus)
    return fields[0] if fields and isinstance(fields[0], str) else ""


def terminus_fields(terminus: Described | None) -> list[Any]:
    value = terminus.value if terminus is not None else None
    return value if isinstance(value, list) else []


def _mirrored(terminus: Described | None) -> Described | None:
    """Source or target with its address and, of a source, its filter; at full width."""
    if terminus is None:
        return None
    given = terminus_fields(terminus) + [None] * 11
    if terminus.descriptor == _SOURCE:
        return Described(ULong(_SOURCE), [given[0], *[None] * 6, given[7], *[None] * 3])
    return Described(ULong(_TARGET), [given[0], *[None] * 6])
