"""The endpoint: one hub, one port, any number of clients up to a bound."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from leasehold.endpoints.amqp.connection import OPEN_WITHIN_S, AmqpConnection
from leasehold.endpoints.amqp.errors import FORCED, ConnectionFailed
from leasehold.endpoints.amqp.news import EventNews
from leasehold.endpoints.amqp.owner_levels import OwnerLevels
from leasehold.endpoints.amqp.secret import AccessKey
from leasehold.endpoints.amqp.sending import Intake
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub

log = logging.getLogger("leasehold")
CONNECTIONS_MAX = 2000
ALL_PARTS_BYTES_MAX = 256 << 20
READ_THREADS = 4
_Result = TypeVar("_Result")


class AmqpEndpoint:
    """``async with AmqpEndpoint(hub, access) as endpoint: ...`` serves until the block ends.

    For development and tests only. ``port=0`` takes a free one; ``endpoint.port`` says which.
    """

    def __init__(
        self,
        hub: Hub,
        access: AccessKey,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.hub = hub
        self.access = access
        self.host, self.port = host, port
        self.owner_levels = OwnerLevels()
        self._tls = tls
        self._connections_max = connections_max
        self._connections: set[AmqpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts_bytes = 0
        self._full = False

    @property
    def connection_string(self) -> str:
        host = "localhost" if self.host in ("127.0.0.1", "::1", "0.0.0.0", "::") else self.host
        return self.access.connection_string(
            self.hub.name, host, self.port, tls=self._tls is not None
        )

    async def __aenter__(self) -> Self:
        self.news = EventNews(self.hub)
        self.intake = Intake(self.hub, self.news)
        self._readers = ThreadPoolExecutor(READ_THREADS, "amqp-read")
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: AmqpConnection(self),
                self.host,
                self.port,
                ssl=self._tls,
                ssl_handshake_timeout=OPEN_WITHIN_S if self._tls else None,
                backlog=1024,
            )
        except OSError as error:
            raise BadInput(f"port {self.port} of {self.host} cannot be used: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        self.spawn(self.news.run(), self._broken)
        self.spawn(self.intake.run(), self._broken)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.close(ConnectionFailed(FORCED, "the endpoint is stopped"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.intake.close()
        self._readers.shutdown(wait=True)

    def knows(self, hub: str) -> bool:
        return hub.lower() == self.hub.name.lower()

    def admit(self, connection: AmqpConnection) -> bool:
        if len(self._connections) >= self._connections_max:
            if not self._full:
                log.warning("%d connections: no more are accepted", self._connections_max)
            self._full = True
            return False
        self._full = False
        self._connections.add(connection)
        return True

    def dismiss(self, connection: AmqpConnection) -> None:
        self._connections.discard(connection)

    def hold_parts(self, more_bytes: int) -> bool:
        """Whether there is room for so much more of deliveries that are not complete."""
        self._parts_bytes += more_bytes
        return self._parts_bytes <= ALL_PARTS_BYTES_MAX

    async def read(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    def spawn(
        self, work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            if not ended.cancelled() and (error := ended.exception()) is not None:
                failed(error)

        task.add_done_callback(done)
        return task

    def _broken(self, error: BaseException) -> None:
        log.error("the AMQP endpoint does not work any more", exc_info=error)
