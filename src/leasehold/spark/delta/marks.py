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
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction
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


@dataclass(slots=True)
class MarkReader:
    url: str
    options: Mapping[str, str]
    _known: tuple[str, int, Mapping[str, int]] = field(default=("", -1, {}))
    """The table, the version of it, and its marks as of then."""

    def read(self, table: DeltaTable) -> Mapping[str, int]:
        """By id, as of the table's version. Raises ``OSError`` where the log cannot be read."""
        of, version = str(table.metadata().id), table.version()
        known, at, marks = self._known
        if known != of or at > version:
            at, marks = -1, {}
        files = files_of(self.url, self.options)
        try:
            if at < 0:
                raise FileNotFoundError
            found = dict(marks) | self._commits(files, at + 1, version)
        except FileNotFoundError:  # not known yet, or removed since the last look
            at, found = self._checkpoint(files, version)
            found |= self._commits(files, at + 1, version)
        self._known = (of, version, found)
        return found

    def _commits(self, files: FileSystem, first: int, last: int) -> dict[str, int]:
        """What the commits from ``first`` to ``last`` say."""
        found: dict[str, int] = {}
        paths = [f"{LOG}/{version:020d}.json" for version in range(first, last + 1)]
        if len(paths) < 2:
            texts = [_read(files, path) for path in paths]
        else:
            with ThreadPoolExecutor(min(READERS, len(paths))) as threads:
                texts = list(threads.map(lambda path: _read(files, path), paths))
        for text in texts:
            found |= _told(text)
        return found

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


def _told(text: bytes) -> dict[str, int]:
    actions = (strict_json.loads(line) for line in text.splitlines() if b'"txn"' in line)
    return {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}


def _read(files: FileSystem, path: str) -> bytes:
    with files.open_input_stream(path) as source:
        return bytes(source.read())
