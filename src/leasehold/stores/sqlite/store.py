"""Leases in a SQLite file, for all processes of one machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from leasehold.clock import SystemClock
from leasehold.errors import BadInput
from leasehold.local.sql import Rows, load_queries
from leasehold.local.sqlite_tables import SqliteFile, Tables, parse_url
from leasehold.ports import Clock
from leasehold.settings import STORE_TIMEOUT_S
from leasehold.stores.sql import SCHEMA_VERSION, Columns, SqlStore

QUERIES = load_queries(__package__)
# A write that returned survives the death of the process; what the death of the machine may undo
# are the last checkpoints, so that some events are handled once more.
TABLES = Tables(SCHEMA_VERSION, QUERIES, pragmas=("synchronous = NORMAL",))
FORMER_BOOT_S = 1e9
"""The age of a stamp from before the machine was last started."""
_NUL_IN_JSON = re.compile(r"(?<!\\)(\\\\)*\\u0000")


class SqliteStore(SqlStore):
    """Ages are by the machine's clock since it was started, which all users of the file share:
    setting the time changes nothing, time spent suspended counts, and a stamp ahead of it is from
    before the machine was started."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = STORE_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._file = SqliteFile(
            path,
            TABLES,
            timeout_s=timeout_s,
            clock=clock or SystemClock(),
            requests=self.requests,
        )
        self.path = self._file.path

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> SqliteStore:
        path, written = parse_url(url, example="data/leases.db", contents="leases")
        return cls(path, **{**written, **settings})

    async def _run(
        self, query: str, values: Mapping[str, Any], rows: Columns | None = None, verb: str = ""
    ) -> Rows:
        parameters = dict(values)
        _refuse_nul(any("\0" in value for value in values.values() if isinstance(value, str)))
        if rows is not None:
            parameters["rows"] = _json(rows)
        return await self._file.run(verb or query, QUERIES[query], parameters)

    async def close(self) -> None:
        await self._file.close()

    def _age(self, age_s: float) -> float:
        # No clock of one machine is set back but by a restart, which no owner outlives.
        return FORMER_BOOT_S if age_s < -1.0 else max(0.0, age_s)


def _json(rows: Columns) -> str:
    text = json.dumps(list(zip(*rows.values(), strict=True)), ensure_ascii=False)
    _refuse_nul(_NUL_IN_JSON.search(text) is not None)
    return text


def _refuse_nul(found: bool) -> None:
    # SQLite would end the text there, and two names could become one.
    if found:
        raise BadInput("a name or token holds a NUL character: leave it out")
