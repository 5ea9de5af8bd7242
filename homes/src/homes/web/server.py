"""Serves the application from a thread, for programs that do other things, too."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import uvicorn

from homes.web.http import BoundedHttp
from homes.web.limits import ClientConnections, ServerLimits
from leasehold import BadInput

START_S = 30.0
STOP_S = 5.0
BACKLOG = 64
"""So many are accepted at a time: no more than there are descriptors in reserve."""
TICKS_PER_SWEEP = 5


class WebServer:
    def __init__(
        self,
        app: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ServerLimits | None = None,
        trusted: Callable[[str], bool] = lambda address: False,
    ) -> None:
        """``port`` 0 takes any that is free. Only this machine can ask, unless ``host`` says
        otherwise. ``trusted``: addresses that ask for many others, such as a proxy."""
        limits = limits or ServerLimits()
        self.connections = ClientConnections(limits, trusted)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Named as TCP, or asyncio leaves Nagle's algorithm on, which costs 40 ms an answer.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise BadInput(
                f"the web page cannot be served on {host}, port {port}: {error}. Choose another "
                "port; 0 takes any that is free"
            ) from error
        self.host, self.port = host, int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=partial(  # type: ignore[arg-type]
                BoundedHttp, limits=limits, connections=self.connections
            ),
            backlog=BACKLOG,
            ws="none",
            lifespan="on",
            timeout_keep_alive=limits.idle_timeout_s,  # type: ignore[arg-type]
            timeout_graceful_shutdown=int(STOP_S),
        )
        self._app, self._server = app, _ReadyServer(config)
        self._thread = threading.Thread(target=self._serve, name="web", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> Self:
        """Returns once pages are served."""
        self._thread.start()
        if not self._server.ready.wait(START_S) or not self._thread.is_alive():
            raise BadInput("the web page could not be started; the log says why")
        return self

    def close(self) -> None:
        self._app.state.web.closing = True
        self._server.should_exit = True
        self._thread.join(2 * STOP_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.ready.set()


class _ReadyServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, BoundedHttp)
                connection.sweep(now)
        return await super().on_tick(counter)
