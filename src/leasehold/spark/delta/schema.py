"""Whether rows fit a Delta table, down to the fields within fields.

Delta itself takes files whatever is in them, and only readers find out that two do not go together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema

from leasehold.core import strict_json
from leasehold.errors import BadInput, SinkUnavailable

FIRST, END, WRITER = "first_sequence", "end_sequence", "leasehold_group"
OWN_COLUMNS = (
    pa.field(FIRST, pa.int64()),
    pa.field(END, pa.int64()),
    pa.field(WRITER, pa.string()),
)
"""What a row was computed from: a range of sequences, and the feed and group."""
RETENTION = "delta.setTransactionRetentionDuration"
NO_FOLDERS = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_decimal,
    pa.types.is_nested,
    pa.types.is_null,
)
"""Types whose values do not come out of the text that Delta makes of them: bytes are not all text,
and ``deltalake`` reads the decimal -0.0001 as 0.00-1."""


def with_own_columns(schema: pa.Schema, key: str, partition_by: Sequence[str]) -> pa.Schema:
    """The table's columns for rows like these."""
    if key not in schema.names:
        raise BadInput(
            f"the rows have no column {key!r}, which says what partition of the feed they "
            "are of: keep it, and group by it, too"
        )
    for field in OWN_COLUMNS:
        if field.name in schema.names:
            raise BadInput(f"column {field.name} is the sink's own: give yours another name")
        schema = schema.append(field)
    unknown = set(partition_by) - set(schema.names)
    if unknown:
        raise BadInput(f"partition_by names columns that are not there: {sorted(unknown)}")
    for name in partition_by:
        place, field = schema.get_field_index(name), schema.field(name)
        if any(is_one(field.type) for is_one in NO_FOLDERS):
            raise BadInput(
                f"partition_by: column {name} is of type {field.type}, whose values cannot name a "
                "folder of a Delta table: choose another column, or make text of it"
            )
        # Delta has no empty text there: it is the same as null.
        schema = schema.set(place, field.with_nullable(True))
    return schema


def require_fit(
    table: DeltaTable, schema: pa.Schema, url: str, partition_by: Sequence[str]
) -> None:
    there, here = _struct(table.schema()), _struct(Schema.from_arrow(schema))
    if differences := list(_differences(there, here, "")):
        raise SinkUnavailable(
            f"the table {url} has other columns than these rows: {', '.join(differences)}. "
            "Write to another table, or change one of them"
        )
    held = table.metadata().partition_columns
    if tuple(held) != tuple(partition_by):
        raise SinkUnavailable(
            f"the table {url} is partitioned by {held}, and not by {list(partition_by)}: give "
            "partition_by= as the table has it"
        )
    require_lasting_marks(table, url)


def require_lasting_marks(table: DeltaTable, url: str) -> None:
    """What the table knows of our progress must not expire: a replay would count twice."""
    if (kept := table.metadata().configuration.get(RETENTION)) is not None:
        raise SinkUnavailable(
            f"the table {url} forgets how far its writers are: it has {RETENTION} = {kept}. Unset "
            f"it, in SQL with ALTER TABLE … UNSET TBLPROPERTIES ('{RETENTION}')"
        )


def as_in_table(schema: pa.Schema, table: DeltaTable) -> pa.Schema:
    """With null where the table allows it, and only there."""
    nullable = {field.name: field.nullable for field in table.schema().fields}
    return pa.schema([field.with_nullable(nullable[field.name]) for field in schema])


def _struct(schema: Schema) -> Any:
    return strict_json.loads(schema.to_json())


def _differences(there: Any, here: Any, path: str) -> Iterator[str]:
    """Each place where the types differ, by the path of its column. A column may be null in the
    rows' type and not in the table's: that is seen by the values."""
    if _is(there, "struct") and _is(here, "struct"):
        yield from _of_structs(there, here, path)
    elif _is(there, "array") and _is(here, "array"):
        yield from _differences(there["elementType"], here["elementType"], f"{path}.element")
        yield from _nulls(there["containsNull"], here["containsNull"], f"{path}.element")
    elif _is(there, "map") and _is(here, "map"):
        for part in ("key", "value"):
            inner = f"{path}.{part}"
            yield from _differences(there[f"{part}Type"], here[f"{part}Type"], inner)
        yield from _nulls(there["valueContainsNull"], here["valueContainsNull"], f"{path}.value")
    elif there != here:
        yield f"{path} ({_text(there)} / {_text(here)})"


def _of_structs(there: Any, here: Any, path: str) -> Iterator[str]:
    ours, theirs = _fields(here), _fields(there)
    for name in sorted({*ours, *theirs}):
        inner = f"{path}.{name}" if path else name
        if name not in ours:
            yield f"{inner} ({_text(theirs[name]['type'])} / not in the rows)"
        elif name not in theirs:
            yield f"{inner} (not in the table / {_text(ours[name]['type'])})"
        else:
            yield from _differences(theirs[name]["type"], ours[name]["type"], inner)
            if path:
                yield from _nulls(theirs[name]["nullable"], ours[name]["nullable"], inner)


def _nulls(there: bool, here: bool, path: str) -> Iterator[str]:
    if here and not there:
        yield f"{path} (never null / may be null)"


def _fields(struct: Any) -> Mapping[str, Any]:
    return {field["name"]: field for field in struct["fields"]}


def _is(kind: Any, name: str) -> bool:
    return isinstance(kind, dict) and kind["type"] == name


def _text(kind: Any) -> str:
    """As SQL writes it."""
    if _is(kind, "struct"):
        inner = (f"{name}:{_text(field['type'])}" for name, field in _fields(kind).items())
        return f"struct<{','.join(inner)}>"
    if _is(kind, "array"):
        return f"array<{_text(kind['elementType'])}>"
    if _is(kind, "map"):
        return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
    return str(kind)
