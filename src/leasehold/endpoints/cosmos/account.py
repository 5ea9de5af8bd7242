"""The account that the endpoint shows: databases and containers, each container a file.

Containers that were given by their files belong to the database that their namespace names. With a
folder, clients may create and delete more; each database is a folder in it.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from leasehold.core import strict_json
from leasehold.endpoints.cosmos import rids
from leasehold.endpoints.cosmos.refusals import NAME_NOT_FOUND, Refusal
from leasehold.endpoints.cosmos.settings import ContainerWish, default_properties
from leasehold.endpoints.cosmos.sql.computed import Computed, parse_computed
from leasehold.endpoints.cosmos.throughput import Throughput
from leasehold.errors import BadInput
from leasehold.feeds.container import Container
from leasehold.feeds.container.documents import DocumentRules, split_paths
from leasehold.feeds.container.transaction import AnyDocuments

DATABASES_MAX = 100
CONTAINERS_MAX = 500
ID_CHARS_MAX = 255
DEFAULT_UNITS = 400
"""Request units per second of a container that nobody gave any."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class Collection:
    """A container as clients know it."""

    def __init__(
        self, id: str, database: bytes, container: Container, about: dict[str, Any]
    ) -> None:
        settings = container.properties()
        if settings.hashing != "effective":
            raise BadInput(
                f"{container.path} was made by an older version and spreads its keys in a way "
                "that clients of Cosmos DB do not know. Create a new container and copy the "
                "documents: leasehold container changes OLD --json has them all"
            )
        self.id = id
        self.container = container
        self.documents = AnyDocuments(container)
        self.rid = rids.of_collection(database, settings.identity)
        self.rid_text = rids.text(self.rid)
        self.self_link = f"dbs/{rids.text(database)}/colls/{self.rid_text}/"
        self.key_path = settings.key_path
        self.key_paths = split_paths(settings.key_path)
        self.document_bytes_max = settings.document_bytes_max
        self.rules = DocumentRules(settings.key_path, settings.document_bytes_max, settings.ttl_s)
        self.has_versions = settings.versions_s != 0
        self.about = about
        """What clients may change: throughput and policies."""
        self._created_at = int(settings.created_at)
        self._ttl_s = settings.ttl_s

    def change_ttl(self, ttl_s: float | None) -> None:
        if ttl_s != self._ttl_s:
            self.container.change_ttl(ttl_s)
            self._ttl_s = ttl_s

    @property
    def throughput(self) -> Throughput | None:
        """None: it shares that of its database."""
        return Throughput.of_about({"throughput": DEFAULT_UNITS, **self.about})

    @property
    def computed(self) -> Computed:
        return parse_computed(self.about.get("properties", {}).get("computedProperties"))

    def properties(self) -> dict[str, Any]:
        ttl = {} if self._ttl_s is None else {"defaultTtl": int(self._ttl_s)}
        return {
            **default_properties(),
            **self.about.get("properties", {}),
            **ttl,
            "id": self.id,
            "partitionKey": {
                "paths": self.about.get("paths", self.key_paths),
                "kind": "Hash" if len(self.key_paths) == 1 else "MultiHash",
                "version": 2,
            },
            "_rid": self.rid_text,
            "_self": self.self_link,
            "_etag": f'"{self.about.get("version", 0):08x}"',
            "_ts": self._created_at,
            "_docs": "docs/",
            "_sprocs": "sprocs/",
            "_triggers": "triggers/",
            "_udfs": "udfs/",
            "_conflicts": "conflicts/",
        }


@dataclass
class Database:
    id: str
    rid: bytes
    folder: Path | None
    about: dict[str, Any]
    collections: dict[str, Collection] = field(default_factory=dict)

    @property
    def rid_text(self) -> str:
        return rids.text(self.rid)

    @property
    def self_link(self) -> str:
        return f"dbs/{self.rid_text}/"

    def properties(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "_rid": self.rid_text,
            "_self": self.self_link,
            "_etag": '"00000000"',
            "_colls": "colls/",
            "_users": "users/",
            "_ts": self.about["created_at"],
        }

    def collection(self, name: str) -> Collection:
        found = self.collections.get(name) or next(
            (each for each in list(self.collections.values()) if each.rid_text == name), None
        )
        if found is None:
            raise Refusal(404, f"There is no container {name!r:.300}.", substatus=NAME_NOT_FOUND)
        return found


class Account:
    def __init__(self, files: Sequence[Path] = (), folder: Path | None = None) -> None:
        self._folder = folder
        self.databases: dict[str, Database] = {}
        self.lock = threading.RLock()
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in sorted(folder.glob("*/database.json")):
                self._load(each.parent)
        for path in files:
            self._add_file(path)

    def database(self, name: str) -> Database:
        found = self.databases.get(name) or next(
            (each for each in list(self.databases.values()) if each.rid_text == name), None
        )
        if found is None:
            raise Refusal(404, f"There is no database {name!r:.300}.", substatus=NAME_NOT_FOUND)
        return found

    def collections(self) -> Iterator[tuple[Database, Collection]]:
        for database in list(self.databases.values()):  # others come and go meanwhile
            for collection in list(database.collections.values()):
                yield database, collection

    def create_database(self, body: Any, throughput: Throughput | None = None) -> Database:
        id = _require_id(body)
        with self.lock:
            root = self._require_folder("databases")
            if id in self.databases:
                raise Refusal(409, f"The database {id!r} exists already.")
            if len(self.databases) >= DATABASES_MAX:
                raise Refusal(400, f"This endpoint has {DATABASES_MAX} databases at most.")
            folder = root / _file_name(id)
            folder.mkdir(exist_ok=True)
            seed = secrets.token_hex(8)
            about = {"id": id, "seed": seed, "created_at": int(time.time())}
            about |= {} if throughput is None else throughput.about()
            _write(folder / "database.json", about)
            made = Database(id, rids.of_database(seed), folder, about)
            self.databases[id] = made
        return made

    def delete_database(self, database: Database) -> None:
        with self.lock:
            if database.folder is None:
                raise Refusal(403, "This database is a file that was given to be served.")
            if self.databases.get(database.id) is not database:
                raise Refusal(404, "The database was deleted meanwhile.")
            for each in database.collections.values():
                each.container.close()
            del self.databases[database.id]
            shutil.rmtree(database.folder)

    def create_collection(
        self, database: Database, body: Any, throughput: Throughput | None
    ) -> Collection:
        id = _require_id(body)
        wish = ContainerWish.parse(body, throughput)
        with self.lock:
            if id in database.collections:
                raise Refusal(409, f"The container {id!r} exists already.")
            self._require_folder("containers")
            if database.folder is None:
                raise Refusal(403, f"The database {database.id!r} is a file that is served alone.")
            if sum(1 for _ in self.collections()) >= CONTAINERS_MAX:
                raise Refusal(400, f"This endpoint has {CONTAINERS_MAX} containers at most.")
            path = database.folder / f"{_file_name(id)}.db"
            about = {
                "id": id,
                "properties": wish.properties,
                "paths": body["partitionKey"]["paths"],
            }
            if throughput is not None:
                about |= throughput.about()
            elif database.about.get("throughput") is not None:
                about["throughput"] = None  # it is the database's
            container = Container.create(
                path,
                name=_name(id),
                namespace=_name(database.id),
                partition_key=wish.key_path,
                ranges=wish.ranges,
                ttl_s=wish.ttl_s,
                versions_s=wish.versions_s,
            )
            _write(path.with_suffix(".json"), about)
            made = Collection(id, database.rid, container, about)
            database.collections[id] = made
        return made

    def change_collection(self, database: Database, collection: Collection, body: Any) -> None:
        if _require_id(body) != collection.id:
            raise Refusal(400, "A container cannot be renamed.")
        wish = ContainerWish.parse(body, None)
        if wish.key_path != collection.key_path:
            raise Refusal(400, "The partition key of a container cannot be changed.")
        with self.lock:
            self.keep(database, collection, {"properties": wish.properties})
            collection.change_ttl(wish.ttl_s)

    def keep(self, database: Database, collection: Collection, change: Mapping[str, Any]) -> None:
        """Change what clients may change of a container."""
        with self.lock:
            if database.folder is None:
                raise Refusal(403, "This container is a file that was given to be served.")
            version = collection.about.get("version", 0) + 1
            collection.about = {**collection.about, **change, "version": version}
            _write(collection.container.path.with_suffix(".json"), collection.about)

    def keep_database(self, database: Database, change: Mapping[str, Any]) -> None:
        with self.lock:
            if database.folder is None:
                raise Refusal(403, "This database is a file that was given to be served.")
            version = database.about.get("version", 0) + 1
            database.about = {**database.about, **change, "version": version}
            _write(database.folder / "database.json", database.about)

    def delete_collection(self, database: Database, collection: Collection) -> None:
        with self.lock:
            if database.folder is None:
                raise Refusal(403, "This container is a file that was given to be served.")
            if database.collections.get(collection.id) is not collection:
                raise Refusal(404, "The container was deleted meanwhile.")
            del database.collections[collection.id]
            collection.container.close()
            path = collection.container.path
            for suffix in (".json", ".db", ".db-wal", ".db-shm"):
                path.with_suffix(suffix).unlink(missing_ok=True)

    def close(self) -> None:
        for _, collection in self.collections():
            collection.container.close()

    def _add_file(self, path: Path) -> None:
        container = Container.open(path)
        id = container.namespace
        about = {"created_at": int(container.properties().created_at)}
        made = Database(id, rids.of_database(id), None, about)
        database = self.databases.setdefault(id, made)
        if container.name in database.collections:
            raise BadInput(f"{path}: there is a container {id}/{container.name} already")
        database.collections[container.name] = Collection(
            container.name, database.rid, container, {}
        )

    def _load(self, folder: Path) -> None:
        about = strict_json.loads((folder / "database.json").read_bytes())
        rid = rids.of_database(about["seed"])
        database = Database(about["id"], rid, folder, about)
        for path in sorted(folder.glob("*.db")):
            if not path.with_suffix(".json").exists():  # its creation was not finished
                path.unlink()
                continue
            known = strict_json.loads(path.with_suffix(".json").read_bytes())
            made = Collection(known["id"], rid, Container.open(path), known)
            database.collections[made.id] = made
        self.databases[database.id] = database

    def _require_folder(self, what: str) -> Path:
        if self._folder is None:
            raise Refusal(
                403,
                f"This endpoint serves files, so clients cannot create {what}: start it with "
                "--folder to let them.",
            )
        return self._folder


def _require_id(body: Any) -> str:
    id = body.get("id") if isinstance(body, dict) else None
    if not isinstance(id, str) or not id or len(id) > ID_CHARS_MAX or set(id) & set("/\\?#"):
        raise Refusal(
            400,
            "Ensure to provide a unique non-empty string less than '255' characters. "
            f"An id has none of / \\ ? #; not {id!r:.300}.",
        )
    if id != id.rstrip():
        raise Refusal(400, "An id does not end with a space.")
    return id


def _file_name(id: str) -> str:
    """Readable where it can be; never outside its folder."""
    return id if _PLAIN.fullmatch(id) else f"_{sha256(id.encode()).hexdigest()[:40]}"


def _name(id: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", id)
    return f"c-{plain}"[:200] if not plain[0].isalnum() or plain.endswith(".all") else plain[:200]


def _write(path: Path, value: Any) -> None:
    """The whole file or none of it."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(value))
    unfinished.replace(path)
