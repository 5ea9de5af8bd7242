"""JSON that others wrote, read in one way by all who read it.

Readers that took one body differently would send an alert to one home and its alarm to another. So
all use this parser: the text is UTF-8; of two fields of one name the last counts, whatever the
first one was; ``NaN``, halves of surrogate pairs and numbers beyond all floats are no JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

UNREADABLE = (ValueError, RecursionError)
"""What reading raises if the text is no JSON, is no object, or is nested too deeply."""


def loads(text: bytes | str) -> Any:
    """Raises a ``ValueError`` that says what is wrong and where."""
    try:
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


class Fields:
    """Reads some fields of JSON objects. The others are checked for being JSON, but not made."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        places = [f"f{place}" for place in range(len(names))]
        row = msgspec.defstruct(
            "Row",
            [(place, Any, None) for place in places],
            rename=dict(zip(places, names, strict=True)),
            gc=False,  # what was JSON has no cycles
        )
        self.none = row()
        self.row = msgspec.json.Decoder(row).decode
        """One object, for callers with many: other fields may hold bytes that are no UTF-8."""
        self.columns = [attrgetter(place) for place in places]
        """Get the value of each name out of a row; None if it is missing."""

    def read(self, body: bytes) -> dict[str, Any]:
        row = self.row(body.decode())
        return {name: get(row) for name, get in zip(self.names, self.columns, strict=True)}


def is_field(name: str) -> bool:
    """Whether ``Fields`` can have a field of that name."""
    return all(each >= " " and each not in '"\\' for each in name)
