"""An endpoint for clients of Cosmos DB, in this process, and signed requests to it."""

from __future__ import annotations

import hmac
import http.client
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from leasehold.endpoints.cosmos import CosmosEndpoint, EndpointThread, keep_key
from leasehold.feeds.container import Container


@dataclass(frozen=True)
class Served:
    endpoint: CosmosEndpoint
    key: str

    @property
    def url(self) -> str:
        return self.endpoint.url

    def url_of(self, container: str) -> str:
        """Of a container of the database ``homes``, as the library is given it."""
        return f"cosmos://{self.url.removeprefix('http://').rstrip('/')}/homes/{container}"

    def container(self, database: str, name: str) -> Container:
        """The embedded container behind what clients see."""
        return self.endpoint.account.database(database).collection(name).container

    def signed(self, method: str, path: str, date: str | None = None) -> dict[str, str]:
        parts = [unquote(part) for part in path.split("/") if part]
        kind = "" if not parts else parts[-1] if len(parts) % 2 else parts[-2]
        link = "/".join(parts[: len(parts) // 2 * 2])
        when = date or formatdate(usegmt=True)
        text = f"{method.lower()}\n{kind}\n{link}\n{when.lower()}\n\n"
        signature = hmac.new(b64decode(self.key), text.encode(), sha256).digest()
        token = f"type=master&ver=1.0&sig={b64encode(signature).decode()}"
        return {"x-ms-date": when, "authorization": quote(token, safe="")}

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        signed: bool = True,
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers in lower case, and the body."""
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        own = self.signed(method, path) if signed else {}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, "/" + path, data, {**own, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
            known = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, known, json.loads(text) if text else None
        finally:
            connection.close()


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Served]:
    key = keep_key(folder / "master.key")
    made = CosmosEndpoint(folder=folder / "account", key=key, port=0, **settings)
    with EndpointThread(made) as endpoint:
        yield Served(endpoint, key)
