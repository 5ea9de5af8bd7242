"""Where every event has gone: what is in the aggregates, what is set aside."""

from __future__ import annotations

import asyncio

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from homes.local.places import Places
from leasehold import LetterFilter, SinkUnavailable, open_dead_letters


def aggregated(places: Places) -> int:
    """Events counted in the activity table."""
    try:
        # Not with Python's files, which an ending process must not let go of.
        files = None
        if not places.urls.table:
            files = SubTreeFileSystem(str(places.activity.resolve()), LocalFileSystem())
        table = DeltaTable(places.table).to_pyarrow_dataset(filesystem=files)
        # One by one: a day has more rows than memory should hold.
        batches = table.to_batches(columns=["events"])
        return sum(int(pc.sum(batch.column(0)).as_py() or 0) for batch in batches)
    except TableNotFoundError:
        return 0
    except (DeltaError, OSError) as error:
        raise SinkUnavailable(f"{places.table} cannot be read: {error}") from error


def dead(places: Places, group: str) -> int:
    """Its dead letters."""

    async def count() -> int:
        letters = open_dead_letters(places.dead_letters)
        try:
            return sum((await letters.count(LetterFilter(group=group))).values())
        finally:
            await letters.close()

    return asyncio.run(count())
