"""What a Spark job met that blames no event.

Spark hands on what was raised in an executor as text, and quotes events in it: a cast that fails
repeats the value, and so do users' own errors. So text counts only where no event can have written
it: behind a token that events never see, or where Spark and Python print before any message.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, TypeVar

from pyspark.errors import PythonException

from leasehold.errors import (
    CAUSES_MAX,
    BadInput,
    FeedUnavailable,
    LetterRefused,
    SinkUnavailable,
    StoreUnavailable,
)

Given = TypeVar("Given")
Found = TypeVar("Found")
NAMED = (FeedUnavailable, StoreUnavailable, BadInput, ImportError)
TROUBLES = (*NAMED, OSError)
"""What blames no event, wherever it is raised: it would be the same for all others. Of ``OSError``,
here and in what follows, only a full disk."""
FULL = os.strerror(errno.ENOSPC)
WORKER = "An exception was thrown from the Python worker"
TO_FIRST_ERROR = re.compile(
    rf"\s*{WORKER}.*\n(?:\[PYTHON_EXCEPTION\] {WORKER}: )?Traceback \(most recent call last\):\n"
    r'(?:  File ".*", line \d+, in .*\n(?:    .*\n)*)+'
)
"""Frames are code. Events may be quoted in the first message, and so in all that follows it."""
WHILE_HANDLING = "\nDuring handling of the above exception, another exception occurred:\n"
JAVA_FULL = {"java.io.IOException": "getMessage", "java.nio.file.FileSystemException": "getReason"}
"""By class, which method says that the disk is full, and nothing else."""
LOST_TASK_FULL = re.compile(
    r"(?:\([\w.]+\) )?Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ "
    r"times?, most recent failure: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\n]*\): "
    rf"java\.io\.IOException: {re.escape(FULL)}\n"
)
FRAMES = r"\n(?:\tat .*\n)*"
WRITE_FULL = re.compile(
    rf"org\.apache\.spark\.SparkException{FRAMES}(?:Caused by: org\.apache\.parquet\.util\."
    rf"AutoCloseables\$ParquetCloseResourceException: Unable to close resource{FRAMES})?Caused by: "
    rf"(?:org\.apache\.hadoop\.fs\.FSError: )?java\.io\.IOException: {re.escape(FULL)}\n"
)
"""Down to the full disk, nothing quotes a value. In what a CSV file fails with, something does."""


@dataclass(frozen=True, slots=True)
class Met:
    kind: type[Exception]
    """One of those that were looked for."""
    name: str
    """Of its own class."""
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, slots=True)
class Marks:
    """Of one job: errors that matter leave the executor with a note behind their message. It is
    believed for its token, which nobody knows before, and which is of no use to the next job."""

    kinds: tuple[type[Exception], ...] = (*TROUBLES, LetterRefused)
    token: str = field(default_factory=lambda: token_hex(16), repr=False)

    def over(self, work: Callable[[Given], Iterable[Found]]) -> Callable[[Given], Iterator[Found]]:
        """The same work, to be done in an executor."""

        def marked(given: Given) -> Iterator[Found]:
            try:
                yield from work(given)
            except Exception as error:
                with suppress(Exception):  # what cannot be marked is raised all the same
                    self._mark(error)
                raise

        return marked

    def found(self, error: BaseException) -> Met | None:
        """In the driver: what the executor met."""
        kinds = {_full_name(kind): kind for kind in self.kinds}
        note = re.compile(rf"leasehold {self.token} (\S+) (\S+) ?(.*)$", re.MULTILINE)
        for each in _with_causes(error):
            if (said := note.search(str(each))) is not None:
                return Met(kinds[said[1]], said[2], said[3])
        return None

    def _mark(self, error: Exception) -> None:
        if (met := _met(error, self.kinds)) is not None:
            line = next(iter(met.message.splitlines()), "")
            error.add_note(f"leasehold {self.token} {_full_name(met.kind)} {met.name} {line}")


def trouble(error: Exception, marks: Marks) -> str | None:
    """What a job met that is no event's fault."""
    if isinstance(error, SinkUnavailable):  # it says so itself
        return None
    if (here := _met(error, TROUBLES)) is not None:
        return str(here)
    there = marks.found(error)
    if there is None:
        there = next(filter(None, map(_in_others_code, _with_causes(error))), None)
    if there is not None and there.kind in TROUBLES:
        return f"an executor met {there}"
    full = any(_java_met_full_disk(each) for each in _with_causes(error))
    return f"Java met a full disk: {FULL}" if full else None


def _met(error: BaseException, kinds: tuple[type[Exception], ...]) -> Met | None:
    """The error or what it was raised from: the first that is of these kinds."""
    for each in _with_causes(error):
        if isinstance(each, BaseExceptionGroup):
            parts = [_met(part, kinds) for part in each.exceptions]
            return parts[0] if all(parts) else None
        for kind in kinds:
            full = isinstance(each, OSError) and each.errno == errno.ENOSPC
            if isinstance(each, kind) and (kind is not OSError or full):
                return Met(kind, type(each).__name__, str(each))
    return None


def _in_others_code(error: BaseException) -> Met | None:
    """In a user's own function for Spark, that is: which leaves no mark."""
    if not isinstance(error, PythonException):
        return None
    text = str(error)
    if (frames := TO_FIRST_ERROR.match(text)) is None or WHILE_HANDLING in text:
        return None
    name, _, message = text[frames.end() :].partition("\n")[0].partition(": ")
    kinds = {_printed(each): (kind, each) for kind in NAMED for each in _with_subclasses(kind)}
    if name not in kinds:
        return None
    kind, own = kinds[name]
    return Met(kind, own.__name__, message)


def _java_met_full_disk(error: BaseException) -> bool:
    """By Java's own objects, where there are any."""
    if type(error).__module__ == "pyspark.errors.exceptions.connect":
        return _said_over_connect(error)
    java = getattr(error, "java_exception", getattr(error, "_origin", None))
    with suppress(Exception):
        for _ in range(CAUSES_MAX):
            if java is None:
                break
            method = JAVA_FULL.get(java.getClass().getName())
            if method is not None and getattr(java, method)() == FULL:
                return True
            java = java.getCause()
    return False


def _said_over_connect(error: Any) -> bool:
    """There is but text, and most of what has an error condition quotes values in it."""
    condition = error.getCondition()
    if condition is None:
        return LOST_TASK_FULL.match(str(error)) is not None
    trace = error.getStackTrace() or ""
    return condition == "TASK_WRITE_FAILED" and WRITE_FULL.match(trace) is not None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised ``from``."""
    each: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if each is None:
            return
        yield each
        each = each.__cause__


def _full_name(kind: type[Exception]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _printed(kind: type[Exception]) -> str:
    """As a traceback says it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)


def _with_subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)
