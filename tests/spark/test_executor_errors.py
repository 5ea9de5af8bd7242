"""What was raised in an executor is known by its class, wherever that class is kept."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from leasehold.errors import BadInput, FeedUnavailable, MissingExtra, StoreUnavailable
from leasehold.spark.delta.files import StorageTrouble
from leasehold.spark.executor_errors import raised_in_executor
from leasehold.spark.processor import _trouble

KINDS = (StorageTrouble, FeedUnavailable, StoreUnavailable, BadInput)


def fails_with(spark: SparkSession, error: Exception, cause: Exception | None = None) -> Exception:
    """What the driver gets when an executor raises this."""

    def work(_: Iterator[pa.RecordBatch]) -> Any:
        raise error from cause

    with pytest.raises(PythonException) as found:
        spark.range(1).mapInArrow(work, "id long").collect()
    return found.value


@pytest.mark.parametrize("kind", [StorageTrouble, MissingExtra])
def test_an_executor_s_error_is_known_by_its_class(
    spark: SparkSession, kind: type[Exception]
) -> None:
    told = fails_with(spark, kind("no room\nleft"), OSError("28"))
    assert raised_in_executor(told, KINDS) == (kind, "no room")


def test_an_error_of_the_user_s_is_none_of_ours(spark: SparkSession) -> None:
    told = fails_with(
        spark, ValueError(f"not a {StorageTrouble.__module__}.StorageTrouble: at all")
    )
    assert raised_in_executor(told, KINDS) is None


def test_a_class_that_moves_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Traceback (most recent):\n  File …\nelsewhere.StorageTrouble: disk full\n\tat java"
    assert raised_in_executor(RuntimeError(text), KINDS) is None
    monkeypatch.setattr(StorageTrouble, "__module__", "elsewhere")
    assert raised_in_executor(RuntimeError(text), KINDS) == (StorageTrouble, "disk full")


def test_of_errors_raised_one_from_another_the_last_counts() -> None:
    text = "leasehold.errors.FeedUnavailable: a\n\nThe above …\n\nleasehold.errors.BadInput"
    assert raised_in_executor(RuntimeError(text), KINDS) == (BadInput, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BadInput("column x is not there"), "an executor met BadInput: column x is not there"),
        (ModuleNotFoundError("No module named 'x'"), "ModuleNotFoundError: No module named 'x'"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (ValueError("ImportError: is only text here"), None),
    ],
)
def test_what_is_the_same_for_every_event_blames_none(
    spark: SparkSession, error: Exception, said: str | None
) -> None:
    found = _trouble(fails_with(spark, error))
    assert found is None if said is None else said in str(found)


def test_trouble_met_in_the_driver_blames_no_event_either() -> None:
    assert _trouble(BadInput("no such column")) == "BadInput: no such column"
    assert _trouble(RuntimeError("java.io.IOException: No space left on device")) is not None
    assert _trouble(ValueError("bad event")) is None
