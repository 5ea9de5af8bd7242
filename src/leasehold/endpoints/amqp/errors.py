"""What the peer is told when something is wrong, and how much of the connection that ends."""

from __future__ import annotations

from leasehold.endpoints.amqp.codec import Described, Symbol, ULong

ERROR = ULong(0x1D)


class AmqpError(Exception):
    """``condition`` is a name that clients act on; the text is for people."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition

    def described(self) -> Described:
        return Described(ERROR, [Symbol(self.condition), str(self), {}])


class ConnectionFailed(AmqpError):
    """The connection ends."""


class SessionFailed(AmqpError):
    """The session ends, the connection goes on."""


class LinkFailed(AmqpError):
    """The link ends, its session goes on."""


class DeliveryRejected(AmqpError):
    """This message was not taken, the link goes on."""


INTERNAL = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
DECODE = "amqp:decode-error"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
FRAMING = "amqp:connection:framing-error"
FORCED = "amqp:connection:forced"
WINDOW = "amqp:session:window-violation"
UNATTACHED = "amqp:session:unattached-handle"
HANDLE_IN_USE = "amqp:session:handle-in-use"
STOLEN = "amqp:link:stolen"
TOO_LARGE = "amqp:link:message-size-exceeded"
CREDIT = "amqp:link:transfer-limit-exceeded"
ARGUMENT = "com.microsoft:argument-error"
ARGUMENT_RANGE = "com.microsoft:argument-out-of-range"
BUSY = "com.microsoft:server-busy"
