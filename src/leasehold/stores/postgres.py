"""Leases in a PostgreSQL database, for instances on many machines."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from leasehold.errors import BadInput, MissingExtra, StoreUnavailable
from leasehold.stores.sql import (
    SCHEMA_VERSION,
    TIMEOUT_S,
    Columns,
    Rows,
    SqlStore,
    check_timeout,
    check_version,
    load_queries,
)

try:
    import psycopg
    from psycopg import errors, pq
except ImportError as error:
    raise MissingExtra(
        f"PostgreSQL stores need psycopg ({error}): pip install 'leasehold[postgres]'"
    ) from error

T = TypeVar("T")
Connection = psycopg.AsyncConnection[tuple[Any, ...]]

QUERIES = load_queries("postgres.sql")
SERVER_NEEDED = 12
SECRETS = {"password", "sslpassword"}

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


class PostgresStore(SqlStore):
    """One connection for each event loop that uses the store, made on first use."""

    _slack_s = 5.0

    def __init__(
        self, conninfo: str, *, schema: str = "leasehold", timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__()
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise BadInput(
                f"schema must be up to 63 small letters, digits and _, no digit first and not "
                f"beginning with pg_; it is {schema!r}"
            )
        self._conninfo = conninfo
        self._place = _place(conninfo)
        self._schema = schema
        self._timeout_s = check_timeout(timeout_s)
        quoted = f'"{schema}"'
        self._queries = {
            name: query.replace("{schema}", quoted).encode() for name, query in QUERIES.items()
        }
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> PostgresStore:
        """A libpq URL; ``schema`` and ``timeout_s`` may stand among its query settings."""
        address, _, query = url.partition("?")
        given = parse_qsl(query, keep_blank_values=True)
        user, _, _ = address.partition("//")[2].rpartition("@")
        if ":" in user or SECRETS & {name.lower() for name, _ in given}:
            raise BadInput(
                "a PostgreSQL URL must not hold a password, for URLs are logged: set PGPASSWORD in "
                "the environment or use the pgpass file (write a : or @ inside a name as %3A, %40)"
            )
        for name, value in given:
            if name in ("schema", "timeout_s"):
                settings.setdefault(name, value if name == "schema" else check_timeout(value))
        others = [item for item in given if item[0] not in ("schema", "timeout_s")]
        if others:
            address += "?" + urlencode(others, quote_via=quote)
        return cls(address, **settings)

    async def _run(
        self, query: str, values: Mapping[str, Any], rows: Columns | None = None, verb: str = ""
    ) -> Rows:
        session, parameters = self._session(), {**values, **(rows or {})}
        await self._turn(session)
        try:
            if session.connection is None:
                session.connection = await self._open()
            sending = self._send(session.connection, verb or query, query, parameters)
            return await self._in_time(session.connection, sending)
        except (errors.DataError, UnicodeError, OverflowError) as error:
            raise BadInput(f"{self._place} cannot hold this value: {error}") from error
        except psycopg.Error as error:
            session.close()
            self._fail(error)
        except BaseException:  # cancelled, or out of time: its answer may still be on the way
            session.close()
            raise
        finally:
            session.lock.release()

    async def _turn(self, session: _Session) -> None:
        """Wait for the connection, but not while it fails for everybody else in turn."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await session.lock.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._place} has kept earlier requests waiting for {self._timeout_s:g} s"
            ) from error

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.close()

    def _session(self) -> _Session:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            for other in [other for other in self._sessions if other.is_closed()]:
                self._sessions.pop(other).close()
            self._sessions[loop] = _Session()
        return self._sessions[loop]

    async def _send(
        self, connection: Connection, verb: str, query: str, parameters: Mapping[str, Any]
    ) -> Rows:
        self.requests[verb] += 1
        cursor = await connection.execute(self._queries[query], parameters or None)
        return await cursor.fetchall() if cursor.description else ()

    async def _in_time(self, connection: Connection, work: Coroutine[Any, Any, T]) -> T:
        """Bound the work without psycopg's own cancelling, which asks a silent server for leave."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
            if task.done():
                return task.result()
            raise StoreUnavailable(
                f"{self._place} did not answer within {self._timeout_s:g} s. If this lasts, look "
                "for locks and load there, or raise timeout_s"
            )
        finally:
            if not task.done():
                _hang_up(connection)
                await asyncio.wait({task})
                task.exception()

    async def _open(self) -> Connection:
        connection = await self._connect()
        if connection is None:
            raise StoreUnavailable(
                f"{self._place} gave no connection within {self._timeout_s:g} s: check that it "
                "runs, and the network on the way to it"
            )
        try:
            await self._in_time(connection, self._set_up(connection))
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

    async def _connect(self) -> Connection | None:
        """None: not in time. An error raised from here would keep the half-made socket alive."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await psycopg.AsyncConnection.connect(
                    self._conninfo,
                    autocommit=True,
                    client_encoding="utf8",
                    fallback_application_name="leasehold",
                )
        except TimeoutError:
            return None
        except psycopg.Error as error:
            self._refused(error)

    async def _set_up(self, connection: Connection) -> None:
        if connection.info.server_version < SERVER_NEEDED * 10_000:
            raise BadInput(f"{self._place} is too old: Leasehold needs PostgreSQL {SERVER_NEEDED}")
        timeout = {"timeout_ms": str(round(self._timeout_s * 1000))}
        await self._send(connection, "open", "session", timeout)
        schema = {"schema": self._schema}
        if not await self._send(connection, "open", "has_version", schema):
            async with connection.transaction():
                await self._send(connection, "open", "lock", schema)
                if not await self._send(connection, "open", "has_version", schema):
                    await self._make_tables(connection)
        ((found,),) = await self._send(connection, "open", "version", {})
        check_version(found, f"{self._place}, schema {self._schema},")

    async def _make_tables(self, connection: Connection) -> None:
        if not await self._send(connection, "open", "has_schema", {"schema": self._schema}):
            await self._send(connection, "open", "make_schema", {})
        await self._send(connection, "open", "tables", {})
        await self._send(connection, "open", "set_version", {"version": SCHEMA_VERSION})

    def _refused(self, error: psycopg.Error) -> NoReturn:
        text = str(error)
        if error.pgconn is not None and error.pgconn.needs_password:
            raise BadInput(
                f"{self._place} wants a password: set PGPASSWORD or use the pgpass file"
            ) from error
        for pattern, remedy in _REFUSED.items():
            if re.search(pattern, text):
                raise BadInput(f"{self._place} refused: {text.strip()}. {remedy}") from error
        raise StoreUnavailable(f"{self._place} gave no connection: {text.strip()}") from error

    def _fail(self, error: psycopg.Error) -> NoReturn:
        if isinstance(error, errors.InsufficientPrivilege):
            raise BadInput(
                f"{self._place} refused: {error}. Grant this user CREATE on the database (to make "
                f"schema {self._schema}), or make the schema and grant CREATE and USAGE on it"
            ) from error
        if isinstance(error, errors.ProgramLimitExceeded):
            raise BadInput(f"{self._place} cannot hold this value: {error}") from error
        raise StoreUnavailable(f"{self._place} failed: {str(error).strip()}") from error


class _Session:
    """An event loop's connection; the lock lets one statement at a time use it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: Connection | None = None
        self._pid = os.getpid()

    def close(self) -> None:
        connection, self.connection = self.connection, None
        # After a fork this would say goodbye in the parent's name.
        if connection is not None and self._pid == os.getpid():
            connection.pgconn.finish()


def _hang_up(connection: Connection) -> None:
    """Make whoever waits on the connection fail at once."""
    if connection.pgconn.status == pq.ConnStatus.OK:
        wire = socket.socket(fileno=connection.pgconn.socket)
        try:
            wire.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        finally:
            wire.detach()


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
