"""What this feed needs of ``azure-eventhub`` beyond its public surface, in one place.

The public ``receive`` calls back, polls every 50 ms, always asks for as many events as ``prefetch``
says, and makes a connection of its own for each question about a partition. A feed is asked for
events, bounds them in bytes, and asks about all partitions every few seconds. So it drives the
SDK's own AMQP clients.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

from leasehold.errors import BadInput, MissingExtra
from leasehold.feeds.eventhubs.address import (
    EventHubsSettings,
    connection_string,
    is_emulator,
)

try:
    import certifi
    from azure.eventhub import TransportType
    from azure.eventhub._constants import (
        MGMT_OPERATION,
        MGMT_PARTITION_OPERATION,
        MGMT_STATUS_CODE,
        MGMT_STATUS_DESC,
        READ_OPERATION,
    )
    from azure.eventhub._pyamqp._decode import _DECODE_BY_CONSTRUCTOR as DECODERS
    from azure.eventhub._pyamqp.constants import LinkState
    from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
except ImportError as error:
    raise MissingExtra(
        "Azure Event Hubs needs an extra: pip install 'leasehold[eventhubs]'"
    ) from error

OnMessage = Callable[[Any], Awaitable[None]]
Decoded = tuple[memoryview, Any]
HANDSHAKE_S = 0.002
"""Between two looks at whether a connection or a link is open yet."""
LISTEN_FRAMES = 256
DECIMALS = {0x74: (4, 8, 101), 0x84: (8, 10, 398), 0x94: (16, 14, 6176)}
"""By AMQP's code of the type: bytes, bits of the exponent, and its bias."""
CHARACTER = 0x73


def _decimal(size: int, exponent_bits: int, bias: int, buffer: memoryview) -> Decoded:
    """IEEE 754-2008, with the significand as a binary integer."""
    width = 8 * size
    sign, rest = divmod(int.from_bytes(buffer[:size]), 1 << (width - 1))
    if rest >> (width - 5) == 0b1111:
        special = "NaN" if rest >> (width - 6) & 1 else "-Infinity" if sign else "Infinity"
        return buffer[size:], Decimal(special)
    prefix, digits_bits = 0, width - 1 - exponent_bits
    if rest >> (width - 3) == 0b11:  # a significand that is so large begins with 100, unsaid
        prefix, digits_bits = 0b100, digits_bits - 2
        rest &= (1 << (width - 3)) - 1
    exponent, digits = divmod(rest, 1 << digits_bits)
    whole = Decimal(prefix << digits_bits | digits).as_tuple().digits
    return buffer[size:], Decimal((sign, whole, exponent - bias))


def _character(buffer: memoryview) -> Decoded:
    return buffer[4:], bytes(buffer[:4]).decode("utf-32-be", "replace")


# The SDK fails at every decimal, and knows no characters. It takes that for a broken connection, so
# that nobody could read on in a partition that has such a property.
DECODERS[CHARACTER] = _character
for _code, _form in DECIMALS.items():
    DECODERS[_code] = partial(_decimal, *_form)


class Clients:
    """The SDK's clients of one hub, made when needed. Used in one event loop."""

    def __init__(self, settings: EventHubsSettings) -> None:
        self._settings = settings
        self._consumers: dict[str, EventHubConsumerClient] = {}
        self._producers: dict[bool, EventHubProducerClient] = {}
        self._credential: Any = None

    def consumer(self, group: str) -> EventHubConsumerClient:
        if group not in self._consumers:
            self._consumers[group] = self._client(EventHubConsumerClient, consumer_group=group)
        return self._consumers[group]

    def producer(self) -> EventHubProducerClient:
        if False not in self._producers:
            self._producers[False] = self._client(EventHubProducerClient)
        return self._producers[False]

    async def close(self) -> None:
        clients: list[Any] = [*self._consumers.values(), *self._producers.values()]
        if self._credential is not None:
            clients.append(self._credential)
        self._consumers, self._producers, self._credential = {}, {}, None
        for each in clients:
            await each.close()

    def _client(self, kind: Any, **more: Any) -> Any:
        settings = self._settings
        websocket = settings.transport == "websocket"
        more["transport_type"] = (
            TransportType.AmqpOverWebsocket if websocket else TransportType.Amqp
        )
        text = connection_string(settings)
        # Else the SDK reads all certificates again for each connection, which takes 0.1 s.
        more["ssl_context"] = _tls(settings.ca, plain=is_emulator(text or ""))
        try:
            if text is not None:
                return kind.from_connection_string(text, eventhub_name=settings.hub, **more)
            if self._credential is None:
                self._credential = _default_credential()
            return kind(settings.host, settings.hub, credential=self._credential, **more)
        except ValueError:
            raise BadInput(f"{settings.secret} is no connection string that works") from None


@lru_cache(maxsize=8)
def _tls(ca: str, *, plain: bool) -> ssl.SSLContext:
    if plain:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=ca or certifi.where())
    except OSError as error:
        raise BadInput(f"ca={ca}: no certificates can be read there: {error.strerror}") from error


def _default_credential() -> Any:
    try:
        from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415  # slow to import
    except ImportError as error:
        raise MissingExtra(
            "without a connection string, Azure Event Hubs needs azure-identity: pip install "
            "'leasehold[eventhubs]'"
        ) from error
    return DefaultAzureCredential()


class Questions:
    """One connection for all questions about the hub and its partitions."""

    def __init__(self, client: EventHubConsumerClient) -> None:
        self._client: Any = client
        self._amqp: Any = None
        self._auth: Any = None

    @property
    def is_open(self) -> bool:
        return self._amqp is not None

    async def ask(self, partition: str | None = None) -> Mapping[bytes, Any]:
        """The broker's properties of the hub, or of a partition."""
        if self._amqp is None:
            await self._open()
        asked = {"name": self._client.eventhub_name}
        if partition is not None:
            asked["partition"] = partition
        transport = self._client._amqp_transport
        asked["security_token"] = await transport.get_updated_token_async(self._auth)
        status, description, answer = await transport.mgmt_client_request_async(
            self._amqp,
            transport.build_message(application_properties=asked),
            operation=READ_OPERATION,
            operation_type=MGMT_OPERATION if partition is None else MGMT_PARTITION_OPERATION,
            status_code_field=MGMT_STATUS_CODE,
            description_fields=MGMT_STATUS_DESC,
        )
        if int(status) >= 400:
            text = description.decode() if isinstance(description, bytes) else description
            raise transport.get_error(int(status), text)
        found: Mapping[bytes, Any] = answer.value
        return found

    async def close(self) -> None:
        amqp, self._amqp = self._amqp, None
        if amqp is not None:
            await amqp.close_async()

    async def _open(self) -> None:
        self._auth = await self._client._create_auth_async()
        self._amqp = await _management(self._client, self._auth)


class SdkReceiver:
    """A link to one partition. Nothing comes before it is allowed."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    @classmethod
    async def open(
        cls,
        client: EventHubConsumerClient,
        partition: str,
        start: str | int,
        *,
        inclusive: bool,
        owner_level: int | None,
        on_message: OnMessage,
    ) -> SdkReceiver:
        inside: Any = client
        auth = await inside._create_auth_async(auth_uri=inside._auth_uri)
        handler = _handler(
            client, auth, partition, start, inclusive=inclusive, owner_level=owner_level
        )
        handler._message_received_callback = on_message
        handler._link_credit = 0
        await _opened(handler)
        return cls(handler)

    @property
    def credit(self) -> int:
        """How many events may still come."""
        return int(self._handler._link.current_link_credit)

    async def allow(self, events: int) -> None:
        """Let so many events come from now on."""
        await self._handler._link.flow(link_credit=events)

    async def receive(self) -> bool:
        """Handle what has come, or wait for it for a moment. False: it is closed."""
        handler = self._handler
        handler._link.get_state()  # raises what the broker said when it cut the link
        if not await handler.auth_complete_async():  # renews a token that is about to expire
            return True
        # No more than may come: to listen for another one takes until the time is up, and nothing
        # can be sent meanwhile.
        frames = min(max(self.credit, 1), LISTEN_FRAMES)
        await handler._connection.listen(wait=handler._socket_timeout, batch=frames)
        # Of those that are not settled the SDK remembers every tag for ever.
        handler._link._received_delivery_tags.clear()
        handler._link.get_state()
        return not handler._shutdown

    async def close(self) -> None:
        await self._handler.close_async()


class Lookups:
    """One connection for single events, each by a link of its own: a connection takes many times
    as long to open as a link."""

    def __init__(self, clients: Clients, group: str) -> None:
        self._clients, self._group = clients, group
        self._amqp: Any = None
        self._auth: Any = None

    @property
    def is_open(self) -> bool:
        return self._amqp is not None

    async def first(self, partition: str, start: str | int, *, inclusive: bool) -> Any:
        """The message of the first event from there on. After an error, close this."""
        client: Any = self._clients.consumer(self._group)
        if self._amqp is None:
            self._auth = await client._create_auth_async(auth_uri=client._auth_uri)
            self._amqp = await _management(client, self._auth)
        amqp = self._amqp
        came: list[Any] = []

        async def on_transfer(_: Any, message: Any) -> None:
            came.append(message)

        while not await amqp.auth_complete_async():  # renews a token that is about to expire
            pass
        wanted = _handler(client, self._auth, partition, start, inclusive=inclusive)
        link = amqp._session.create_receiver_link(
            source_address=wanted.source,
            link_credit=1,
            send_settle_mode=wanted._send_settle_mode,
            rcv_settle_mode=wanted._receive_settle_mode,
            max_message_size=wanted._max_message_size,
            on_transfer=on_transfer,
            properties=wanted._link_properties,
            desired_capabilities=wanted._desired_capabilities,
        )
        await link.attach()
        while not came:
            await self._listen(link)
        await link.detach(close=True)
        while link.state == LinkState.DETACH_SENT:
            await self._listen(link)
        session = amqp._session  # which forgets no link by itself
        del session.links[link.name], session._output_handles[link.handle]
        session._input_handles.pop(link.remote_handle, None)
        return came[0]

    async def close(self) -> None:
        amqp, self._amqp = self._amqp, None
        if amqp is not None:
            await amqp.close_async()

    async def _listen(self, link: Any) -> None:
        await self._amqp._connection.listen(wait=self._amqp._socket_timeout)
        link.get_state()  # raises what the broker said when it cut the link


def _handler(
    client: Any,
    auth: Any,
    partition: str,
    start: str | int,
    *,
    inclusive: bool,
    owner_level: int | None = None,
) -> Any:
    """The SDK's own AMQP client for a partition, not yet connected."""
    consumer = client._create_consumer(
        client._consumer_group,
        partition,
        start,
        None,
        event_position_inclusive=inclusive,
        owner_level=owner_level,
        prefetch=1,
    )
    consumer._keep_alive = None  # we always listen; to end that task takes up to a second
    consumer._create_handler(auth)
    return consumer._handler


async def _management(client: Any, auth: Any) -> Any:
    """A connection with a session, open and authenticated, and no link but for tokens."""
    amqp = client._amqp_transport.create_mgmt_client(
        client._address, mgmt_auth=auth, config=client._config
    )
    await _opened(amqp)
    return amqp


async def _opened(amqp: Any) -> None:
    try:
        await amqp.open_async()
        while not await amqp.client_ready_async():  # noqa: ASYNC110  # the SDK has no event for it
            await asyncio.sleep(HANDSHAKE_S)
    except BaseException:
        await amqp.close_async()
        raise
