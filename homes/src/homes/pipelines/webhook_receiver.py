"""A small webhook receiver on loopback, for the demo and for tests."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from typing import Any, Self

from homes.pipelines.signature import HEADER, is_signed
from leasehold import strict_json

BODY_BYTES_MAX = 1 << 20
RECENT = 100
LENGTH = re.compile(r"[0-9]{1,20}")


class Receiver:
    """``with Receiver() as receiver: … receiver.url, receiver.count``

    ``status`` is what it answers: set it to 503 to see what happens while it is down. Calls that
    are not signed with ``secret`` get 401.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        secret: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``secret``: without one, it makes one up."""
        self.secret, self._clock = secret or token_urlsafe(32), clock
        self.status = 200
        self.posts = 0
        """All that arrived, also what was refused or came again."""
        self._ids: set[str] = set()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._lock = threading.Lock()
        self._server = _ReceiverServer((host, port), _handler(self))
        self.url = f"http://{host}:{self._server.server_address[1]}/alerts"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Distinct alerts."""
        return len(self._ids)

    @property
    def ids(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._ids)

    @property
    def recent(self) -> Sequence[dict[str, Any]]:
        """The newest alerts, newest last."""
        with self._lock:
            return list(self._recent)

    def take(self, body: bytes, key: str | None, signed: str) -> int:
        """The status to answer with."""
        with self._lock:
            self.posts += 1
            if self.status != 200:
                return self.status
            if not is_signed(self.secret, signed, body, now_s=self._clock()):
                return 401
            try:
                alert = strict_json.loads(body)
                id = alert["id"]
            except (ValueError, TypeError, KeyError, RecursionError):
                return 400
            if not key or not isinstance(id, str):
                return 400
            if id not in self._ids:
                self._ids.add(id)
                self._recent.append(alert)
            return 200

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ReceiverServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._connections: set[Any] = set()
        super().__init__(*arguments)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who goes away in the middle of a call leaves no stack trace behind."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Kept connections, too: their threads would go on answering."""
        super().server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not LENGTH.fullmatch(length) or int(length) > BODY_BYTES_MAX:
                self.close_connection = True
                self._answer(413 if LENGTH.fullmatch(length) else 411)
                return
            body = self.rfile.read(int(length))
            signed = self.headers.get(HEADER, "")
            self._answer(receiver.take(body, self.headers.get("Idempotency-Key"), signed))

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: every alert would be a line."""

    return Handler
