"""Dead letters that executors put into a store which other machines share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from support.servers import Azurite

from leasehold.ports import LetterFilter
from leasehold.stores import open_dead_letters
from leasehold.testing.check_dead_letters import any_group, any_letter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("kind", ["postgres", "azure"])
def test_executors_put_letters_with_the_secret_of_their_own_environment(
    kind: str,
    postgres_url: str,
    azurite: Azurite,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    url = {
        "postgres": f"{postgres_url}?schema=from_spark",
        "azure": f"azure-blob://{azurite.account}/from-spark",
    }[kind]
    group, letters = any_group(), open_dead_letters(url)
    # The test's own Spark was started before: give its executors what a cluster would give them.
    secrets = {name: os.environ[name] for name in ("PGPASSWORD", "AZURE_STORAGE_CONNECTION_STRING")}

    def put(numbers: Iterable[int]) -> list[int]:
        async def main(mine: list[int]) -> None:
            await letters.put([any_letter(group, n) for n in mine])
            await letters.close()

        os.environ.update(secrets)
        mine = list(numbers)
        asyncio.run(main(mine))
        return [len(mine)]

    async def kept() -> list[int]:
        found = await letters.list(LetterFilter(group=group.name))
        await letters.close()
        return sorted(letter.sequence for letter in found)

    done = spark.sparkContext.parallelize(range(6), 2).mapPartitions(put).collect()
    assert done == [3, 3]
    assert asyncio.run(kept()) == list(range(6))
