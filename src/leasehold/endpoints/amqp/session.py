"""A session: its windows, its links, and the order in which deliveries go out."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from leasehold.endpoints.amqp.attaching import attached_to
from leasehold.endpoints.amqp.codec import UInt, UShort, compound, encode
from leasehold.endpoints.amqp.errors import (
    HANDLE_IN_USE,
    UNATTACHED,
    AmqpError,
    LinkFailed,
    SessionFailed,
)
from leasehold.endpoints.amqp.frames import (
    HEADER_BYTES,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Transfer,
)
from leasehold.endpoints.amqp.links import (
    MODULUS,
    IncomingLink,
    Link,
    OutgoingLink,
    distance,
    unavailable,
)
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.connection import AmqpConnection

HANDLE_MAX = 255
WINDOW = 5000
TELL_EVERY = 1000
"""Frames received, before the peer is told that there is room for more."""
WRITE_BYTES = 65_536
TRANSFER_BYTES = 64
"""A transfer takes no more than that beside its payload."""


class AmqpSession:
    def __init__(self, connection: AmqpConnection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.links: dict[int, Link] = {}
        self._next_incoming_id = begin.next_outgoing_id
        self._told_incoming_id = self._next_incoming_id
        self._next_outgoing_id = 0
        self._next_delivery_id = 0
        """Counts deliveries, while the two above count frames: proton-j insists."""
        self._window = begin.incoming_window
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        connection.send(
            channel,
            Begin(UShort(channel), UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(HANDLE_MAX)),
        )

    def handle(self, performative: Any, payload: bytes) -> None:
        try:
            if isinstance(performative, Transfer):
                self._transfer(performative, payload)
            elif isinstance(performative, Flow):
                self._flow(performative)
            elif isinstance(performative, Attach):
                self._attach(performative)
            elif isinstance(performative, Detach):
                self._detach(performative)
            elif not isinstance(performative, Disposition):  # what is sent is settled already
                raise SessionFailed("amqp:not-allowed", "this is not for a session")
        except SessionFailed as error:
            self.close()
            self.connection.send(self.channel, End(error.described()))
            self.connection.forget(self)

    def close(self) -> None:
        for link in list(self.links.values()):
            link.close()
        self.links.clear()

    def _attach(self, attach: Attach) -> None:
        if attach.handle in self.links:
            raise SessionFailed(HANDLE_IN_USE, f"handle {attach.handle} is in use")
        if attach.handle > HANDLE_MAX:
            raise SessionFailed("amqp:not-allowed", f"handles go up to {HANDLE_MAX}")
        self.connection.count_link()
        try:
            link = attached_to(self, attach)
        except (LinkFailed, LeaseholdError) as error:
            why = error if isinstance(error, LinkFailed) else unavailable(error)
            # The peer has to be answered before it can be told why not.
            self.send(refusal(attach))
            self.send(Detach(UInt(attach.handle), True, why.described()))
            return
        self.links[attach.handle] = link
        link.begin(attach)

    def _detach(self, detach: Detach) -> None:
        link = self.links.pop(detach.handle, None)
        if link is not None:
            link.close()
            self.send(Detach(UInt(detach.handle), True, None))

    def detach(self, link: Link, error: AmqpError) -> None:
        """End a link from this side."""
        if self.links.get(link.handle) is link:
            del self.links[link.handle]
            link.close()
            self.send(Detach(UInt(link.handle), True, error.described()))

    def _transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) % MODULUS
        link = self.links.get(transfer.handle)
        if isinstance(link, IncomingLink):
            try:
                link.receive(transfer, payload)
            except LinkFailed as error:
                self.detach(link, error)
        elif link is not None:
            raise SessionFailed(UNATTACHED, f"handle {transfer.handle} is not for sending")
        if (self._next_incoming_id - self._told_incoming_id) % MODULUS >= TELL_EVERY:
            self.send_flow()

    def _flow(self, flow: Flow) -> None:
        begin = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        in_use = distance(begin, self._next_outgoing_id)
        self._window = max(0, flow.incoming_window - in_use)
        if self._window:
            self._room.set()
        link = None if flow.handle is None else self.links.get(flow.handle)
        if isinstance(link, OutgoingLink):
            link.credited(flow)
        if flow.echo:
            self.send_flow(link)

    def send_flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        self._told_incoming_id = self._next_incoming_id
        of_link: tuple[Any, ...] = ()
        if link is not None:
            of_link = (
                UInt(link.handle),
                UInt(link.delivery_count),
                UInt(max(0, link.credit)),
                UInt(0),
                drain,
                False,
            )
        self.send(
            Flow(
                UInt(self._next_incoming_id),
                UInt(WINDOW),
                UInt(self._next_outgoing_id),
                UInt(WINDOW),
                *of_link,
            )
        )

    def send(self, performative: Any) -> None:
        self.connection.send(self.channel, performative)

    async def deliver(self, link: OutgoingLink, messages: Sequence[bytes]) -> int:
        """Send messages, settled, as far as credit and windows allow; waits for windows, not for
        credit. Returns how many were sent."""
        sent, size = 0, 0
        out: list[bytes] = []
        async with self._turn:
            for message in messages:
                if link.credit <= 0 or link.closed:
                    break
                link.credit -= 1
                link.delivery_count = (link.delivery_count + 1) % MODULUS
                for frame in self._frames(link, message):
                    if size >= WRITE_BYTES or not self._may_send_now:
                        self.connection.write(b"".join(out))
                        out, size = [], 0
                        await self._may_send()
                        if link.closed:
                            return sent
                    out.append(frame)
                    size += len(frame)
                    self._window -= 1
                    self._next_outgoing_id = (self._next_outgoing_id + 1) % MODULUS
                sent += 1
            self.connection.write(b"".join(out))
        return sent

    @property
    def _may_send_now(self) -> bool:
        return self._window > 0 and self.connection.writable.is_set()

    async def _may_send(self) -> None:
        """Of many links that wait for the socket, the first to go on may fill it again."""
        while not self._may_send_now:
            await self.connection.writable.wait()
            if self._window == 0:
                self._room.clear()
                await self._room.wait()

    def _frames(self, link: OutgoingLink, message: bytes) -> Iterator[bytes]:
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) % MODULUS
        head = b"".join(
            (
                encode(UInt(link.handle)),
                struct.pack(">BI", 0x70, delivery_id),
                b"\xa0\x01",
                self.connection.next_tag(),
                b"\x43\x41",  # format 0, settled
            )
        )
        room = self.connection.peer_frame_bytes - TRANSFER_BYTES
        for at in range(0, max(1, len(message)), room):
            more = b"\x41" if at + room < len(message) else b"\x42"
            fields = compound(0xC0, 11, head + more + b"\x40\x40\x42\x42\x42")
            size = HEADER_BYTES + 3 + len(fields)
            part = message[at : at + room] if len(message) > room else message
            yield b"".join(
                (
                    struct.pack(">IBBH", size + len(part), 2, 0, self.channel),
                    b"\x00\x53\x14",
                    fields,
                    part,
                )
            )


def refusal(attach: Attach) -> Attach:
    """An answer that attaches to nothing."""
    return Attach(
        attach.name,
        UInt(attach.handle),
        not attach.role,
        initial_delivery_count=UInt(0) if attach.role else None,
        properties={},
    )
