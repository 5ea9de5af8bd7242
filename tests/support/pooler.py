"""A pooler in front of PostgreSQL that gives every transaction another connection.

PgBouncer does that in transaction mode while it is busy. What a session remembers is then never
where it is needed."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import psycopg

BACKENDS = 3
SSL_REQUEST, CANCEL_REQUEST = 80877103, 80877102
GREETED_WITH = ("server_version", "client_encoding", "standard_conforming_strings", "TimeZone")


@contextmanager
def pooler(url: str) -> Iterator[str]:
    """The URL to use instead."""
    pool: SimpleQueue[psycopg.Connection] = SimpleQueue()
    for _ in range(BACKENDS):
        pool.put(psycopg.connect(url, autocommit=True))
    greeting = _greeting(url)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server, url, pool, greeting), daemon=True).start()
        yield f"{url.rpartition('@')[0]}@127.0.0.1:{server.getsockname()[1]}/postgres"
        server.shutdown(socket.SHUT_RDWR)
    for _ in range(BACKENDS):
        pool.get(timeout=30).close()


def _serve(
    server: socket.socket, url: str, pool: SimpleQueue[psycopg.Connection], greeting: bytes
) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            threading.Thread(
                target=_client, args=(client, url, pool, greeting), daemon=True
            ).start()


def _client(
    client: socket.socket, url: str, pool: SimpleQueue[psycopg.Connection], greeting: bytes
) -> None:
    with client, suppress(OSError, EOFError):
        if not _wants_session(client):
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(greeting)
        while True:
            first = _asked(client)
            if first[0] == b"X":
                return
            session = pool.get()
            try:
                with _wire(session) as backend:
                    _transaction(client, backend, first)
            except BaseException:
                session.close()  # in mid-transaction: nobody else may have it
                session = psycopg.connect(url, autocommit=True)
                raise
            finally:
                pool.put(session)


@contextmanager
def _wire(session: psycopg.Connection) -> Iterator[socket.socket]:
    wire = socket.socket(fileno=session.fileno())
    wire.setblocking(True)
    try:
        yield wire
    finally:
        wire.detach()


def _wants_session(client: socket.socket) -> bool:
    while True:
        (size,) = struct.unpack("!i", _exactly(client, 4))
        (code,) = struct.unpack("!i", _exactly(client, size - 4)[:4])
        if code != SSL_REQUEST:
            return bool(code != CANCEL_REQUEST)
        client.sendall(b"N")


def _greeting(url: str) -> bytes:
    """In the server's place, with a key of our own: it is nobody's process number."""
    told = _message(b"R", struct.pack("!i", 0))
    with psycopg.connect(url) as session:
        for name in GREETED_WITH:
            value = session.info.parameter_status(name) or ""
            told += _message(b"S", f"{name}\0{value}\0".encode())
    return told + _message(b"K", struct.pack("!ii", 1, 1)) + _message(b"Z", b"I")


def _transaction(
    client: socket.socket, backend: socket.socket, sent: tuple[bytes, bytes] | None
) -> None:
    """All that comes until the server has answered everything and is in no transaction."""
    owed, complete = 0, True
    while True:
        if sent is not None:
            kind, whole = sent
            if kind == b"X":
                raise EOFError
            backend.sendall(whole)
            owed += kind in b"QS"  # a query, or the end of a pipeline: the server gets ready
            complete = kind in b"QS" or (complete and kind == b"H")
        ready, _, _ = select.select([client, backend], [], [])
        if backend in ready:
            kind, whole = _read(backend)
            client.sendall(whole)
            owed -= kind == b"Z"
            if kind == b"Z" and complete and not owed and whole.endswith(b"I"):
                return
        sent = _read(client) if client in ready else None


def _read(wire: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(wire, 5)
    return head[:1], head + _exactly(wire, struct.unpack("!i", head[1:])[0] - 4)


def _asked(client: socket.socket) -> tuple[bytes, bytes]:
    """The next message that is part of a transaction: a flush behind its end is not."""
    while (sent := _read(client))[0] == b"H":
        pass
    return sent


def _exactly(wire: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if not (more := wire.recv(count - len(found))):
            raise EOFError
        found += more
    return found


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body
