"""Serves the application from a thread, for programs that do other things, too."""

from __future__ import annotations

import socket
import threading
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leasehold.errors import BadInput

START_S = 30.0
STOP_S = 5.0
HEAD_BYTES_MAX = 16 << 10
TOO_LARGE = "the head of a request is too large"


class WebServer:
    def __init__(self, app: Any, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """``port`` 0 takes any that is free. Only this machine can ask, unless ``host`` says
        otherwise."""
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
            http=_Http,
            ws="none",
            lifespan="on",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(STOP_S),
        )
        self._app, self._server = app, _Server(config)
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


class _Http(HttpToolsProtocol):
    """Half as much work per request as the default, which however bounds what it takes in."""

    _unfinished_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        super().data_received(data)
        too_large = self._in_head and self._unfinished_bytes > HEAD_BYTES_MAX
        if too_large and not self.transport.is_closing():
            self.send_400_response(TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._in_head, self._unfinished_bytes = False, 0
        if len(self.url) + sum(len(n) + len(v) for n, v in self.headers) > HEAD_BYTES_MAX:
            raise ValueError(TOO_LARGE)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._unfinished_bytes = True, 0
        super().on_message_complete()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()
