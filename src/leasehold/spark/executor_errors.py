"""Which of our errors a Spark job failed with.

Spark hands on what was raised in an executor as text: a traceback among Java's. All that is left of
an error's class is its name at the beginning of a line. That name is taken from the class itself,
so a class that moves is still found.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator


def raised_in_executor(
    error: BaseException, kinds: Iterable[type[Exception]]
) -> tuple[type[Exception], str] | None:
    """The class that was raised, one of these or of their subclasses, and the first line of its
    message. Of several, each raised from the one before, it is the last. None: it was another."""
    names = {_printed(kind): kind for each in kinds for kind in _with_subclasses(each)}
    line = re.compile(rf"^[\s|]*({'|'.join(map(re.escape, names))})(?:: (.*))?$", re.MULTILINE)
    found = line.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    return names[name], message


def disk_full(error: BaseException) -> str | None:
    """The line that says so, whether Python or Java met it; None: it was something else."""
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if os.strerror(errno.ENOSPC) in line), None)


def _printed(kind: type[Exception]) -> str:
    """As a traceback says it."""
    own = kind.__module__ == "builtins"
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _with_subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)
