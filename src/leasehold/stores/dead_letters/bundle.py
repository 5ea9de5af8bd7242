"""How dead letters are written as blobs. Pure: values in, values out.

A *bundle* is a blob with the letters of one put, named by the number of its first one. Its metadata
says of each letter what a filter asks for, so that a listing answers without content; its content
has one JSON line for each letter. A letter that was purged leaves a gap in both.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from leasehold.core import strict_json
from leasehold.core.model import Group
from leasehold.errors import BadInput, NewerVersion
from leasehold.local.blob import Blob
from leasehold.ports import DeadLetter, LetterFilter
from leasehold.stores.dead_letters.rows import letter_of

FORMAT = 1
FOLDER = "leasehold-dead-letters/"
LETTERS_MAX = 64
BYTES_MAX = 4_000_000
METADATA_BYTES_MAX = 8_000
ORIGINS_BYTES_MAX = 2_500
"""So that what is said of each letter has room beside them."""

Row = Mapping[str, Any]
"""A letter as it was put: see ``rows.row_of``."""


class Origin(NamedTuple):
    namespace: str
    feed: str
    group_name: str
    partition: str

    @property
    def group(self) -> Group:
        return Group(namespace=self.namespace, feed=self.feed, name=self.group_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What a listing says of one letter."""

    id: str
    origin: Origin
    dead_us: int
    redriven_us: int | None = None
    redrives: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    first: int
    """The number of its first letter."""
    slots: tuple[Slot | None, ...]
    """None: purged."""

    def letters(self) -> Iterator[tuple[int, Slot]]:
        """By number."""
        for place, slot in enumerate(self.slots):
            if slot is not None:
                yield self.first + place, slot

    @property
    def next_number(self) -> int:
        return self.first + len(self.slots)

    @property
    def empty(self) -> bool:
        return not any(self.slots)

    def fitting(self, which: LetterFilter, now_us: int) -> list[tuple[int, Slot]]:
        return [each for each in self.letters() if _fits(*each, which, now_us)]

    def put_again(self, ids: frozenset[str], now_us: int) -> Bundle:
        return self._edit(ids, lambda slot: replace(slot, dead_us=now_us, redriven_us=None))

    def redriven(self, ids: frozenset[str], now_us: int) -> Bundle:
        return self._edit(
            ids, lambda slot: replace(slot, redriven_us=now_us, redrives=slot.redrives + 1)
        )

    def without(self, ids: frozenset[str]) -> Bundle:
        return self._edit(ids, lambda slot: None)

    def _edit(self, ids: frozenset[str], edit: Callable[[Slot], Slot | None]) -> Bundle:
        slots = [edit(slot) if slot and slot.id in ids else slot for slot in self.slots]
        return replace(self, slots=tuple(slots))


def _fits(number: int, slot: Slot, which: LetterFilter, now_us: int) -> bool:
    origin, older_than_s = slot.origin, which.older_than_s
    return (
        which.namespace in (None, origin.namespace)
        and which.feed in (None, origin.feed)
        and which.group in (None, origin.group_name)
        and which.partition in (None, origin.partition)
        and (which.ids is None or slot.id in which.ids)
        and which.redriven in (None, slot.redriven_us is not None)
        and (older_than_s is None or now_us - slot.dead_us > older_than_s * 1e6)
        and (which.up_to is None or number <= which.up_to)
    )


def bundles_of(rows: Sequence[Row], first: int, now_us: int) -> Iterator[tuple[Bundle, bytes]]:
    """New bundles and their content, cut where one is full. Letters keep their order."""
    some: list[Row] = []
    size = origins = 0
    for row in rows:
        row_bytes = len(row["body"]) + len(row["properties"])
        origin_bytes = sum(map(len, map(json.dumps, _origin(row))))
        full = len(some) == LETTERS_MAX or origins + origin_bytes > ORIGINS_BYTES_MAX
        if some and (full or size + row_bytes > BYTES_MAX):
            yield _new_bundle(some, first, now_us), write_content(some)
            first += len(some)
            some, size, origins = [], 0, 0
        some.append(row)
        size += row_bytes
        origins += origin_bytes
    if some:
        yield _new_bundle(some, first, now_us), write_content(some)


def _new_bundle(rows: Sequence[Row], first: int, now_us: int) -> Bundle:
    slots = [Slot(id=row["id"], origin=_origin(row), dead_us=now_us) for row in rows]
    return Bundle(first=first, slots=tuple(slots))


def bundle_name(prefix: str, first: int) -> str:
    return f"{prefix}{FOLDER}{first:016d}"


def write_metadata(bundle: Bundle) -> dict[str, str]:
    origins = list(dict.fromkeys(slot.origin for _, slot in bundle.letters()))
    slots = [
        slot
        and [slot.id, origins.index(slot.origin), slot.dead_us, slot.redriven_us, slot.redrives]
        for slot in bundle.slots
    ]
    metadata = {
        "leasehold": str(FORMAT),
        "origins": json.dumps(origins, separators=(",", ":")),
        "letters": json.dumps(slots, separators=(",", ":")),
    }
    if sum(map(len, (*metadata, *metadata.values()))) > METADATA_BYTES_MAX:
        raise BadInput(
            f"the names of {origins[0].group} are too long for the metadata of a blob: use shorter "
            "ones, or another dead-letter store"
        )
    return metadata


def read_bundle(prefix: str, blob: Blob) -> Bundle:
    found = blob.metadata
    try:
        version = int(found.get("leasehold", ""))
        if version > FORMAT:
            raise NewerVersion(
                f"{blob.name} was written by a newer Leasehold: its format is {version}, this one "
                f"knows {FORMAT}. Upgrade with: pip install --upgrade leasehold"
            )
        origins = [Origin(*names) for names in strict_json.loads(found["origins"])]
        return Bundle(
            first=int(blob.name.removeprefix(prefix + FOLDER)),
            slots=tuple(
                each and _slot(each, origins) for each in strict_json.loads(found["letters"])
            ),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadInput(
            f"{blob.name} is no bundle of dead letters: remove it, or use another prefix"
        ) from error


def write_content(rows: Sequence[Row]) -> bytes:
    lines = [json.dumps({**row, "body": b64encode(row["body"]).decode()}) for row in rows]
    return "".join(f"{line}\n" for line in lines).encode()


def read_content(content: bytes) -> dict[str, Row]:
    """By id."""
    rows: dict[str, Row] = {}
    for line in content.decode().split("\n")[:-1]:
        row = strict_json.loads(line)
        rows[row["id"]] = {**row, "body": b64decode(row["body"])}
    return rows


def letter_in(row: Row, number: int, slot: Slot) -> DeadLetter:
    names = ("namespace", "feed", "group_name", "partition", "sequence", "token", "body")
    more = ("properties", "partition_key", "enqueued_us", "error", "attempts")
    stored = (number, slot.dead_us, slot.redriven_us, slot.redrives)
    return letter_of([*(row[name] for name in (*names, *more)), *stored])


def _slot(stored: Sequence[Any], origins: Sequence[Origin]) -> Slot:
    id, place, dead_us, redriven_us, redrives = stored
    return Slot(
        id=id,
        origin=origins[place],
        dead_us=dead_us,
        redriven_us=redriven_us,
        redrives=redrives,
    )


def _origin(row: Row) -> Origin:
    return Origin(*(row[name] for name in Origin._fields))
