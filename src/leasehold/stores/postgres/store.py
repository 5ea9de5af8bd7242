"""Leases in a PostgreSQL database, for instances on many machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leasehold.core.model import Lease
from leasehold.errors import StoreUnavailable
from leasehold.local.postgres import PostgresDatabase, PostgresTables, parse_url
from leasehold.local.sql import Rows, load_queries
from leasehold.ports import Renewed
from leasehold.settings import STORE_TIMEOUT_S
from leasehold.stores.sql import (
    SCHEMA_VERSION,
    Columns,
    SqlStore,
    columns_of,
)

LOCKED_TRIES = 16
"""Renewals must not wait long behind a request that waits for a locked row."""
PATIENT = frozenset({"checkpoint", "release", "rewind", "split"})
TABLES = PostgresTables(SCHEMA_VERSION, load_queries(__package__), LOCKED_TRIES, PATIENT)


class PostgresStore(SqlStore):
    def __init__(
        self, conninfo: str, *, schema: str = "leasehold", timeout_s: float = STORE_TIMEOUT_S
    ) -> None:
        super().__init__()
        self._database = PostgresDatabase(
            conninfo, TABLES, schema=schema, timeout_s=timeout_s, requests=self.requests
        )

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> PostgresStore:
        """A libpq URL; ``schema`` and ``timeout_s`` may stand among its query settings."""
        conninfo, settings = parse_url(url, settings)
        return cls(conninfo, **settings)

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        kept = (await super().renew(leases)).kept
        renewed = {(lease.group, lease.partition) for lease in kept}
        missed = [lease for lease in leases if (lease.group, lease.partition) not in renewed]
        if not missed:
            return Renewed(kept=kept)
        fields = ("owner", "epoch")
        found = await self._run("still_held", {}, columns_of(missed, fields), verb="renew")
        locked = StoreUnavailable(
            f"{self._database.place}: another transaction keeps rows of "
            f"{self._database.schema}.leasehold_leases locked; look for one that was left open"
        )
        return Renewed(kept=kept, unknown={row[3]: locked for row in found})

    async def close(self) -> None:
        await self._database.close()

    async def _run(
        self, query: str, values: Mapping[str, Any], rows: Columns | None = None, verb: str = ""
    ) -> Rows:
        return await self._database.run(verb or query, query, {**values, **(rows or {})})
