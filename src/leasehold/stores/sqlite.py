"""Leases in a SQLite file, for all processes of one machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote

from leasehold.clock import SystemClock
from leasehold.errors import BadInput, LeaseholdError, StoreUnavailable
from leasehold.ports import Clock
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

QUERIES = load_queries("sqlite.sql")
SQLITE_NEEDED = (3, 38, 0)
_NUL_IN_JSON = re.compile(r"(?<!\\)(\\\\)*\\u0000")
_inherited: list[_File] = []


class SqliteStore(SqlStore):
    """Ages are by the machine's monotonic clock, which all users of the file share: setting the
    time changes nothing, and a stamp ahead of it is from before the machine was started."""

    _slack_s = 1.0

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.path = Path(path).expanduser().absolute()
        self._timeout_s = check_timeout(timeout_s)
        self._clock = clock or SystemClock()
        self._file = self._new_file()

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> SqliteStore:
        address, _, query = url.partition("://")[2].partition("?")
        path = unquote(address[1:])
        if not address.startswith("/") or not path:
            wanted = address.strip("/") or "data/leases.db"
            raise BadInput(f"{url}: a path follows three slashes: sqlite:///{wanted}")
        if path == ":memory:":
            raise BadInput(f"{url}: for leases in this process only, use memory://")
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name != "timeout_s":
                raise BadInput(f"{url}: unknown setting {name!r}; a SQLite store has: timeout_s")
            settings.setdefault(name, check_timeout(value))
        return cls(path, **settings)

    async def _run(
        self, query: str, values: Mapping[str, Any], rows: Columns | None = None, verb: str = ""
    ) -> Rows:
        parameters = dict(values)
        _refuse_nul(any("\0" in value for value in values.values() if isinstance(value, str)))
        if rows is not None:
            parameters["rows"] = _json(rows)
        if self._file.pid != os.getpid():
            await self.close()
        file = self._file
        future = file.thread.submit(file.run, verb or query, QUERIES[query], parameters)
        bound_s = 2 * self._timeout_s  # once for those before it, once for itself
        try:
            async with asyncio.timeout(bound_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self.path} has kept requests waiting for {bound_s:g} s: check the disk, and for "
                "a program that keeps a transaction open on it"
            ) from error

    async def close(self) -> None:
        file, self._file = self._file, self._new_file()
        if file.pid != os.getpid():
            _inherited.append(file)  # to close it here would disturb the process that forked
            return
        closing = file.thread.submit(file.close)
        file.thread.shutdown(wait=False)
        await asyncio.wrap_future(closing)
        file.thread.shutdown()

    def _new_file(self) -> _File:
        return _File(self.path, self._timeout_s, self._clock, self.requests)


class _File:
    """The file and the one thread that uses it; both are opened on first use."""

    def __init__(self, path: Path, timeout_s: float, clock: Clock, requests: Counter[str]) -> None:
        self.pid = os.getpid()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="leasehold-sqlite")
        self._path = path
        self._timeout_s = timeout_s
        self._clock = clock
        self._requests = requests
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def run(self, verb: str, sql: str, parameters: Mapping[str, Any]) -> Rows:
        try:
            if self._connection is not None and self._identity != _identity(self._path):
                self.close()  # deleted or replaced: others already use what is there now
            if self._connection is None:
                self._connection = self._open()
                self._identity = _identity(self._path)
            return self._send(self._connection, verb, sql, parameters)
        except sqlite3.Error as error:
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT):
                self.close()
            self._fail(error)
        except (OverflowError, UnicodeError) as error:
            raise BadInput(f"{self._path} cannot hold this value: {error}") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

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
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        self._send(connection, "open", "PRAGMA journal_mode = WAL")
        # A write that returned survives the death of the process; what the death of the machine
        # may undo are the last checkpoints, so that some events are handled once more.
        self._send(connection, "open", "PRAGMA synchronous = NORMAL")
        if not self._send(connection, "open", QUERIES["has_version"]):
            self._make_tables(connection)
        ((found,),) = self._send(connection, "open", QUERIES["version"])
        check_version(found, str(self._path))

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        self._send(connection, "open", "BEGIN IMMEDIATE")
        try:
            if not self._send(connection, "open", QUERIES["has_version"]):
                for statement in QUERIES["tables"].split(";"):
                    self._send(connection, "open", statement)
                version = {"version": SCHEMA_VERSION}
                self._send(connection, "open", QUERIES["set_version"], version)
            self._send(connection, "open", "COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        path, code = self._path, _code(error)
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


def _code(error: sqlite3.Error) -> int | None:
    """The primary result code: extended codes keep it in their low byte."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _may_write(path: Path) -> bool:
    if path.exists():
        return path.is_file() and os.access(path, os.R_OK | os.W_OK)
    return os.access(path.parent, os.W_OK | os.X_OK)


def _json(rows: Columns) -> str:
    text = json.dumps(list(zip(*rows.values(), strict=True)), ensure_ascii=False)
    _refuse_nul(_NUL_IN_JSON.search(text) is not None)
    return text


def _refuse_nul(found: bool) -> None:
    # SQLite would end the text there, and two names could become one.
    if found:
        raise BadInput("a name or token holds a NUL character: leave it out")
