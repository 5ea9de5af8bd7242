"""A feed that lost its newest events, under a table that has them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from support.feed_files import ContainerFile, HubFile, copy, restore
from support.spark_pipeline import QUICK
from typer.testing import CliRunner

import leasehold as lh
from leasehold.cli import app
from leasehold.errors import SinkUnavailable
from leasehold.spark import DeltaSink, SparkBatch, SparkProcessor


def drain(
    spark: SparkSession,
    feed: Any,
    folder: Path,
    key: str,
    around: Callable[..., None] = lambda write, df, batch: write(df, batch),
) -> list[BaseException]:
    """Until all is in the table, or a partition is refused by it: what was told until then."""
    sink, told = DeltaSink(folder / "table", key=key), []

    def on_batch(df: DataFrame, batch: SparkBatch) -> None:
        around(sink.write, df, batch)

    def on_error(error: BaseException) -> None:
        told.append(error)
        if isinstance(error, SinkUnavailable):
            working.stop()

    working = SparkProcessor(
        spark,
        feed,
        group="activity",
        store=lh.open_store(f"sqlite:///{folder}/leases.db"),
        on_batch=on_batch,
        on_error=on_error,
        schema="letter string",
        **QUICK,
    )
    working.run(until_drained=True)
    return told


def letters(folder: Path) -> str:
    table = DeltaTable(str(folder / "table")).to_pyarrow_table()
    return "".join(sorted(table.column("letter").to_pylist()))


def obey(error: BaseException, path: Path, folder: Path) -> Any:
    """Run the command that the error names."""
    command = str(error)[str(error).index("leasehold rewind") :]
    words = shlex.split(command.replace("FEED", str(path)))[1:]
    words[words.index("STORE")] = f"sqlite:///{folder}/leases.db"
    return CliRunner().invoke(app, [*words, "--yes"])


@pytest.mark.parametrize("kind", [HubFile, ContainerFile])
def test_events_with_the_sequences_of_lost_ones_are_not_skipped(
    spark: SparkSession, tmp_path: Path, kind: type[HubFile]
) -> None:
    file, saved = kind(tmp_path), tmp_path / "saved.db"
    with file.create() as feed:
        file.send(feed, "abcde")
        assert drain(spark, feed, tmp_path, file.key) == []
        copy(file.path, saved)
        file.send(feed, "fghij")
        assert drain(spark, feed, tmp_path, file.key) == []
    restore(saved, file.path)
    with file.open() as feed:
        file.send(feed, "0123456")
        *_, refused = drain(spark, feed, tmp_path, file.key)
        assert isinstance(refused, SinkUnavailable), refused
        assert letters(tmp_path) == "abcdefghij", "nothing is skipped, nothing is written"
        result = obey(refused, file.path, tmp_path)
        assert result.exit_code == 0, result.output
        assert drain(spark, feed, tmp_path, file.key) == []
        assert letters(tmp_path) == "0123456abcde"
