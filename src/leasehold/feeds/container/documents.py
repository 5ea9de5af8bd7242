"""What a document must be, and what of it is stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Literal, NamedTuple

from leasehold.core import strict_json
from leasehold.errors import BadInput
from leasehold.feeds.effective_keys import BITS, UNDEFINED, KeyValue, as_double, effective_number
from leasehold.feeds.keys import partition_of

SYSTEM_FIELDS = ("_etag", "_ts", "_lsn")
ID_BYTES_MAX = 1023
KEY_BYTES_MAX = 2048
DEPTH_MAX = 128
KEY_SPACE = 1 << 32
"""Keys are spread over 0 up to, not including, this."""
Key = str | int
Hashing = Literal["fnv1a", "effective"]
HASHING: Hashing = "effective"
"""How new containers spread their keys: as Cosmos DB does, so that its clients can be served."""
StoredKey = str | int | float | bytes
"""SQLite has no values of their own for these."""
_BOOLS = {False: b"f", True: b"t"}
PATHS_MAX = 3
TTL_S_MAX = (1 << 31) - 1
"""As in Cosmos DB. Much more would be more microseconds than a file has numbers for."""
_QUOTED = re.compile(r"""/(?:"[^"]*[/,][^"]*"|'[^']*[/,][^']*')(?=[/,]|$)""")
"""A name with slashes or commas in a partition key's path. Others have no quotes."""

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def decode(text: str) -> dict[str, Any]:
    """A document as stored."""
    document: dict[str, Any] = strict_json.loads(text)
    return document


class Prepared(NamedTuple):
    """A document that may be stored as it is, once it has its system fields."""

    id: str
    key: StoredKey
    hash: int
    ttl_s: float | None
    fields: dict[str, Any]
    text: str
    """The fields as JSON, without the closing brace."""

    def with_system_fields(self, etag: str, ts: int, lsn: int) -> str:
        return f'{self.text},"_etag":"{etag}","_ts":{ts},"_lsn":{lsn}}}'


def hash_of(key: KeyValue, hashing: Hashing = HASHING) -> int:
    """Where a key is in the key space. Part of the format: changing it would lose documents.

    ``effective`` is the highest 32 bits that effective partition keys have; ``fnv1a`` is for files
    of format 2 and older, whose documents cannot move."""
    if hashing == "effective":
        return effective_number(key) >> BITS - 32
    return partition_of(str(key), KEY_SPACE)


def stored_key(value: KeyValue) -> StoredKey:
    """As a file holds it."""
    if isinstance(value, bool):
        return _BOOLS[value]
    if value is None:
        return b"n"
    if value is UNDEFINED:
        return b"u"
    if isinstance(value, tuple):
        plain = [{} if each is UNDEFINED else _plain_number(each) for each in value]
        return b"m" + _encode(plain).encode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return as_double(value)  # as which it is hashed, too: SQLite has no larger whole numbers
    return value


def _plain_number(value: Any) -> Any:
    """1 and 1.0 are the same key."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def key_text(stored: StoredKey) -> str | None:
    """As ``Change.partition_key`` shows it."""
    if isinstance(stored, bytes):
        many = stored[1:].decode() if stored[:1] == b"m" else None
        return {b"f": "false", b"t": "true"}.get(stored, many)
    return str(stored)


class DocumentRules:
    """What one container asks of its documents."""

    def __init__(
        self,
        key_path: str,
        document_bytes_max: int,
        ttl_s: float | None,
        hashing: Hashing = HASHING,
    ) -> None:
        self.hashing = hashing
        self.paths = parse_paths(key_path)
        self._path = self.paths[0]
        self._bytes_max = document_bytes_max
        self._ttl_s = None if ttl_s is None else min(ttl_s, TTL_S_MAX)

    def prepare(self, document: Any, *, any_key: bool = False) -> Prepared:
        """``any_key``: of any type that Cosmos DB takes, or none at all."""
        if not isinstance(document, (dict, Mapping)):
            raise BadInput(f"a document is a JSON object, not {_short(document)}")
        fields = {name: document[name] for name in document if name not in SYSTEM_FIELDS}
        name = require_id(fields.get("id"))
        if flaw := _flaw(fields, DEPTH_MAX):
            raise BadInput(f"document {name!r}: {flaw.lstrip('.')}")
        key = self.key_value(fields) if any_key else self._key_of(fields)
        try:
            text = _encode(fields)
            size = len(text.encode())
        except (TypeError, ValueError) as error:
            raise BadInput(f"document {name!r} cannot be written as JSON: {error}") from error
        if size > self._bytes_max:
            raise BadInput(
                f"document {name!r} takes {size} bytes; document_bytes_max is {self._bytes_max}"
            )
        hash = hash_of(key, self.hashing)
        return Prepared(name, stored_key(key), hash, self._ttl_of(fields), fields, text[:-1])

    def key_value(self, fields: Mapping[str, Any]) -> KeyValue:
        """A document's key, whatever it is; objects and arrays count as none."""
        values = tuple(_reached(fields, path) for path in self.paths)
        return values if len(values) > 1 else values[0]

    def patched(
        self, old: dict[str, Any], fields: Mapping[str, Any], remove: Iterable[str]
    ) -> Prepared:
        """The old document with some top-level fields set and others removed."""
        gone = set(remove)
        if fixed := gone & {"id", self._path[0]}:
            raise BadInput(
                f"field {min(fixed)!r} cannot be removed: it says which document this is"
            )
        kept = {name: value for name, value in old.items() if name not in gone}
        new = self.prepare(kept | dict(fields))
        if (new.id, new.key) != (old["id"], self._key_of(old)):
            raise BadInput(
                f"document {old['id']!r}: a patch cannot change its id or partition key; create "
                "another document, then delete this one"
            )
        return new

    def _key_of(self, fields: dict[str, Any]) -> Key:
        if len(self.paths) > 1:
            raise BadInput("a container with several partition keys is written by its endpoint")
        value: Any = fields
        for part in self._path:
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            raise BadInput(
                f"document {fields['id']!r} has no partition key: it lacks /{'/'.join(self._path)}"
            )
        return require_key(value)

    def _ttl_of(self, fields: Mapping[str, Any]) -> float | None:
        if self._ttl_s is None:
            return None
        ttl = fields.get("ttl", self._ttl_s)
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not is_ttl(ttl):
            raise BadInput(
                f"document {fields['id']!r}: ttl is {_short(ttl)}; give seconds, {TTL_S_MAX} at "
                "most, or -1 for never"
            )
        return None if ttl == -1 else float(ttl)


def is_ttl(seconds: float) -> bool:
    return 0 < seconds <= TTL_S_MAX or seconds == -1


def _reached(fields: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = fields
    for part in path:
        value = value.get(part, UNDEFINED) if isinstance(value, Mapping) else UNDEFINED
    return UNDEFINED if isinstance(value, dict | list | tuple) else value


def parse_paths(text: str) -> tuple[tuple[str, ...], ...]:
    """Several, for a hierarchical key, have commas between them."""
    paths = tuple(map(parse_path, split_paths(text))) if isinstance(text, str) else ()
    if not 1 <= len(paths) <= PATHS_MAX or len(set(paths)) < len(paths):
        raise BadInput(f"partition key path {text!r}: 1 to {PATHS_MAX} different ones are possible")
    return paths


def split_paths(text: str) -> list[str]:
    """Not at a comma in a name, which is in quotes then."""
    quoted = _QUOTED.sub(lambda match: match[0].replace(",", "\0"), text)
    return [path.replace("\0", ",") for path in quoted.split(",")]


def join_path(parts: Iterable[str]) -> str:
    """A path of these names; one with slashes or commas is put in quotes."""
    written = ""
    for part in parts:
        quote = "" if not set(part) & set("/,") else "'" if '"' in part else '"'
        if "\0" in part or (quote and quote in part):
            raise BadInput(f"partition key path: the name {part!r:.80} cannot be written")
        written += f"/{quote}{part}{quote}"
    return written


def parse_path(path: str) -> tuple[str, ...]:
    parts: tuple[str, ...] = ()
    if isinstance(path, str) and path[:1] == "/":
        quoted = _QUOTED.sub(lambda match: "/" + match[0][2:-1].replace("/", "\0"), path)
        parts = tuple(part.replace("\0", "/") for part in quoted.split("/")[1:])
    if not parts or not all(parts):
        raise BadInput(f"partition key path {path!r}: write it like /home_id or /home/id")
    if parts[0] in SYSTEM_FIELDS:
        raise BadInput(f"partition key path {path!r}: {parts[0]} changes with every write")
    return parts


def require_id(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadInput(
            f"a document needs an id, which is text and not empty; this is {value!r:.80}"
        )
    if _size(value, "id") > ID_BYTES_MAX:
        raise BadInput(f"the id {value[:40]!r}… has more than {ID_BYTES_MAX} bytes")
    return value


def require_key(value: Any) -> Key:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadInput(f"a partition key is text or a whole number, not {_short(value)}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise BadInput(f"the partition key {value} is too large: a number has 64 bits at most")
    if isinstance(value, str) and _size(value, "partition key") > KEY_BYTES_MAX:
        raise BadInput(f"the partition key {value[:40]!r}… has more than {KEY_BYTES_MAX} bytes")
    return value


def _size(text: str, what: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise BadInput(f"the {what} {text[:40]!r} is not Unicode text: {error}") from error


def _flaw(value: Any, depth: int) -> str | None:
    """Where JSON has no form for a value, and why; ``json`` itself would bend some of them."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                return f" has a field that is named {name!r:.40}, which is not text"
            if type(item) not in _PLAIN and (flaw := _flaw_inside(item, depth)):
                return f".{name}{flaw}"
        return None
    if isinstance(value, list | tuple):
        for place, item in enumerate(value):
            if type(item) not in _PLAIN and (flaw := _flaw_inside(item, depth)):
                return f"[{place}]{flaw}"
        return None
    if isinstance(value, float):
        return None if isfinite(value) else f" is {value}, which JSON has no form for"
    if isinstance(value, str | int):
        return None
    return f" is {_short(value)}, which JSON has no form for"


def _flaw_inside(item: Any, depth: int) -> str | None:
    if depth:
        return _flaw(item, depth - 1)
    return (
        f" is nested more than {DEPTH_MAX} levels deep"
        if isinstance(item, _NESTS)
        else _flaw(item, 0)
    )


_PLAIN = frozenset((str, int, bool, type(None)))
_NESTS = (dict, list, tuple)


def _short(value: Any) -> str:
    return f"a {type(value).__name__} ({value!r:.40})"
