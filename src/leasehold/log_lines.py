"""What is logged stays on its line: names and errors come from outside, and a line break or an
escape sequence in them would forge lines or steer a terminal."""

from __future__ import annotations

import logging
import traceback

LOGGERS = ("leasehold", "leasehold.spark")
"""A filter holds for its own logger only, not for those below it."""


def one_line(text: str) -> str:
    """With escapes for whatever is no printable character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class OneLine(logging.Filter):
    """Lines of a stack trace are set in, so that none of them looks like an entry."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            record.msg, record.args = one_line(record.getMessage()), ()
        except Exception:  # the formatter reports it
            return True
        if record.exc_info and record.exc_info[0] is not None:
            lines = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n").split("\n")
            record.exc_text = "\n".join(f"  | {one_line(line)}" for line in lines)
        return True


def escape_logs() -> None:
    """Of the library, whatever handlers its users have."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, OneLine) for each in logger.filters):
            logger.addFilter(OneLine())
