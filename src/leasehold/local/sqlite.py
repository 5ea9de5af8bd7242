"""A SQLite file that processes share: what holds for any, and a feed's own file with its
connections, and what can be wrong with it."""

from __future__ import annotations

import os
import secrets
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from leasehold.errors import BadInput, FeedUnavailable, NewerVersion

BUSY_TIMEOUT_S = 60.0
WAL_BYTES = 16 << 20
PAGE_BYTES = 4096
SHRINK_PAGES = 1024
PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CONSTRAINT,
)
"""Errors that say nothing about the connection."""


def code_of(error: sqlite3.Error) -> int | None:
    """The primary result code: extended codes keep it in their low byte."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def identity(path: Path) -> tuple[int, int]:
    """Another one where a file of the same name was put in its place."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All statements inside, or none. It waits for other writers first, not in the middle."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def give_back(db: sqlite3.Connection) -> bool:
    """Some free pages to the file system, so that other writers get in; whether there are more.

    Only a file made with ``auto_vacuum=INCREMENTAL`` gives any."""
    # As a script, because execute() stops after the first page.
    db.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")
    ((incremental,),) = db.execute("PRAGMA auto_vacuum")
    ((free,),) = db.execute("PRAGMA freelist_count")
    return bool(incremental == 2 and free)


class Kind(NamedTuple):
    """What a file holds. Its settings are one row of the table that ``noun`` names."""

    noun: str
    application_id: int
    format: int
    queries: Mapping[str, str]
    """Among them ``create``, and ``to_2`` and so on: what makes a file of the format before it one
    of that format."""

    @property
    def how(self) -> str:
        return f"make one with {self.noun.capitalize()}.create"


def create_file(path: Path, kind: Kind, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Build the file aside and link it into place: it appears whole, and only once."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    with explained(path, kind):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(unfinished, isolation_level=None)) as db:
                db.execute(f"PRAGMA page_size={PAGE_BYTES}")
                db.execute("PRAGMA auto_vacuum=INCREMENTAL")
                db.executescript("BEGIN;" + kind.queries["create"])
                fill(db)
                db.execute(f"PRAGMA application_id={kind.application_id}")
                db.execute(f"PRAGMA user_version={kind.format}")
                db.execute("COMMIT")
                db.execute("PRAGMA journal_mode=WAL")
            os.link(unfinished, path)
        except FileExistsError:
            raise BadInput(f"{path} exists already; open it, or choose another path") from None
        finally:
            unfinished.unlink(missing_ok=True)


class Connections:
    """Safe for threads and processes: one writer at a time, and readers never wait.

    What was committed survives the death of the process; with ``fsync`` that of the machine, too.
    A file of an older format is brought up to date here.
    """

    def __init__(self, path: Path, kind: Kind, *, fsync: bool) -> None:
        self._path = path
        self._kind = kind
        self._fsync = fsync
        self._readers: list[sqlite3.Connection] = []
        self._writers: list[sqlite3.Connection] = []
        self._start_afresh()
        with explained(path, kind):
            self._file = identity(path)
            _require_whole(path, kind)
        with self.reading() as db:
            version = _require_kind(db, path, kind)
        if version < kind.format:
            with self.writing() as db:
                _upgrade(db, kind)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One view of the file for all statements inside."""
        self._prepare()
        with explained(self._path, self._kind), self._borrowed(self._readers) as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:  # SQLite may have ended it, and told why
                    db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All statements inside, or none."""
        self._prepare()
        with (
            explained(self._path, self._kind),
            self._turn,
            self._borrowed(self._writers) as db,
            transaction(db),
        ):
            yield db

    def shrink(self) -> None:
        """Give free pages back to the file system, some at a time so that writers get in."""
        self._prepare()
        with explained(self._path, self._kind), self._turn, self._borrowed(self._writers) as db:
            while give_back(db):
                pass

    def close(self) -> None:
        self._closed = True
        self._let_go_idle()

    def _prepare(self) -> None:
        if self._pid != os.getpid():
            self._start_afresh()
        if self._closed:
            raise BadInput(f"the {self._kind.noun} {self._path} was closed; open it again")
        self._require_same_file()

    @contextmanager
    def _borrowed(self, idle: list[sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
        try:
            db = idle.pop()
        except IndexError:
            db = self._connect()
        sound = True
        try:
            yield db
        except sqlite3.Error as error:
            sound = code_of(error) in PASSING
            raise
        finally:
            if not sound:
                # What is known of the file may be wrong, and all connections share that: an older
                # copy may have been written over it.
                self._let_go_idle()
            if sound and not self._closed:
                idle.append(db)
            else:
                db.close()

    def _let_go_idle(self) -> None:
        for idle in (self._readers, self._writers):
            while idle:
                idle.pop().close()

    def _start_afresh(self) -> None:
        """A child process must neither use nor close its parent's connections: keep them aside."""
        self._inherited = self._readers + self._writers
        self._readers, self._writers = [], []
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    def _require_same_file(self) -> None:
        """A file that was removed can still be written to, and all of it would be lost."""
        try:
            found = identity(self._path)
        except FileNotFoundError:
            raise BadInput(
                f"the {self._kind.noun} {self._path} was removed while it was open"
            ) from None
        if found != self._file:
            raise BadInput(f"the {self._kind.noun} {self._path} was recreated; open it again")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_TIMEOUT_S,
            factory=NumberedConnection,
        )
        for pragma in (
            f"synchronous={'FULL' if self._fsync else 'NORMAL'}",
            f"wal_autocheckpoint={WAL_BYTES // PAGE_BYTES}",
            f"journal_size_limit={WAL_BYTES}",
            "cache_size=-16000",
            "secure_delete=OFF",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        return db


Mark = tuple[int, int]
_numbers = count(1)


class NumberedConnection(sqlite3.Connection):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.number = next(_numbers)


def mark_of(db: sqlite3.Connection) -> Mark:
    """Differs from an earlier one if anything was committed since, or if that was another
    connection's: SQLite counts for each of them."""
    assert isinstance(db, NumberedConnection)
    return db.number, int(db.execute("PRAGMA data_version").fetchone()[0])


@contextmanager
def explained(path: Path, kind: Kind) -> Iterator[None]:
    """Turn SQLite's and the system's errors into ours."""
    file = f"the {kind.noun} {path}"
    try:
        yield
    except sqlite3.Error as error:
        code = code_of(error)
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise FeedUnavailable(
                f"{file} could not be written or read ({error}); nothing of this call was "
                "stored. See that its disk has room, then try again"
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise FeedUnavailable(
                f"{file} was kept busy by another process for {BUSY_TIMEOUT_S:.0f} s"
            ) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise BadInput(f"{path} is damaged or not a {kind.noun}: {error}") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise BadInput(f"{path} cannot be opened for writing: {error}") from error
        raise
    except FileNotFoundError as error:
        raise BadInput(f"there is no {kind.noun} at {path}; {kind.how}") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be used as a {kind.noun}: {error}") from error


def _require_kind(db: sqlite3.Connection, path: Path, kind: Kind) -> int:
    """The format that the file has."""
    if db.execute("PRAGMA application_id").fetchone()[0] != kind.application_id:
        raise BadInput(f"{path} is not a {kind.noun}; {kind.how}, at another path")
    file, version = f"the {kind.noun} {path}", _format_of(db)
    if version > kind.format:
        raise NewerVersion(
            f"{file} has format {version}; this Leasehold knows {kind.format}: upgrade it"
        )
    if version < 1:
        raise BadInput(f"{file} has format {version}, which no Leasehold ever wrote")
    if db.execute(f"SELECT count(*) FROM {kind.noun}").fetchone()[0] != 1:
        raise BadInput(f"{file} is damaged: its settings are missing")
    return version


def _format_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _upgrade(db: sqlite3.Connection, kind: Kind) -> None:
    for version in range(_format_of(db), kind.format):  # maybe none: another process was faster
        for statement in kind.queries[f"to_{version + 1}"].split(";"):
            db.execute(statement)
    db.execute(f"PRAGMA user_version={kind.format}")


def _require_whole(path: Path, kind: Kind) -> None:
    """SQLite notices a cut-off file only when it needs a page that is missing."""
    with open(path, "rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise BadInput(f"{path} is not a {kind.noun}; {kind.how}, at another path")
    wal = Path(f"{path}-wal")
    if wal.exists() and wal.stat().st_size > 0:
        return
    page_bytes, pages = struct.unpack(">H", header[16:18])[0], struct.unpack(">I", header[28:32])[0]
    expected, found = pages * (65536 if page_bytes == 1 else page_bytes), path.stat().st_size
    if found < expected:
        raise BadInput(f"the {kind.noun} {path} is cut off: {found} of {expected} bytes are there")
