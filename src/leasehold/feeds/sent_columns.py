"""What producers hand in, checked and as columns: the same for every feed that can be sent to."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.core import strict_json
from leasehold.core.event import Properties
from leasehold.errors import BadInput

CALL_BYTES_MAX = 1 << 30


def bodies_column(values: Any) -> pa.BinaryArray:
    return _without_nulls(_column(values, pa.binary(), "bodies"), "bodies")


def keys_column(values: Any) -> pa.StringArray:
    return _without_nulls(_column(values, pa.string(), "keys"), "keys")


def properties_column(values: Any) -> pa.StringArray:
    """JSON objects as text, or null. Only distinct texts are parsed: properties repeat a lot."""
    column = _column(values, pa.string(), "properties")
    for text in column.unique().to_pylist():
        try:
            properties = strict_json.loads(text) if text is not None else {}
        except ValueError as error:
            raise BadInput(f"the properties {text[:80]!r} are not JSON: {error}") from error
        if not isinstance(properties, dict):
            raise BadInput(f"the properties {text[:80]!r} are not a JSON object")
    return column


def require_same_length(bodies: Any, keys: Any, properties: Any) -> None:
    for what, column in (("keys", keys), ("properties", properties)):
        if column is not None and len(column) != len(bodies):
            raise BadInput(f"{what} has {len(column)} rows, bodies has {len(bodies)}")


def _column(values: Any, kind: pa.DataType, what: str) -> Any:
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray) and values.nbytes > CALL_BYTES_MAX:
            raise BadInput(
                f"{what} has {values.nbytes} bytes; send at most {CALL_BYTES_MAX} at once"
            )
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if not isinstance(values, pa.Array):
            values = pa.array(values, kind)
        return values if values.type == kind else values.cast(kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(f"{what} cannot be taken as a column of {kind}: {error}") from error


def _without_nulls(column: Any, what: str) -> Any:
    if column.null_count:
        missing = pc.index(column.is_null(), True).as_py()
        raise BadInput(f"{what} has no value at row {missing}")
    return column


def properties_text(properties: Properties) -> str | None:
    try:
        text = json.dumps(properties, allow_nan=False) if properties else None
        if text is not None and "\\ud" in text:
            strict_json.loads(text)  # half of a surrogate pair would be stored, and never read
    except (TypeError, ValueError) as error:
        raise BadInput(f"properties must be plain values under text names: {error}") from error
    return text
