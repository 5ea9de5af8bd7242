"""How far a Delta table has each partition of a feed: the application transactions in its log.

Each is an id with a number:

- ``…/partition``: the next sequence; everything before it is in the table;
- ``…/partition/rewinding``: above 0 while a rewind is under way, and nobody may write. It is the
  number of that rewind; once it is finished, the same below 0;
- ``…/partition/history``: which history of the feed the next sequence is of (``history``).

``deltalake`` searches the whole log for each id. Here all of them are read at once, and from then
on only what new commits say.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote, unquote

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from leasehold.core import strict_json
from leasehold.core.model import Group
from leasehold.ports import SinkMark
from leasehold.sinks import UNKNOWN, writer_of

LOG = "_delta_log"
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(\w+)")
READERS = 8
OURS = "leasehold"
COMMIT = "leasehold_commit"
"""Under which name a commit of ours says which one it is."""


@dataclass(frozen=True, slots=True)
class Ids:
    """The application ids of one partition of a group."""

    writer: str
    """The feed and the group that rows are of, whatever the partition."""
    done: str
    rewinding: str
    history: str

    @classmethod
    def of(cls, group: Group, identity: str, partition: str) -> Ids:
        writer = writer_of(group, identity)
        id = f"{OURS}/{writer}/{quote(partition, safe='')}"
        return cls(writer, id, f"{id}/rewinding", f"{id}/history")

    def mark(self, marks: Mapping[str, int]) -> SinkMark:
        return SinkMark(
            next_sequence=marks.get(self.done, 0),
            history=marks.get(self.history, UNKNOWN),
            rewind=marks.get(self.rewinding, 0),
        )


def partitions_of(marks: Mapping[str, int], writer: str) -> list[str]:
    """What the table has, or is about to have again, of a feed and group."""
    ours = f"{OURS}/{writer}/"
    found = (id.removeprefix(ours).partition("/")[0] for id in marks if id.startswith(ours))
    return [unquote(partition) for partition in dict.fromkeys(found)]


def writers_of(marks: Mapping[str, int], partition: str) -> set[str]:
    """Every feed and group that the table has anything of, in a partition of that name."""
    found = (id.split("/") for id in marks)
    return {
        "/".join(names[1:5])
        for names in found
        if len(names) == 6 and names[0] == OURS and unquote(names[5]) == partition
    }


def mark(id: str, number: int) -> Transaction:
    """With its time: other writers may drop what has none as too old."""
    return Transaction(id, number, time.time_ns() // 1_000_000)


def files_of(url: str, options: Mapping[str, str]) -> FileSystem:
    """The files of a table, for Arrow.

    Of a local folder with Arrow's own: a file of ``deltalake``'s, which is Python's, that
    Arrow lets go while the process ends takes it down with an abort."""
    if "://" in url:
        return PyFileSystem(DeltaStorageHandler(url, dict(options)))
    return SubTreeFileSystem(url, LocalFileSystem())


class TableReplaced(OSError):
    """The log is not the one that was read before: the table was removed and made again, or an
    older copy of it was restored. Or so much of it was tidied up that nobody can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    version: int
    marks: Mapping[str, int]
    """As of that version."""
    digest: bytes | None
    """Of the commit of that version; None: it was tidied up already."""


@dataclass(slots=True)
class MarkReader:
    """Of one table. When another one takes its place, begin with another reader."""

    url: str
    options: Mapping[str, str]
    idle: list[DeltaTable] = field(default_factory=list)
    """Opened by writes that are over: to bring one up to date is quicker than to open it."""
    _known: _Known | None = None
    _last: str = ""
    """What tells the last commit that was made by way of this reader."""

    def read(self, table: DeltaTable) -> Mapping[str, int]:
        """By id, as of the table's version. Raises ``TableReplaced`` where the log is not the one
        that was read before, and ``OSError`` where it cannot be read.

        A table that was brought up to date does not notice: it goes on with whatever log is there.
        """
        # Not by the table's id: it may change within one log, as if two make the table at once.
        version, known = table.version(), self._known
        files = files_of(self.url, self.options)
        if known is None:
            return self._learn(version, *self._all(files, version))
        try:
            texts = self._commits(files, known.version + 1, version)
        except FileNotFoundError as error:  # removed since the last look
            raise self._replaced(str(error)) from error
        # A commit of one's own among them tells as much as the last one that was read before.
        if not self._last or not any(self._last.encode() in text for text in texts):
            self._require(files, known)
        if version < known.version:  # another thread has seen more
            return self._all(files, version)[0]
        if not texts:
            return known.marks
        return self._learn(version, dict(known.marks) | _told_by(texts), texts[-1])

    def require_same(self) -> None:
        """One small request. Raises as ``read`` does."""
        known = self._known
        if known is not None and known.digest is not None:
            self._require(files_of(self.url, self.options), known)

    def properties_of_commit(self, marks: Sequence[Transaction]) -> CommitProperties:
        """Those of a commit that is about to be made, by which it is known again."""
        self._last = secrets.token_hex(16)
        named = {COMMIT: self._last}
        return CommitProperties(app_transactions=list(marks), custom_metadata=named)

    def _require(self, files: FileSystem, known: _Known) -> None:
        try:
            found = _digest(_read(files, _path(known.version)))
        except FileNotFoundError as error:
            raise self._replaced(str(error)) from error
        if found != known.digest:
            raise self._replaced(f"its commit {known.version} is another one")

    def _replaced(self, why: str) -> TableReplaced:
        return TableReplaced(f"{self.url} is not the table that was read before: {why}")

    def _learn(
        self, version: int, marks: Mapping[str, int], newest: bytes | None
    ) -> Mapping[str, int]:
        digest = None if newest is None else _digest(newest)
        self._known = _Known(version=version, marks=marks, digest=digest)
        return marks

    def _all(self, files: FileSystem, version: int) -> tuple[Mapping[str, int], bytes | None]:
        """Without knowing anything; and the commit of that version."""
        at, marks = self._checkpoint(files, version)
        texts = self._commits(files, at + 1, version)
        if texts:
            return marks | _told_by(texts), texts[-1]
        try:
            return marks, _read(files, _path(version))
        except FileNotFoundError:  # only the checkpoint is kept
            return marks, None

    def _commits(self, files: FileSystem, first: int, last: int) -> list[bytes]:
        """What the commits from ``first`` to ``last`` say."""
        paths = [_path(version) for version in range(first, last + 1)]
        if len(paths) < 2:
            return [_read(files, path) for path in paths]
        with ThreadPoolExecutor(min(READERS, len(paths))) as threads:
            return list(threads.map(lambda path: _read(files, path), paths))

    def _checkpoint(self, files: FileSystem, version: int) -> tuple[int, dict[str, int]]:
        """The newest state that is kept whole, up to this version; -1: there is none."""
        names = [info.base_name for info in files.get_file_info(FileSelector(LOG))]
        for at, paths in _checkpoints(names, version):
            found: dict[str, int] = {}
            for path in paths:
                found |= _of_checkpoint(files, f"{LOG}/{path}")
            return at, found
        return -1, {}


def _checkpoints(names: list[str], version: int) -> Iterator[tuple[int, list[str]]]:
    """The newest first: the files of each one that is complete."""
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        if (match := CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
            found[int(match[1]), int(match[3] or 1)].append(name)
    for (at, parts), paths in sorted(found.items(), reverse=True):
        if parts == 1:
            yield at, paths[:1]
        elif len(paths) == parts:
            yield at, paths


def _of_checkpoint(files: FileSystem, path: str) -> dict[str, int]:
    if path.endswith(".json"):
        return _told(_read(files, path))
    with files.open_input_file(path) as source:
        parquet = pq.ParquetFile(source)
        if "txn" not in parquet.schema_arrow.names:
            return {}
        rows = parquet.read(columns=["txn.appId", "txn.version"]).column("txn").drop_null()
    return {row["appId"]: row["version"] for row in rows.to_pylist() if row["appId"] is not None}


def _told_by(texts: Iterable[bytes]) -> dict[str, int]:
    return {id: number for text in texts for id, number in _told(text).items()}


def _told(text: bytes) -> dict[str, int]:
    actions = (strict_json.loads(line) for line in text.splitlines() if b'"txn"' in line)
    return {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}


def _path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _digest(commit: bytes) -> bytes:
    return sha256(commit).digest()


def _read(files: FileSystem, path: str) -> bytes:
    with files.open_input_stream(path) as source:
        return bytes(source.read())
