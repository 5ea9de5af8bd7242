"""A container's ranges as Cosmos DB shows them, and which of them a request is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from leasehold.core import strict_json
from leasehold.endpoints.cosmos import rids
from leasehold.endpoints.cosmos.account import Collection
from leasehold.endpoints.cosmos.refusals import RANGE_GONE, WRONG_KEY, Refusal
from leasehold.feeds.container import RangeProperties
from leasehold.feeds.container.documents import PATHS_MAX, stored_key
from leasehold.feeds.effective_keys import (
    BITS,
    HIGHEST,
    LOWEST,
    UNDEFINED,
    KeyValue,
    Scalar,
    bound_of,
    effective_key,
    effective_number,
    number_of,
)

SHIFT = BITS - 32
"""Ranges are cut at hashes, which are the highest 32 bits of effective keys."""
KEY = "x-ms-documentdb-partitionkey"
ASK_ALL = "x-ms-documentdb-query-enablecrosspartition"
"""Headers: which key a request is about; whether a query may be about all of them."""
LAST = "00"
"""Behind an effective key there is nothing before this."""


class Scope(NamedTuple):
    """Which documents a request is about."""

    low: str
    end: str
    """Effective keys from ``low`` up to, not including, ``end``."""
    range: str | None
    """The range that holds them all, if the request is about one."""
    key: KeyValue = None
    has_key: bool = False

    @property
    def hashes(self) -> tuple[int, int]:
        """The lowest and the highest that its documents may have."""
        low, end = number_of(self.low), number_of(self.end)
        return low >> SHIFT, (end - 1 if _is_aligned(self.end) else end) >> SHIFT

    def holds(self, key: KeyValue) -> bool:
        if self.has_key:
            return stored_key(key) == stored_key(self.key)
        if _is_aligned(self.low) and _is_aligned(self.end):
            return True  # the hashes have decided it
        return self.low <= effective_key(key) < self.end


def _is_aligned(bound: str) -> bool:
    return not number_of(bound) & (1 << SHIFT) - 1 and not bound[32:].strip("0")


def leaves(collection: Collection) -> list[RangeProperties]:
    return sorted((each for each in collection.container.ranges() if not each.split), key=_low)


def shown(collection: Collection) -> tuple[str, list[dict[str, Any]]]:
    """An etag that changes with the ranges, and the ranges that there are now."""
    known = {each.id: each for each in collection.container.ranges()}
    found = []
    for each in sorted(known.values(), key=_low):
        if each.split:
            continue
        rid = rids.text(rids.of_range(collection.rid, int(each.id)))
        found.append(
            {
                "_rid": rid,
                "id": each.id,
                "_etag": '"1"',
                "minInclusive": bound_of(each.low << SHIFT),
                "maxExclusive": bound_of(each.high + 1 << SHIFT),
                "ridPrefix": int(each.id),
                "_self": f"{collection.self_link}pkranges/{rid}/",
                "throughputFraction": 1,
                "status": "online",
                "parents": _ancestors(known, each),
                "_ts": 0,
                "lsn": each.next_lsn - 1,
            }
        )
    # Of this container only: clients keep etags, and would take another one's for their own.
    return f'"{collection.rid.hex()}-{len(known)}"', found


def range_for(collection: Collection, key: KeyValue) -> RangeProperties:
    place = effective_number(key) >> SHIFT
    return next(each for each in leaves(collection) if each.low <= place <= each.high)


def scope_of(collection: Collection, headers: Mapping[str, str]) -> Scope:
    low, end, range = LOWEST, HIGHEST, None
    values = _key_values(headers)
    if len(collection.key_paths) > 1 and headers.get(KEY, "").replace(" ", "") == "[]":
        values = None  # the beginning of a hierarchical key, with nothing in it
    if values is not None and len(values) == len(collection.key_paths):
        return scope_of_values(collection, values)
    if (wanted := headers.get("x-ms-documentdb-partitionkeyrangeid")) is not None:
        leaf = _leaf(collection, wanted.rpartition(",")[2])
        range, low, end = leaf.id, bound_of(leaf.low << SHIFT), bound_of(leaf.high + 1 << SHIFT)
    if values:
        return scope_of_values(collection, values)
    first, last = headers.get("x-ms-start-epk"), headers.get("x-ms-end-epk")
    if first is not None or last is not None:
        low = max(low, _bound(first or LOWEST))
        end = min(end, _bound(HIGHEST if last is None else last))
        if range is None:
            range = _only(collection, low, end)
    return Scope(low, end, range)


def scope_of_values(collection: Collection, values: tuple[Scalar, ...]) -> Scope:
    """Of a key, or of the beginning of a hierarchical one."""
    if len(values) == len(collection.key_paths):
        key = _joined(values)
        place = effective_key(key)
        return Scope(place, place + LAST, range_for(collection, key).id, key, True)
    prefix = effective_key(values)
    return Scope(prefix, prefix + HIGHEST, range_for(collection, values).id)


def not_enabled() -> Refusal:
    return Refusal(
        400,
        f"Cross partition query is required but disabled. Please set {ASK_ALL} to true, or "
        f"specify {KEY}.",
    )


def key_of(collection: Collection, headers: Mapping[str, str]) -> tuple[KeyValue] | None:
    """The partition key of a request about one document; None: it has none."""
    values = _key_values(headers)
    return None if values is None else (whole_key(collection, values),)


def whole_key(collection: Collection, values: tuple[Scalar, ...]) -> KeyValue:
    if len(values) != len(collection.key_paths):
        raise Refusal(
            400,
            "Partition key provided either doesn't correspond to definition in the collection or "
            "doesn't match partition key field values specified in the document. It has "
            f"{len(values)} values; the paths are {', '.join(collection.key_paths)}.",
            substatus=WRONG_KEY,
        )
    return _joined(values)


def parsed_key(text: str) -> tuple[Scalar, ...]:
    try:
        values = strict_json.loads(text.encode("latin-1"))
    except ValueError as error:
        raise Refusal(400, f"The partition key {text!r:.80} is not JSON: {error}") from error
    if not isinstance(values, list) or len(values) > PATHS_MAX:
        raise Refusal(400, f"The partition key {text!r:.80} is not an array of few values.")
    return tuple(_value(each) for each in values) or (UNDEFINED,)


def _key_values(headers: Mapping[str, str]) -> tuple[Scalar, ...] | None:
    text = headers.get(KEY)
    return parsed_key(text) if text else None


def _joined(values: tuple[Scalar, ...]) -> KeyValue:
    return values if len(values) > 1 else values[0]


def _value(value: Any) -> Scalar:
    if value == {}:
        return UNDEFINED
    if isinstance(value, dict | list):
        raise Refusal(400, "A partition key is text, a number, true, false or null.")
    known: Scalar = value
    return known


def _bound(text: str) -> str:
    try:
        number_of(text)
    except ValueError as error:
        raise Refusal(400, f"x-ms-start-epk or x-ms-end-epk: {error}.") from error
    return text.upper()


def _leaf(collection: Collection, id: str) -> RangeProperties:
    found = next((each for each in leaves(collection) if each.id == id), None)
    if found is None:
        raise gone(id)
    return found


def gone(what: str) -> Refusal:
    return Refusal(
        410, f"The partition key range {what!r:.80} is gone: it was split.", substatus=RANGE_GONE
    )


def _only(collection: Collection, low: str, end: str) -> str:
    found = [
        each
        for each in leaves(collection)
        if bound_of(each.low << SHIFT) < end and low < bound_of(each.high + 1 << SHIFT)
    ]
    if len(found) != 1:
        raise gone(f"{low}-{end}")
    return found[0].id


def _ancestors(known: Mapping[str, RangeProperties], range: RangeProperties) -> list[str]:
    """The oldest first."""
    found: list[str] = []
    parent = range.parent
    while parent is not None:
        found.insert(0, parent)
        parent = known[parent].parent
    return found


def _low(range: RangeProperties) -> int:
    return range.low
