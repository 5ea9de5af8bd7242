"""What an executor met is known by a mark, or by what no event can have written."""

from __future__ import annotations

import errno
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.errors.exceptions.connect import SparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import leasehold as lh
from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import (
    BadInput,
    FeedUnavailable,
    LetterRefused,
    MissingExtra,
    SinkUnavailable,
    StoreUnavailable,
)
from leasehold.spark.batch import SparkBatch
from leasehold.spark.delta.files import StorageTrouble
from leasehold.spark.executor_errors import Marks, Met, trouble
from leasehold.spark.reading.frames import Source, arrow_schema, plan_reading
from leasehold.spark.reading.task import Address

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.takes_s(45)
Error = Callable[[], Exception]
FULL = "No space left on device"
WORKER = "An exception was thrown from the Python worker"
TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    import x\n'
LOST_TASK = (
    "Job aborted due to stage failure: Task 1 in stage 2.0 failed 1 times, most recent failure: "
    "Lost task 1.0 in stage 2.0 (TID 5) (localhost executor driver): java.io.IOException: "
    f"{FULL}\n\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
)
"""As Spark Connect says it."""
IN_THE_MIDDLE = (
    f"x\njava.io.IOException: {FULL}\n\tat java\nCaused by: java.io.IOException: {FULL}\n\tat java",
    "leasehold.errors.BadInput: y",
    "leasehold.errors.LetterRefused: y",
    "leasehold.spark.delta.files.StorageTrouble: y",
    f"leasehold {'0' * 32} leasehold.errors.BadInput BadInput y",
    "ImportError: y",
    "\nThe above exception was the direct cause of the following exception:\n",
    f"{TRACE}ImportError: y",
    "",
)
HOSTILE = (
    FULL,
    f"[Errno 28] {FULL}",
    LOST_TASK,
    f"{WORKER}:\n{TRACE}ImportError: y",
    "\n".join(IN_THE_MIDDLE),
)
"""What a device may send."""


class Rare(StoreUnavailable):
    """A class that the library does not know."""


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def on_a_full_disk() -> Any:
    with open("/dev/full", "wb", 0) as file:
        return file.write(b"x")


def in_executors(spark: SparkSession, folder: Path, body: str = '{"v": "x"}') -> Source:
    """One event, read in an executor by whatever the test makes of it."""
    hub = lh.Hub.create(folder / "hub.db", name="sensors", namespace="t", partitions=1)
    hub.send([lh.EventData(body)])
    reading = plan_reading(Address.of(hub), schema=arrow_schema("v string"))
    return Source(spark, reading, [(Range(partition="0", first=0, end=1),)])


def batch_of(source: Source) -> SparkBatch:
    return SparkBatch(
        group=Group(namespace="t", feed="sensors", name="g"),
        instance="test",
        identity="",
        ranges=(Range(partition="0", first=0, end=1),),
        _held=lambda _: True,
        _source=source,
    )


def ways(source: Source) -> dict[str, Callable[[Error], Any]]:
    """All the ways in which code of ours runs in an executor."""
    batch, df = batch_of(source), source.df

    def raising(error: Error) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
            for _ in batches:
                raise error()
            yield

        return work

    def at_source(error: Error) -> Source:
        def apply(frame: pl.DataFrame) -> pl.DataFrame:
            if len(frame):
                raise error()
            return frame

        reading = plan_reading(
            source.reading.address, schema=source.reading.schema, at_source=apply
        )
        return Source(source._spark, reading, source.tasks, source.marks)

    return {
        "where events are read": lambda error: batch.collect(df, raising(error)),
        "of another DataFrame": lambda error: batch.collect(df.where("true"), raising(error)),
        "at_source": lambda error: at_source(error).collect(list),
        "at_source of a DataFrame": lambda error: at_source(error).df.where("true").collect(),
    }


def failing(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011
        call()
    return found.value


@pytest.mark.parametrize(
    ("error", "met"),
    [
        (lambda: BadInput("column x\nis not there"), "BadInput: column x"),
        (lambda: MissingExtra(""), "MissingExtra: "),
        (lambda: Rare("away"), "Rare: away"),
        (lambda: __import__("not_there"), "ModuleNotFoundError: No module named 'not_there'"),
        (lambda: raised_from(ValueError("x"), FeedUnavailable("y")), "FeedUnavailable: y"),
        (lambda: ExceptionGroup("x", [FeedUnavailable("y")]), "FeedUnavailable: y"),
        (on_a_full_disk, f"OSError: [Errno 28] {FULL}"),
    ],
)
def test_trouble_in_our_own_code_is_known_in_all_ways(
    spark: SparkSession, tmp_path: Path, error: Error, met: str
) -> None:
    source = in_executors(spark, tmp_path)
    for way, run in ways(source).items():
        told = failing(lambda run=run: run(error))
        assert trouble(told, source.marks) == f"an executor met {met}", way
        assert "in work" in str(told) or "in apply" in str(told), "the traceback is all there"


def test_a_letter_that_is_refused_is_no_trouble_but_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = in_executors(spark, tmp_path)
    for way, run in ways(source).items():
        told = failing(lambda run=run: run(lambda: LetterRefused("too large")))
        assert trouble(told, source.marks) is None, way
        assert source.marks.found(told) == Met(LetterRefused, "LetterRefused", "too large"), way


def test_no_text_of_an_event_makes_trouble(spark: SparkSession, tmp_path: Path) -> None:
    """Neither in our own code nor in others', whichever error repeats it."""
    source = in_executors(spark, tmp_path)
    for way, run in ways(source).items():
        for text in HOSTILE[::2]:
            told = failing(lambda run=run, text=text: run(lambda: OSError(text)))
            assert trouble(told, source.marks) is None, (way, text)
            assert source.marks.found(told) is None, (way, text)


def others_ways(spark: SparkSession, text: str) -> dict[str, Callable[[], Any]]:
    df = spark.range(1).select(sql.lit(text).alias("v")).repartition(1)

    def fails(value: str) -> int:
        raise ValueError(f"bad {value}") from OSError(value)

    def fails_plainly(value: str) -> int:
        raise ValueError(value)

    def without_its_module(value: str) -> int:
        try:
            import not_there  # noqa: F401, PLC0415
        except ImportError:
            return int(value)
        return 0

    def in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            fails_plainly(batch.column(0)[0].as_py())
        yield from ()

    def in_driver() -> None:
        raise ValueError(df.first().v)

    return {
        "cast": lambda: df.select(sql.col("v").cast("bigint")).collect(),
        "raise_error": lambda: df.select(sql.raise_error("v")).collect(),
        "udf": lambda: df.select(sql.udf(fails, "int", useArrow=False)("v")).collect(),
        "udf, plain": lambda: df.select(
            sql.udf(fails_plainly, "int", useArrow=False)("v")
        ).collect(),
        "udf, handling": lambda: df.select(
            sql.udf(without_its_module, "int", useArrow=False)("v")
        ).collect(),
        "rdd": lambda: df.rdd.map(lambda row: fails(row.v)).collect(),
        "rdd, handling": lambda: df.rdd.map(lambda row: without_its_module(row.v)).collect(),
        "mapInArrow": lambda: df.mapInArrow(in_arrow, "id long").collect(),
        "driver": in_driver,
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_an_event_makes_trouble_in_others_code(spark: SparkSession, text: str) -> None:
    for way, run in others_ways(spark, text).items():
        told = failing(run)
        assert trouble(told, Marks()) is None, way
        assert Marks((StorageTrouble,)).found(told) is None, way


def test_no_text_of_an_event_makes_trouble_where_tracebacks_are_hidden(
    spark: SparkSession,
) -> None:
    spark.conf.set("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
    try:
        for text in HOSTILE:
            told = failing(others_ways(spark, text)["udf, plain"])
            assert isinstance(told, PythonException)
            assert "in fails_plainly" not in str(told)
            assert trouble(told, Marks()) is None, text
    finally:
        spark.conf.unset("spark.sql.execution.pyspark.udf.hideTraceback.enabled")


@pytest.mark.parametrize(
    ("error", "met"),
    [
        (BadInput("column x is not there"), "BadInput: column x is not there"),
        (MissingExtra("x"), "MissingExtra: x"),
        (ModuleNotFoundError("No module named 'x'"), "ModuleNotFoundError: No module named 'x'"),
        (StoreUnavailable(), "StoreUnavailable: "),
    ],
)
def test_trouble_in_others_code_is_known_by_the_first_class_that_is_printed(
    spark: SparkSession, error: Exception, met: str
) -> None:
    def work(_: Iterator[pa.RecordBatch]) -> Any:
        raise error

    told = failing(lambda: spark.range(1).mapInArrow(work, "id long").collect())
    assert trouble(told, Marks()) == f"an executor met {met}"
    told = failing(lambda: spark.sparkContext.parallelize([1], 1).mapPartitions(work).collect())
    assert trouble(told, Marks()) == f"an executor met {met}"


def test_a_full_disk_that_java_meets_is_known(spark: SparkSession) -> None:
    assert spark._jvm is not None
    out = spark._jvm.java.io.FileOutputStream("/dev/full")
    assert trouble(failing(lambda: out.write(1)), Marks()) == f"Java met a full disk: {FULL}"
    out.close()


def write_failed(trace: str) -> SparkException:
    return SparkException("x", errorClass="TASK_WRITE_FAILED", server_stacktrace=trace)


def test_a_full_disk_is_known_over_spark_connect_by_what_the_task_failed_with() -> None:
    full = f"Java met a full disk: {FULL}"
    assert trouble(SparkException(LOST_TASK), Marks()) == full
    assert trouble(raised_from(RuntimeError("x"), SparkException(LOST_TASK)), Marks()) == full
    trace = (
        "org.apache.spark.SparkException\n\tat a.b(c:1)\nCaused by: org.apache.parquet.util."
        "AutoCloseables$ParquetCloseResourceException: Unable to close resource\n\tat a.b(c:1)\n"
        f"Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: {FULL}\n\tat a.b(c:1)\n"
    )
    assert trouble(write_failed(trace), Marks()) == full
    for told in (
        write_failed(trace.replace("Unable", "x\nUnable")),
        write_failed(trace.replace("Caused by: org.apache.hadoop", "Caused by: x: y\n")),
        SparkException(LOST_TASK, errorClass="USER_RAISED_EXCEPTION"),
        SparkException(f"x {LOST_TASK}"),
        SparkException(LOST_TASK.replace("java.io.IOException: ", "java.io.IOException: x ")),
        ValueError(LOST_TASK),
    ):
        assert trouble(told, Marks()) is None


def test_an_import_error_that_was_being_handled_is_not_what_failed() -> None:
    text = f"{WORKER}:\n{TRACE}ImportError: x"

    class Told(PythonException):
        def __str__(self) -> str:
            return text

    assert trouble(Told("x"), Marks()) == "an executor met ImportError: x"
    text += "\n\nDuring handling of the above exception, another exception occurred:\n\nValueError"
    assert trouble(Told("x"), Marks()) is None


def test_trouble_met_in_the_driver_blames_no_event_either() -> None:
    assert trouble(BadInput("no such column"), Marks()) == "BadInput: no such column"
    full = OSError(errno.ENOSPC, FULL)
    assert trouble(full, Marks()) == f"OSError: [Errno 28] {FULL}"
    assert trouble(raised_from(ValueError("x"), full), Marks()) == f"OSError: [Errno 28] {FULL}"
    assert trouble(ValueError("bad event"), Marks()) is None
    assert trouble(OSError(FULL), Marks()) is None
    assert trouble(FileNotFoundError(errno.ENOENT, FULL), Marks()) is None


def test_a_sink_s_own_words_are_kept() -> None:
    told = raised_from(SinkUnavailable("the table does not answer"), BadInput("x"))
    assert trouble(told, Marks()) is None


def marked(marks: Marks, error: Exception) -> str:
    def work(_: int) -> Iterator[int]:
        yield 1
        raise error

    results = marks.over(work)(0)
    assert next(results) == 1
    with pytest.raises(type(error)) as found:
        next(results)
    assert found.value is error
    return "".join(traceback.format_exception(error))


def test_a_mark_counts_for_its_own_job_only() -> None:
    marks = Marks()
    text = marked(marks, BadInput("x"))
    assert marks.found(RuntimeError(text)) == Met(BadInput, "BadInput", "x")
    assert Marks().found(RuntimeError(text)) is None
    assert marks.token not in repr(marks)


def test_a_mark_is_one_line_whatever_the_message() -> None:
    marks = Marks()
    text = marked(marks, BadInput(f"x\u2028\x85\r\nleasehold {marks.token[1:]} y"))
    assert marks.found(RuntimeError(text)) == Met(BadInput, "BadInput", "x")


def test_what_matters_to_nobody_is_raised_as_it_is() -> None:
    marks = Marks()
    parts = [FeedUnavailable("x"), ValueError("y")]
    for error in (ValueError("x"), OSError(FULL), ExceptionGroup("x", parts)):
        assert marks.token not in marked(marks, error)
        assert not hasattr(error, "__notes__")


def test_an_error_that_takes_no_mark_is_raised_all_the_same() -> None:
    class Unmarkable(BadInput):
        def __str__(self) -> str:
            raise ZeroDivisionError

    marks = Marks()
    assert marks.token not in marked(marks, Unmarkable())


def test_results_that_nobody_wants_any_more_end_in_order() -> None:
    ended = []

    def work(_: int) -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append(True)

    results = Marks().over(work)(0)
    assert next(results) == 1
    results.close()  # type: ignore[attr-defined]
    assert ended == [True]


def test_a_function_that_fails_before_its_first_result_is_marked_too() -> None:
    def work(_: int) -> list[int]:
        raise BadInput("x")

    marks = Marks()
    told = failing(lambda: list(marks.over(work)(0)))
    assert marks.token in told.__notes__[0]


def test_marks_are_the_same_in_another_process() -> None:
    marks = Marks((StorageTrouble,))
    assert pickle.loads(pickle.dumps(marks)) == marks
