"""Resource ids: the short names that Cosmos DB gives everything besides its own.

A database has 4 bytes, a collection 4 more with the highest bit set, a document 8 more whose last
byte begins with 0, and a range 8 more whose last byte begins with 5. Clients take them apart, so
they must be well formed. They are derived from what the container's file holds, and stay the same.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256

RANGE = 5 << 60


def text(rid: bytes) -> str:
    return b64encode(rid).decode().replace("/", "-")


def parsed(given: str) -> bytes | None:
    try:
        return b64decode(given.replace("-", "/"), validate=True)
    except ValueError:
        return None


def of_database(seed: str) -> bytes:
    return sha256(f"database {seed}".encode()).digest()[:4]


def of_collection(database: bytes, identity: str) -> bytes:
    own = sha256(f"collection {identity}".encode()).digest()[:4]
    return database + bytes([own[0] | 0x80]) + own[1:]


def of_document(collection: bytes, key: object, id: str) -> bytes:
    own = sha256(f"{type(key).__name__} {key} {id}".encode()).digest()[:8]
    return collection + own[:7] + bytes([own[7] & 0x0F])


def of_range(collection: bytes, number: int) -> bytes:
    return collection + (RANGE | number + 2).to_bytes(8, "little")
