"""A PostgreSQL database: its URL, one connection per event loop, its errors in our words.

Imported only for a postgresql URL.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from leasehold.errors import BadInput, MissingExtra, StoreUnavailable
from leasehold.local.sql import Rows, check_timeout, check_version, load_queries

try:
    import psycopg
    from psycopg import errors, pq
except ImportError as error:
    raise MissingExtra(
        f"PostgreSQL stores need psycopg ({error}): pip install 'leasehold[postgres]'"
    ) from error

T = TypeVar("T")

QUERIES = load_queries(__package__, "postgres.sql")
SERVER_NEEDED = 12
SECRETS = {"password", "sslpassword"}
OPEN_TRANSACTION = (pq.TransactionStatus.INERROR, pq.TransactionStatus.INTRANS)

# libpq gives no code for a refused connection, only the server's words. What is not recognised
# (a server that speaks another language) counts as passing, and is tried again.
_REFUSED = {
    r"password authentication failed": "Set the right password in PGPASSWORD or the pgpass file",
    r"no password supplied": "Set the password in PGPASSWORD or the pgpass file",
    r'database ".*" does not exist': "Create it with createdb, or correct the URL",
    r'role ".*" does not exist|not permitted to log in': "Correct the user in the URL",
    r"authentication failed": "Correct the user in the URL, or the server's pg_hba.conf",
    r"no pg_hba\.conf entry": "Allow this client in the server's pg_hba.conf, or use sslmode",
    r"permission denied for database": "Grant CONNECT on the database to this user",
    r"server does not support SSL": "Correct sslmode in the URL",
    r"certificate|invalid \w+ value|invalid port": "Correct the settings in the URL",
}


class PostgresConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._made_by = os.getpid()

    async def cancel_safe(self, **_: Any) -> None:
        """What psycopg does to a statement that was cancelled: not to ask a server that may be
        silent for leave."""
        self.hang_up()

    def hang_up(self) -> None:
        """Make whoever waits on it fail at once; after a fork, the parent's are none of ours."""
        if self._made_by == os.getpid() and self.pgconn.status == pq.ConnStatus.OK:
            wire = socket.socket(fileno=self.pgconn.socket)
            try:
                wire.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            finally:
                wire.detach()

    def finish(self) -> None:
        """After a fork this would say goodbye in the parent's name."""
        if self._made_by == os.getpid():
            self.pgconn.finish()


class PostgresTables(NamedTuple):
    """What a schema holds, which may hold other tables, too."""

    version: int
    queries: Mapping[str, str]
    """Among them ``has_version``, ``version``, ``set_version`` and ``tables``."""
    locked_tries: int
    """So many requests may wait in vain for a locked row within ``timeout_s``: they share one
    connection, and others wait behind them."""
    patient: frozenset[str] = frozenset()
    """The verbs that wait for locked rows. However many there are, the others wait for two of them
    at most."""


def parse_url(url: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A libpq URL without our settings, and those; ``settings`` overrule what the URL says."""
    address, _, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    user, _, _ = address.partition("//")[2].rpartition("@")
    if ":" in user or SECRETS & {name.lower() for name, _ in given}:
        raise BadInput(
            "a PostgreSQL URL must not hold a password, for URLs are logged: set PGPASSWORD in "
            "the environment or use the pgpass file (write a : or @ inside a name as %3A, %40)"
        )
    said: dict[str, Any] = {}
    for name, value in given:
        if name in ("schema", "timeout_s"):
            said.setdefault(name, value if name == "schema" else check_timeout(value))
    others = [item for item in given if item[0] not in ("schema", "timeout_s")]
    if others:
        address += "?" + urlencode(others, quote_via=quote)
    return address, {**said, **settings}


class PostgresDatabase:
    """One connection for each event loop that uses it, made on first use."""

    def __init__(
        self,
        conninfo: str,
        tables: PostgresTables,
        *,
        schema: str,
        timeout_s: float,
        requests: Counter[str],
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise BadInput(
                f"schema must be up to 63 small letters, digits and _, no digit first and not "
                f"beginning with pg_; it is {schema!r}"
            )
        self.conninfo = conninfo
        self.place = _place(conninfo)
        self.schema = schema
        self.timeout_s = check_timeout(timeout_s)
        self.queries = {
            name: query.replace("{schema}", f'"{schema}"').encode()
            for name, query in {**QUERIES, **tables.queries}.items()
        }
        self._tables = tables
        self._requests = requests
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self._pooled = False
        """Whether a pooler is between us and the server, such as PgBouncer. What is set for a
        session may then be set for others, and not for us."""

    async def run(self, verb: str, query: str, parameters: Mapping[str, Any]) -> Rows:
        """One statement, by its name, counted under ``verb``."""
        session = self._session()
        await self._turn(session, verb)
        try:
            if session.connection is None:
                session.connection = await self._open()
            sending = self._bounded if self._pooled else self._send
            work = sending(session.connection, verb, query, parameters)
            return await self._in_time(session.connection, work)
        except (errors.DataError, errors.NotNullViolation, UnicodeError, OverflowError) as error:
            raise BadInput(f"{self.place} cannot hold this value: {error}") from error
        except errors.LockNotAvailable as error:  # nothing is wrong with the connection
            raise StoreUnavailable(
                f"{self.place}: another transaction keeps a row of schema {self.schema} locked "
                f"that {verb} needs; look for one that was left open"
            ) from error
        except psycopg.Error as error:
            session.close()
            self._fail(error)
        except BaseException:  # cancelled, or out of time: its answer may still be on the way
            session.close()
            raise
        finally:
            if session.left:
                session.close()
            session.lock.release()

    async def _turn(self, session: _Session, verb: str) -> None:
        """Wait for the connection, but not while it fails for everybody else in turn."""
        patient = verb in self._tables.patient
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                session.patient if patient else nullcontext(),
            ):
                await session.lock.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self.place} has kept earlier requests waiting for {self.timeout_s:g} s"
            ) from error

    async def close(self) -> None:
        """What this loop uses, and what loops that are over have left: others are at work. Who
        waits for an answer here gets an error."""
        self._leave_closed_loops()
        if (session := self._sessions.pop(asyncio.get_running_loop(), None)) is not None:
            session.leave()

    def _session(self) -> _Session:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            self._leave_closed_loops()
            self._sessions[loop] = _Session()
        return self._sessions[loop]

    def _leave_closed_loops(self) -> None:
        for loop in [loop for loop in list(self._sessions) if loop.is_closed()]:
            if (session := self._sessions.pop(loop, None)) is not None:  # other threads may do so
                session.close()

    async def _send(
        self, connection: PostgresConnection, verb: str, query: str, parameters: Mapping[str, Any]
    ) -> Rows:
        self._requests[verb] += 1
        cursor = await connection.execute(self.queries[query], parameters or None)
        return await cursor.fetchall() if cursor.description else ()

    async def _bounded(
        self, connection: PostgresConnection, verb: str, query: str, parameters: Mapping[str, Any]
    ) -> Rows:
        """With its settings, as one transaction that goes there and back as one request."""
        self._requests[verb] += 1
        try:
            async with connection.pipeline():
                await connection.execute(self.queries["begin"])
                await connection.execute(self.queries["settings"], self._settings(local=True))
                cursor = await connection.execute(self.queries[query], parameters or None)
                await connection.execute(b"COMMIT")
        except Exception:  # also one of a value that cannot be sent, when it has begun already
            if connection.info.transaction_status in OPEN_TRANSACTION:
                await connection.execute(b"ROLLBACK")
            raise
        return await cursor.fetchall() if cursor.description else ()

    def _settings(self, *, local: bool) -> dict[str, Any]:
        return {
            "timeout_ms": str(math.ceil(self.timeout_s * 1000)),
            "lock_timeout_ms": str(math.ceil(self.timeout_s * 1000 / self._tables.locked_tries)),
            "local": local,
        }

    async def _in_time(self, connection: PostgresConnection, work: Coroutine[Any, Any, T]) -> T:
        """Bound the work without psycopg's own cancelling, which asks a silent server for leave."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self.timeout_s)
            if task.done():
                return task.result()
            raise StoreUnavailable(
                f"{self.place} did not answer within {self.timeout_s:g} s. If this lasts, look "
                "for locks and load there, or raise timeout_s"
            )
        finally:
            if not task.done():
                connection.hang_up()
                await _over(task)

    async def _open(self) -> PostgresConnection:
        connection = await self._connect()
        if connection is None:
            raise StoreUnavailable(
                f"{self.place} gave no connection within {self.timeout_s:g} s: check that it "
                "runs, and the network on the way to it"
            )
        try:
            await self._in_time(connection, self._set_up(connection))
        except BaseException:
            connection.finish()
            raise
        return connection

    async def _connect(self) -> PostgresConnection | None:
        """None: not in time. An error raised from here would keep the half-made socket alive."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await PostgresConnection.connect(
                    self.conninfo,
                    autocommit=True,
                    client_encoding="utf8",
                    fallback_application_name="leasehold",
                )
        except TimeoutError:
            return None
        except psycopg.Error as error:
            self._refused(error)

    async def _set_up(self, connection: PostgresConnection) -> None:
        if connection.info.server_version < SERVER_NEEDED * 10_000:
            raise BadInput(f"{self.place} is too old: Leasehold needs PostgreSQL {SERVER_NEEDED}")
        ((process,),) = await self._send(connection, "open", "process", {})
        self._pooled = process != connection.info.backend_pid
        if self._pooled:
            connection.prepare_threshold = None  # the next transaction may go elsewhere
        else:
            await self._send(connection, "open", "settings", self._settings(local=False))
        schema = {"schema": self.schema}
        if not await self._send(connection, "open", "has_version", schema):
            async with connection.transaction():
                await self._send(connection, "open", "lock", schema)
                if not await self._send(connection, "open", "has_version", schema):
                    await self._make_tables(connection)
        ((found,),) = await self._send(connection, "open", "version", {})
        check_version(found, f"{self.place}, schema {self.schema},", self._tables.version)

    async def _make_tables(self, connection: PostgresConnection) -> None:
        if not await self._send(connection, "open", "has_schema", {"schema": self.schema}):
            await self._send(connection, "open", "make_schema", {})
        await self._send(connection, "open", "tables", {})
        await self._send(connection, "open", "set_version", {"version": self._tables.version})

    def _refused(self, error: psycopg.Error) -> NoReturn:
        text = str(error)
        if error.pgconn is not None and error.pgconn.needs_password:
            raise BadInput(
                f"{self.place} wants a password: set PGPASSWORD or use the pgpass file"
            ) from error
        for pattern, remedy in _REFUSED.items():
            if re.search(pattern, text):
                raise BadInput(f"{self.place} refused: {text.strip()}. {remedy}") from error
        raise StoreUnavailable(f"{self.place} gave no connection: {text.strip()}") from error

    def _fail(self, error: psycopg.Error) -> NoReturn:
        if isinstance(error, errors.InsufficientPrivilege):
            raise BadInput(
                f"{self.place} refused: {error}. Grant this user CREATE on the database (to make "
                f"schema {self.schema}), or make the schema and grant CREATE and USAGE on it"
            ) from error
        if isinstance(error, errors.ProgramLimitExceeded):
            raise BadInput(f"{self.place} cannot hold this value: {error}") from error
        raise StoreUnavailable(f"{self.place} failed: {str(error).strip()}") from error


class _Session:
    """An event loop's connection; the lock lets one statement at a time use it. Its memory must not
    be given back while a statement is at work: psycopg would go on to read from it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.patient = asyncio.Lock()
        """One at a time of those that others must not wait for stands in the queue for it."""
        self.connection: PostgresConnection | None = None
        self.left = False

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.finish()

    def leave(self) -> None:
        """Close it, or make the statement that is at work fail: it closes it then."""
        self.left = True
        if not self.lock.locked():
            self.close()
        elif self.connection is not None:
            self.connection.hang_up()


async def _over(task: asyncio.Task[Any]) -> None:
    """Wait until it is, however often this is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()
    if cancelled is not None:
        raise cancelled


def _place(conninfo: str) -> str:
    """Where the database is, for messages: host, port and name, with libpq's own defaults."""
    try:
        given = pq.Conninfo.parse(conninfo.encode())
    except psycopg.Error as error:
        raise BadInput(
            f"this is no PostgreSQL URL ({str(error).strip()}); "
            "for example: postgresql://user@host:5432/database?schema=leasehold"
        ) from error
    wanted = ("host", "port", "user", "dbname")
    values = {
        option.keyword.decode(): option.val.decode()
        for options in (pq.Conninfo.get_defaults(), given)
        for option in options
        if option.val and option.keyword.decode() in wanted
    }
    host, port = values.get("host", "localhost"), values.get("port", "5432")
    return f"PostgreSQL at {host}:{port}, database {values.get('dbname') or values.get('user')}"
