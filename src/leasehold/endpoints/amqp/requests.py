"""Requests and their answers, each on a link of its own: ``$cbs`` and ``$management``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.endpoints.amqp.cbs import put_token
from leasehold.endpoints.amqp.codec import DecodeError, Described, Int, ULong, decode, encode
from leasehold.endpoints.amqp.errors import (
    DECODE,
    INVALID_FIELD,
    RESOURCE_LIMIT,
    DeliveryRejected,
    LinkFailed,
)
from leasehold.endpoints.amqp.frames import Attach
from leasehold.endpoints.amqp.links import IncomingLink, OutgoingLink, address_of
from leasehold.endpoints.amqp.management import read_properties
from leasehold.endpoints.amqp.sections import (
    APPLICATION_PROPERTIES,
    PROPERTIES,
    VALUE,
    sections_of,
)
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.connection import AmqpConnection
    from leasehold.endpoints.amqp.session import AmqpSession

ANSWERS_MAX = 256
REQUEST_BYTES_MAX = 65_536
"""An answer has the id of its request, so it may be as long. Strangers may ask."""
REPLY_TO_MAX = 1024
UNAVAILABLE = 503
MESSAGE_ID, REPLY_TO = 0, 4


class AmqpRequest(NamedTuple):
    properties: list[Any]
    application: dict[str, Any]
    value: Any


class Answer(NamedTuple):
    status: int
    text: str
    value: Any = None


NODES: dict[str, Callable[[AmqpConnection, dict[str, Any], Any], tuple[int, str, Any]]] = {
    "$cbs": put_token,
    "$management": read_properties,
}


class RequestLink(IncomingLink):
    message_bytes_max = REQUEST_BYTES_MAX

    def __init__(self, session: AmqpSession, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self._node = node

    def deliver(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        try:
            request = parse(message)
        except DecodeError as error:
            self.settle(delivery_id, DeliveryRejected(DECODE, f"the request: {error}"))
            return
        try:
            answer = Answer(
                *NODES[self._node](self.session.connection, request.application, request.value)
            )
        except DeliveryRejected as error:
            self.settle(delivery_id, error)
            return
        except LeaseholdError as error:
            answer = Answer(UNAVAILABLE, str(error))
        self.settle(delivery_id)
        reply_to = self._answers_to(request)
        if reply_to is not None:
            reply_to.put(encoded(request, answer))

    def _answers_to(self, request: AmqpRequest) -> ResponseLink | None:
        """The link that the request names, else the newest one of this node."""
        links = [
            link
            for link in self.session.connection.links()
            if isinstance(link, ResponseLink) and link.node == self._node
        ]
        mine = [link for link in links if link.session is self.session]
        wanted = request.properties[REPLY_TO]
        named = [link for link in (*links, *mine) if wanted and link.reply_to == wanted]
        return next(reversed(named or mine or links), None)


class ResponseLink(OutgoingLink):
    def __init__(self, session: AmqpSession, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self.node = node
        self.reply_to = address_of(attach.target)
        if len(self.reply_to) > REPLY_TO_MAX:
            raise LinkFailed(INVALID_FIELD, f"an address has at most {REPLY_TO_MAX} characters")
        self._answers: list[bytes] = []

    def put(self, answer: bytes) -> None:
        if len(self._answers) >= ANSWERS_MAX:
            self.fail(LinkFailed(RESOURCE_LIMIT, f"{ANSWERS_MAX} answers wait for credit"))
            return
        self.session.connection.hold_parts(len(answer))
        self._answers.append(answer)
        self.changed.set()

    def close(self) -> None:
        super().close()
        self._drop(len(self._answers))

    async def run(self) -> None:
        while True:
            self.changed.clear()
            if self._answers and self.credit > 0:
                self._drop(await self.session.deliver(self, self._answers[: self.credit]))
                continue
            if self.drain and self.credit > 0:
                self.drained()
            await self.changed.wait()

    def _drop(self, count: int) -> None:
        self.session.connection.hold_parts(-sum(map(len, self._answers[:count])))
        del self._answers[:count]


def parse(message: bytes) -> AmqpRequest:
    properties: list[Any] = []
    application: dict[Any, Any] = {}
    value = None
    for each in sections_of(message):
        if each.code == PROPERTIES:
            properties = _require(decode(message, each.value)[0], list)
        elif each.code == APPLICATION_PROPERTIES:
            application = _require(decode(message, each.value)[0], dict)
        elif each.code == VALUE:
            value = decode(message, each.value)[0]
    return AmqpRequest(
        (properties + [None] * 13)[:13],
        {str(name): _text(each) for name, each in application.items()},
        _text(value),
    )


def encoded(request: AmqpRequest, answer: Answer) -> bytes:
    properties = [None] * 5 + [request.properties[MESSAGE_ID]]
    status = {
        "status-code": Int(answer.status),
        "status-description": answer.text,
        "statusCode": Int(answer.status),
        "statusDescription": answer.text,
    }
    return b"".join(
        encode(Described(ULong(code), value))
        for code, value in (
            (PROPERTIES, properties),
            (APPLICATION_PROPERTIES, status),
            (VALUE, answer.value),
        )
    )


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise DecodeError(f"a section that should be a {kind.__name__} is none")
    return value


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
