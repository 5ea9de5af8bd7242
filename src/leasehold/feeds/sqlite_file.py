"""A feed's own SQLite file: its connections and threads, and what can be wrong with it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from leasehold.errors import BadInput, FeedUnavailable, NewerVersion

BUSY_TIMEOUT_S = 60.0
WAL_BYTES = 16 << 20
PAGE_BYTES = 4096
SHRINK_PAGES = 1024
THREADS = 4
_Result = TypeVar("_Result")


class Kind(NamedTuple):
    """What a file holds. Its settings are one row of the table that ``noun`` names."""

    noun: str
    application_id: int
    format: int
    queries: Mapping[str, str]
    """Among them ``create``."""

    @property
    def how(self) -> str:
        return f"make one with {self.noun.capitalize()}.create"


def load_queries(name: str) -> dict[str, str]:
    """The statements of a ``.sql`` file of this package, by the name above each."""
    text = files("leasehold.feeds").joinpath(name).read_text("utf-8")
    named = r"^-- name: (\w+)\n(.*?)(?=^-- name:|\Z)"
    return dict(re.findall(named, text, re.MULTILINE | re.DOTALL))


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
    """

    def __init__(self, path: Path, kind: Kind, *, fsync: bool) -> None:
        self._path = path
        self._kind = kind
        self._fsync = fsync
        self._readers: list[sqlite3.Connection] = []
        self._writers: list[sqlite3.Connection] = []
        self._start_afresh()
        with explained(path, kind):
            status = os.stat(path)
            self._file = (status.st_dev, status.st_ino)
            _require_whole(path, kind)
        with self.reading() as db:
            _require_kind(db, path, kind)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One view of the file for all statements inside."""
        self._prepare()
        with explained(self._path, self._kind), self._borrowed(self._readers) as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All statements inside, or none."""
        self._prepare()
        with explained(self._path, self._kind), self._turn, self._borrowed(self._writers) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def shrink(self) -> None:
        """Give free pages back to the file system, some at a time so that writers get in."""
        self._prepare()
        with explained(self._path, self._kind), self._turn, self._borrowed(self._writers) as db:
            while db.execute("PRAGMA freelist_count").fetchone()[0]:
                # As a script, because execute() stops after the first page.
                db.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")

    def close(self) -> None:
        self._closed = True
        for idle in (self._readers, self._writers):
            while idle:
                idle.pop().close()

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
        try:
            yield db
        finally:
            if self._closed:
                db.close()
            else:
                idle.append(db)

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
            status = os.stat(self._path)
        except FileNotFoundError:
            raise BadInput(
                f"the {self._kind.noun} {self._path} was removed while it was open"
            ) from None
        if (status.st_dev, status.st_ino) != self._file:
            raise BadInput(f"the {self._kind.noun} {self._path} was made anew; open it again")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_TIMEOUT_S,
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


@contextmanager
def explained(path: Path, kind: Kind) -> Iterator[None]:
    """Turn SQLite's and the system's errors into ours."""
    file = f"the {kind.noun} {path}"
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
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


def _require_kind(db: sqlite3.Connection, path: Path, kind: Kind) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != kind.application_id:
        raise BadInput(f"{path} is not a {kind.noun}; {kind.how}, at another path")
    file, version = f"the {kind.noun} {path}", db.execute("PRAGMA user_version").fetchone()[0]
    if version > kind.format:
        raise NewerVersion(
            f"{file} has format {version}; this Leasehold knows {kind.format}: upgrade it"
        )
    if version != kind.format:
        raise BadInput(f"{file} has format {version}, which no Leasehold ever wrote")
    if db.execute(f"SELECT count(*) FROM {kind.noun}").fetchone()[0] != 1:
        raise BadInput(f"{file} is damaged: its settings are missing")


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


class Threads:
    """A feed's own threads, for its async methods; anew after a fork.

    Not the loop's default threads: handlers may be occupying all of those.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    async def run(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(THREADS, self._name)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool[1], call, *arguments)

    def close(self) -> None:
        if self._pool and self._pool[0] == os.getpid():
            self._pool[1].shutdown(wait=True)
