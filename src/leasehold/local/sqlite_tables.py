"""A SQLite file that all processes of one machine share, and what can be wrong with it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl, unquote

from leasehold.errors import BadInput, LeaseholdError, StoreUnavailable
from leasehold.local.sql import Rows, check_timeout, check_version
from leasehold.local.sqlite import code_of, give_back, identity, transaction
from leasehold.ports import Clock

SQLITE_NEEDED = (3, 38, 0)
_inherited: list[_Connection] = []
_Result = TypeVar("_Result")


def parse_url(url: str, *, example: str, contents: str) -> tuple[str, dict[str, float]]:
    """Path and settings of ``sqlite:///path?timeout_s=4``."""
    address, _, query = url.partition("://")[2].partition("?")
    path, settings = unquote(address[1:]), {}
    if not address.startswith("/") or not path:
        wanted = address.strip("/") or example
        raise BadInput(f"{url}: a path follows three slashes: sqlite:///{wanted}")
    if path == ":memory:":
        raise BadInput(f"{url}: for {contents} in this process only, use memory://")
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "timeout_s":
            raise BadInput(f"{url}: unknown setting {name!r}; a SQLite store has: timeout_s")
        settings[name] = check_timeout(value)
    return path, settings


class Tables(NamedTuple):
    """What a file holds, which may hold other tables, too."""

    version: int
    queries: Mapping[str, str]
    """Among them ``has_version``, ``version``, ``set_version`` and ``tables``."""
    pragmas: Sequence[str]
    """Set on each connection before anything else."""


class SqliteFile:
    """It is opened on first use, and again after a fork, a failure or a close."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tables: Tables,
        *,
        timeout_s: float,
        clock: Clock,
        requests: Counter[str],
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._timeout_s = check_timeout(timeout_s)

        self._new_connection = partial(
            _Connection, self.path, tables, self._timeout_s, clock, requests
        )
        self._connection = self._new_connection()

    async def run(self, verb: str, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """One statement, counted under ``verb``."""
        return await self._in_thread(lambda connection: connection.run(verb, sql, parameters))

    async def run_many(self, verb: str, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """One statement for each of many rows, all or none of them."""
        await self._in_thread(lambda connection: connection.run_many(verb, sql, rows))

    async def shrink(self) -> None:
        """Give free pages back, if the file was made with ``auto_vacuum = INCREMENTAL``."""
        while await self._in_thread(lambda connection: connection.shrink()):
            pass

    async def close(self) -> None:
        connection, self._connection = self._connection, self._new_connection()
        if connection.pid != os.getpid():
            _inherited.append(connection)  # to close it here would disturb the process that forked
            return
        closing = connection.thread.submit(connection.close)
        connection.thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))  # whoever gives up, it is closed
        connection.thread.shutdown()

    async def _in_thread(self, work: Callable[[_Connection], _Result]) -> _Result:
        if self._connection.pid != os.getpid():
            await self.close()
        future = self._submit(work)
        bound_s = 2 * self._timeout_s  # once for those before it, once for itself
        try:
            async with asyncio.timeout(bound_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self.path} has kept requests waiting for {bound_s:g} s: check the disk, and for "
                "a program that keeps a transaction open on it"
            ) from error

    def _submit(self, work: Callable[[_Connection], _Result]) -> Future[_Result]:
        while True:
            connection = self._connection
            try:
                return connection.thread.submit(work, connection)
            except RuntimeError:
                if connection is self._connection:
                    raise
                # Another thread closed it in this moment; there is a new one.


class _Connection:
    """The connection and the one thread that uses it; both are opened on first use."""

    def __init__(
        self,
        path: Path,
        tables: Tables,
        timeout_s: float,
        clock: Clock,
        requests: Counter[str],
    ) -> None:
        self.pid = os.getpid()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="leasehold-sqlite")
        self._path = path
        self._tables = tables
        self._timeout_s = timeout_s
        self._clock = clock
        self._requests = requests
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def run(self, verb: str, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with self._opened() as connection:
            return self._send(connection, verb, sql, parameters)

    def run_many(self, verb: str, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._opened() as connection, transaction(connection):
            self._requests[verb] += 1
            connection.executemany(sql, rows)

    def shrink(self) -> bool:
        """Whether there is more to give back."""
        with self._opened() as connection:
            return give_back(connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._connection is not None and self._identity != _identity(self._path):
                self.close()  # deleted or replaced: others already use what is there now
            if self._connection is None:
                self._connection = self._open()
                self._identity = _identity(self._path)
            yield self._connection
        except sqlite3.Error as error:
            if code_of(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT):
                self.close()
            self._fail(error)
        except (OverflowError, UnicodeError) as error:
            raise BadInput(f"{self._path} cannot hold this value: {error}") from error

    def _send(
        self,
        connection: sqlite3.Connection,
        verb: str,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
    ) -> Rows:
        self._requests[verb] += 1
        return connection.execute(sql, parameters or {}).fetchall()

    def _open(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < SQLITE_NEEDED:
            needed = ".".join(map(str, SQLITE_NEEDED))
            raise BadInput(
                f"this Python has SQLite {sqlite3.sqlite_version}, Leasehold needs {needed}: "
                "use a newer Python build"
            )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot make the folder of {self._path}: {error}") from error
        connection = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None)
        try:
            connection.create_function("monotonic", 0, self._clock.monotonic)
            connection.create_function("wall", 0, self._clock.wall)
            self._set_up_in_turn(connection)
        except (sqlite3.Error, LeaseholdError):
            connection.close()
            raise
        return connection

    def _set_up_in_turn(self, connection: sqlite3.Connection) -> None:
        # Going over to WAL does not wait for others as other statements do.
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._set_up(connection)
                return
            except sqlite3.OperationalError as error:
                if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        version, queries, pragmas = self._tables
        for pragma in (*pragmas, "journal_mode = WAL"):
            self._send(connection, "open", f"PRAGMA {pragma}")
        if not self._send(connection, "open", queries["has_version"]):
            self._make_tables(connection)
        ((found,),) = self._send(connection, "open", queries["version"])
        check_version(found, str(self._path), version)

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        version, queries, _ = self._tables
        with transaction(connection):
            if self._send(connection, "open", queries["has_version"]):
                return
            for statement in queries["tables"].split(";"):
                self._send(connection, "open", statement)
            self._send(connection, "open", queries["set_version"], {"version": version})

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        path, code = self._path, code_of(error)
        if code == sqlite3.SQLITE_BUSY:
            raise StoreUnavailable(
                f"{path} was locked by another process for {self._timeout_s:g} s. If this lasts, "
                "look for a program that keeps a transaction open on it, or raise timeout_s"
            ) from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreUnavailable(f"the disk of {path} is full: make room") from error
        if code == sqlite3.SQLITE_IOERR:
            raise StoreUnavailable(
                f"{path}: {error}. Check the disk and its free space; a network drive cannot "
                "hold this file"
            ) from error
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise BadInput(
                f"{path} is no intact SQLite file ({error}): give another path, or move it away"
            ) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
            code == sqlite3.SQLITE_CANTOPEN and not _may_write(path)
        ):
            raise BadInput(
                f"{path} cannot be written ({error}): it must be a file that this user may write, "
                "in a folder that this user may write"
            ) from error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
            raise BadInput(f"{path} cannot hold this value: {error}") from error
        raise StoreUnavailable(f"{path}: {error}") from error


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        return identity(path)
    except OSError:
        return None


def _may_write(path: Path) -> bool:
    if path.exists():
        return path.is_file() and os.access(path, os.R_OK | os.W_OK)
    return os.access(path.parent, os.W_OK | os.X_OK)
