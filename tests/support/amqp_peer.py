"""A client that speaks AMQP frame by frame, also wrongly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
import time
from typing import Any, Self, TypeVar
from urllib.parse import quote_plus

from leasehold.endpoints.amqp.codec import Described, Symbol, UInt, ULong, decode, encode
from leasehold.endpoints.amqp.frames import (
    AmqpFrame,
    Attach,
    Begin,
    Close,
    Disposition,
    Flow,
    FrameReader,
    Open,
    Transfer,
    encode_frame,
)
from leasehold.endpoints.amqp.sections import sections_of

from .amqp_endpoint import ServedHub
from .eventhubs import Endpoint

HEADER = b"AMQP\x00\x01\x00\x00"
SOURCE, TARGET = ULong(0x28), ULong(0x29)
_Kind = TypeVar("_Kind")


def token(
    served: ServedHub | Endpoint,
    *,
    expires_in_s: float = 600,
    key: str | None = None,
    policy: str | None = None,
) -> str:
    found = re.search(r"KeyName=([^;]+);SharedAccessKey=([^;]+)", served.connection_string)
    assert found
    sr, se = quote_plus("sb://localhost/sensors"), int(time.time() + expires_in_s)
    digest = hmac.new((key or found[2]).encode(), f"{sr}\n{se}".encode(), hashlib.sha256).digest()
    sig = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={se}&skn={policy or found[1]}"


def message(*sections: tuple[int, Any]) -> bytes:
    return b"".join(encode(Described(ULong(code), value)) for code, value in sections)


def condition_of(error: Any) -> str:
    return str(error.value[0]) if error is not None else ""


class Peer:
    """``window`` is how many frames it takes in before it says that it takes more."""

    def __init__(self, port: int, *, window: int = 5000, open_: bool = True, **fields: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._reader = FrameReader()
        self._window = window
        self.received = 0
        if open_:
            self.open(**fields)

    def open(self, **fields: Any) -> None:
        """A connection with one session."""
        self.write(HEADER)
        self.send(Open("peer", "localhost", **fields))
        self.expect(Open)
        self.send(Begin(None, UInt(0), UInt(self._window), UInt(self._window)))
        self.expect(Begin)

    def exactly(self, size: int) -> bytes:
        """Bytes before AMQP begins."""
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "the endpoint hung up"
            data += more
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, performative: Any, payload: bytes = b"", channel: int = 0) -> None:
        self.write(encode_frame(channel, performative, payload))

    def read(self) -> AmqpFrame | None:
        """The next frame; None: the endpoint hung up."""
        while True:
            found = self._reader.next()
            if isinstance(found, AmqpFrame):
                return found
            if found is not None:
                continue
            try:
                data = self.socket.recv(65_536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._reader.feed(data)

    def frame(self, kind: type[Any]) -> AmqpFrame:
        while (found := self.read()) is not None:
            if isinstance(found.performative, kind):
                return found
            assert not isinstance(found.performative, Close), found
        raise AssertionError(f"hung up before {kind.__name__}")

    def expect(self, kind: type[_Kind]) -> _Kind:
        performative: _Kind = self.frame(kind).performative
        return performative

    def ended(self) -> str:
        """Read to the end of the connection; the condition that was told, or nothing."""
        condition = ""
        while (found := self.read()) is not None:
            if isinstance(found.performative, Close):
                condition = condition_of(found.performative.error)
        return condition

    def attach(self, handle: int, address: str, *, receive: bool, **fields: Any) -> Attach:
        source = Described(SOURCE, [address, *[None] * 6, fields.pop("filter", None)])
        target = Described(TARGET, [address if not receive else "here"])
        self.send(
            Attach(
                f"link-{handle}",
                UInt(handle),
                receive,
                source=source,
                target=target,
                initial_delivery_count=None if receive else UInt(0),
                **fields,
            )
        )
        return self.expect(Attach)

    def credit(self, handle: int, credit: int, *, count: int = 0, **fields: Any) -> None:
        self.send(
            Flow(
                UInt(self.received),
                UInt(self._window),
                UInt(0),
                UInt(5000),
                UInt(handle),
                UInt(count),
                UInt(credit),
                **fields,
            )
        )

    def request(self, node: str, application: dict[str, Any], value: Any, base: int = 100) -> int:
        """Ask ``$cbs`` or ``$management``; the status of the answer."""
        self.attach(base, node, receive=False)
        self.attach(base + 1, node, receive=True)
        self.credit(base + 1, 10)
        body = message((0x73, ["id"]), (0x74, application), (0x77, value))
        self.transfer(base, body, 0)
        answer = self.frame(Transfer).payload
        self.received += 1
        sections = {each.code: decode(answer, each.value)[0] for each in sections_of(answer)}
        return int(sections[0x74]["status-code"])

    def put_token(self, text: str, *, name: str = "sb://localhost/sensors", base: int = 100) -> int:
        application = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": name,
        }
        return self.request("$cbs", application, text, base)

    def transfer(self, handle: int, payload: bytes, delivery_id: int, **fields: Any) -> None:
        self.send(
            Transfer(UInt(handle), UInt(delivery_id), b"%d" % delivery_id, UInt(0), **fields),
            payload,
        )

    def settled(self) -> str:
        """What the endpoint says of a transfer: "" if it was accepted, else the condition."""
        state = self.expect(Disposition).state
        return condition_of(state.value[0]) if state.value else ""


def from_start(selector: str) -> dict[Any, Any]:
    name = Symbol("apache.org:selector-filter:string")
    return {name: Described(name, selector)}
