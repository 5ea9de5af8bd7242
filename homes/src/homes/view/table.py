"""The activity table as its readers see it: which files it has, what each new version added, and
the rows of one home, with everything passed over that cannot hold any.

New versions are read from the table's log itself, so that following costs a small file per commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from homes.domain.activity_row import HOUR_MINUTES, READ
from leasehold import SinkUnavailable, strict_json

BATCH_ROWS = 250_000
SCHEMA = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in READ.items()])


class Gone(SinkUnavailable):
    """What was to be read is not there any more, or was taken back: read all of it again."""


@dataclass(frozen=True, slots=True)
class File:
    path: str
    hour: int
    rows: int
    bounds: Mapping[str, tuple[Any, Any]]
    """Least and greatest by column, as far as the writer said."""

    def may_reach(self, home_id: str, since_minute: int, partition: str | None) -> bool:
        """Whether a home may have rows here, from a minute on: by folder, and by the bounds."""
        if self.hour < since_minute // HOUR_MINUTES:
            return False
        for name, value in (("home_id", home_id), ("partition", partition)):
            low, high = self.bounds.get(name, (None, None))
            if None not in (low, high, value) and not low <= value <= high:
                return False
        return True


@dataclass(frozen=True, slots=True)
class TableListing:
    """All files of one version."""

    identity: str
    version: int
    files: Sequence[File]


class ActivityTable:
    def __init__(
        self, url: str | Path, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        text = str(url)
        self.url = text if "://" in text else str(Path(text).resolve())
        self._options = dict(storage_options or {})
        self._files: FileSystem = (
            PyFileSystem(DeltaStorageHandler(self.url, self._options))
            if "://" in text
            else SubTreeFileSystem(self.url, LocalFileSystem())
        )

    def listing(self) -> TableListing | None:
        """The table as it is now; None: there is none yet."""
        try:
            table = DeltaTable(self.url, storage_options=self._options)
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            return TableListing(
                str(table.metadata().id), table.version(), [_of_action(each) for each in actions]
            )
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise SinkUnavailable(f"the table {self.url} cannot be read: {error}") from error

    def added_by(self, version: int) -> Sequence[File] | None:
        """The files that a version added; None: there is no such version yet.

        Compaction adds nothing. ``Gone``: the version took rows back.
        """
        try:
            with self._files.open_input_stream(f"_delta_log/{version:020d}.json") as log:
                text = log.read().decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SinkUnavailable(f"the log of {self.url} cannot be read: {error}") from error
        actions = [strict_json.loads(line) for line in text.splitlines() if line.strip()]
        if any(
            action["remove"].get("dataChange", True) for action in actions if "remove" in action
        ):
            raise Gone(f"version {version} of {self.url} took rows back")
        adds = [action["add"] for action in actions if "add" in action]
        return [_of_log(add) for add in adds if add.get("dataChange", True)]

    def rows(self, file: File) -> Iterator[pl.DataFrame]:
        """All of a file, in pieces."""
        try:
            with self._files.open_input_file(file.path) as source:
                parquet = pq.ParquetFile(source)
                for batch in parquet.iter_batches(BATCH_ROWS, columns=list(READ)):
                    frame = pl.from_arrow(batch)
                    assert isinstance(frame, pl.DataFrame)
                    yield frame
        except FileNotFoundError as error:
            raise Gone(f"{file.path} of {self.url} is not there any more") from error
        except OSError as error:
            raise SinkUnavailable(f"{file.path} of {self.url} cannot be read: {error}") from error

    def rows_of(self, home_id: str, since_minute: int, files: Sequence[File]) -> pl.DataFrame:
        """One home's rows, from a minute on, out of these files and of their row groups."""
        paths = [file.path for file in files]
        late, home = ds.field("minute") >= since_minute, ds.field("home_id")
        try:
            rows = ds.dataset(paths, SCHEMA, "parquet", self._files)
            try:
                found = rows.to_table(filter=(home == home_id) & late)
            except pa.ArrowNotImplementedError:
                # A rewind rewrites files with texts that Arrow cannot compare with the bounds of
                # row groups. Cast, they are compared row by row.
                found = rows.to_table(filter=(home.cast(pa.string()) == home_id) & late)
        except FileNotFoundError as error:
            raise Gone(f"{self.url}: {error}") from error
        except OSError as error:
            raise SinkUnavailable(f"{self.url} cannot be read: {error}") from error
        frame = pl.from_arrow(found)
        assert isinstance(frame, pl.DataFrame)
        return frame


def _of_action(row: Mapping[str, Any]) -> File:
    """From what the ``deltalake`` package says about a file."""
    bounds = {}
    for name, low in row.items():
        if name.startswith("min."):
            column = name.removeprefix("min.")
            bounds[column] = (low, row.get(f"max.{column}"))
    hour = row.get("partition.hour", row.get("hour"))
    return File(unquote(row["path"]), int(hour or 0), int(row["num_records"] or 0), bounds)


def _of_log(add: Mapping[str, Any]) -> File:
    stats = strict_json.loads(add.get("stats") or "{}")
    low, high = stats.get("minValues", {}), stats.get("maxValues", {})
    return File(
        unquote(add["path"]),
        int(add["partitionValues"]["hour"] or 0),
        int(stats.get("numRecords", 0)),
        {name: (low[name], high[name]) for name in low if name in high},
    )
