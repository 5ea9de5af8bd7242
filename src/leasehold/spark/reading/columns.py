"""The columns that a user asks for, as Spark sees them.

A schema given by the user names further columns: those are decoded from the JSON body. So one rule
serves the data source and the processor: a known name is a column of the feed, ``_corrupt_record``
is the body of a row that did not decode, and everything else comes from the body.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from leasehold.core.strict_json import is_field
from leasehold.errors import BadInput

CORRUPT = "_corrupt_record"

BASIC = "string, int, bigint, double, boolean, timestamp, date"
KINDS = f"{BASIC}, float, smallint, tinyint, and arrays and structs of {BASIC}"


def decoded(schema: pa.Schema, own: pa.Schema) -> pa.Schema:
    """Which columns of a user's schema come from the body."""
    for field in schema:
        if not _nullable(field):
            raise BadInput(
                f"column {field.name} is not nullable, but a body that does not fit the schema "
                "leaves nulls: leave out NOT NULL"
            )
        if field.name in own.names:
            wanted = own.field(field.name).type
            if field.type != wanted:
                raise BadInput(
                    f"column {field.name} is {wanted}, not {field.type}: give it that type, or "
                    "another name if it is meant to come from the body"
                )
        elif field.name == CORRUPT:
            if field.type != pa.string():
                raise BadInput(f"column {CORRUPT} must be a string, not {field.type}")
        elif not is_field(field.name):
            raise BadInput(
                f"column {field.name!r} cannot be decoded: names have no quotes, backslashes and "
                "control characters; rename it"
            )
        elif not _known(field.type, top=True):
            raise BadInput(
                f"column {field.name} cannot be decoded to {field.type}; these can: {KINDS}"
            )
    return pa.schema([f for f in schema if f.name not in own.names and f.name != CORRUPT])


def _known(kind: Any, *, top: bool = False) -> bool:
    if pa.types.is_list(kind):
        return _known(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_known(kind.field(i).type) for i in range(kind.num_fields))
    if top and (pa.types.is_float32(kind) or pa.types.is_int8(kind) or pa.types.is_int16(kind)):
        return True
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_int32(kind)
        or pa.types.is_int64(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is not None)
    )


def _nullable(field: Any) -> bool:
    kind = field.type
    inner = [kind.field(i) for i in range(kind.num_fields)]
    return bool(field.nullable) and all(_nullable(each) for each in inner)
