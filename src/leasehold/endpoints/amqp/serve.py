"""Serve a hub until told to stop: what ``leasehold hub serve`` does."""

from __future__ import annotations

import asyncio
import resource
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

from leasehold.endpoints.amqp.endpoint import CONNECTIONS_MAX, AmqpEndpoint
from leasehold.endpoints.amqp.secret import access_key, keep_connection
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub

OTHER_FILES = 64
Started = Callable[[AmqpEndpoint, Path], None]
"""Called with the endpoint, once it listens, and with the file that holds its connection string."""


def serve(
    hub: Hub,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    connections_max: int = CONNECTIONS_MAX,
    started: Started,
) -> None:
    """Returns after SIGINT or SIGTERM; what was acknowledged by then is stored."""
    _allow_sockets(connections_max)
    access = access_key(hub.path)
    endpoint = AmqpEndpoint(
        hub, access, host=host, port=port, tls=tls, connections_max=connections_max
    )
    asyncio.run(_serve(endpoint, started))


async def _serve(endpoint: AmqpEndpoint, started: Started) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    async with endpoint:
        started(endpoint, keep_connection(endpoint.hub.path, endpoint.connection_string))
        await stop.wait()


def _allow_sockets(count: int) -> None:
    """A process may often have fewer open than it is allowed to ask for."""
    wanted = count + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < wanted:
            raise BadInput(
                f"{count} connections need {wanted} open files, and this process may have {hard}; "
                "lower --connections, or raise the limit (ulimit -n)"
            )
