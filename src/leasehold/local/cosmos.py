"""The connection to one Cosmos DB container: its URL, its secret from the environment, its client.

Imported only for a cosmos URL.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from leasehold.errors import BadInput, MissingExtra

try:
    from azure.core.pipeline.transport import RequestsTransport
    from azure.cosmos import ContainerProxy, CosmosClient, DatabaseProxy
    from requests import Session
    from requests.adapters import HTTPAdapter
except ImportError as error:
    raise MissingExtra("Azure Cosmos DB needs an extra: pip install 'leasehold[cosmos]'") from error

EXAMPLE = "cosmos://ACCOUNT.documents.azure.com/DATABASE/CONTAINER"
SECRETS = "AZURE_COSMOS_KEY, AZURE_COSMOS_KEY_FILE or AZURE_COSMOS_CONNECTION_STRING"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
TIMEOUT_S = 20.0
NOT_HERE_YET = 1002
"""The sub-status of a 404 that does not say that something is missing: who answers is behind."""
THROTTLED = "throttled"
"""Among the requests: those that were told to come later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CosmosSettings:
    """What a URL says. Secrets are not among it."""

    host: str
    """With its port, if that is not the usual one."""
    database: str
    container: str
    tls: bool = True
    more: Mapping[str, str] = field(default_factory=dict)
    """What only the caller knows the meaning of."""

    @classmethod
    def from_url(cls, url: str, *, more: Collection[str] = ()) -> CosmosSettings:
        # What might be a secret goes into no message.
        try:
            parts = urlsplit(url)
            given = dict(
                parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            )
            assert parts.port != 0
        except (ValueError, AssertionError):
            raise BadInput(f"cannot read this URL; it looks like {EXAMPLE}") from None
        if "@" in parts.netloc or parts.fragment:
            raise BadInput(f"a cosmos URL holds no credentials: set {SECRETS}")
        known = {"tls", *more}
        if given.keys() - known:
            raise BadInput(
                f"a cosmos URL knows only {', '.join(sorted(known))} after the '?'; credentials "
                f"come from the environment: set {SECRETS}"
            )
        names = [unquote(part) for part in parts.path.split("/")[1:]]
        if len(names) != 2 or not all(names):
            raise BadInput(f"a cosmos URL names a database and a container: {EXAMPLE}")
        host = parts.netloc.lower()
        if not re.fullmatch(r"([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d+)?", host):
            raise BadInput(f"a cosmos URL names the account's host: {EXAMPLE}")
        return cls(
            host=host,
            database=names[0],
            container=names[1],
            tls=_tls(given.get("tls"), host),
            more={name: given[name] for name in more if name in given},
        )

    def timeout_s(self, usual: float) -> float:
        """As the URL says it, where the caller knows of one; 0: it is no number."""
        try:
            return float(self.more.get("timeout_s", usual))
        except ValueError:
            return 0.0

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}/"

    @property
    def address(self) -> str:
        """As a URL again."""
        names = "/".join(quote(name, safe="") for name in (self.database, self.container))
        asked = dict(self.more)
        if self.tls != _default_tls(self.host):
            asked["tls"] = "on" if self.tls else "off"
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted(asked.items()))
        return f"cosmos://{self.host}/{names}" + (f"?{query}" if query else "")


class CosmosConnection:
    """A client that counts what it sends and what that costs. It connects when it is first used,
    and again in a process that was forked."""

    def __init__(
        self, settings: CosmosSettings, timeout_s: float = TIMEOUT_S, *, at_once: int = 10
    ) -> None:
        """``at_once``: for so many requests, connections are kept."""
        self.settings = settings
        self._timeout_s, self._at_once = timeout_s, at_once
        self.requests: Counter[str] = Counter()
        self.request_units: Counter[str] = Counter()
        """What Cosmos DB charged for them, by verb."""
        self._clients: dict[int, CosmosClient] = {}
        """By process: a forked one makes its own, and leaves its parent's alone."""
        self._credential = _credential(settings)

    @property
    def container(self) -> ContainerProxy:
        return self.database.get_container_client(self.settings.container)

    @property
    def database(self) -> DatabaseProxy:
        client = self._clients.get(os.getpid())
        if client is None:
            # The client heeds no ``timeout`` that it is made with, and by itself waits for minutes:
            # all threads of a store with it, long after the other side answers again. Whoever asked
            # tries again.
            made = CosmosClient(
                self.settings.endpoint,
                self._credential,
                connection_timeout=self._timeout_s,
                read_timeout=self._timeout_s,
                retry_connect=0,
                retry_read=0,
                retry_throttle_backoff_max=self._timeout_s,
                enable_endpoint_discovery=self.settings.tls,
                transport=self._transport(),
            )
            client = self._clients.setdefault(os.getpid(), made)
            if client is not made:  # another thread was faster
                made.close()
        return client.get_database_client(self.settings.database)

    def _transport(self) -> RequestsTransport:
        """The client's own keeps 10 connections and makes a new one, with its TLS handshake, for
        each request beyond."""
        session = Session()
        adapter = HTTPAdapter(pool_maxsize=self._at_once)
        for scheme in ("http://", "https://"):
            session.mount(scheme, adapter)
        return RequestsTransport(session=session)

    def counting(self, verb: str) -> Callable[[Any], None]:
        """A hook for each answer to a request of this verb, also to those that are sent again."""

        def count(response: Any) -> None:
            answer = response.http_response
            self.requests[verb] += 1
            if answer.status_code == 429:
                self.requests[THROTTLED] += 1
            charge = answer.headers.get("x-ms-request-charge", "0")
            self.request_units[verb] += float(charge or 0)  # type: ignore[assignment]

        return count

    def close(self) -> None:
        """To be called when nobody uses it."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def __repr__(self) -> str:
        return f"CosmosConnection({self.settings.address})"


def _credential(settings: CosmosSettings) -> Any:
    environ = os.environ
    said = dict(
        part.split("=", 1)
        for part in environ.get("AZURE_COSMOS_CONNECTION_STRING", "").split(";")
        if "=" in part
    )
    if settings.host not in said.get("AccountEndpoint", ""):
        said = {}
    if key := said.get("AccountKey") or environ.get("AZURE_COSMOS_KEY", "").strip():
        return key
    if file := environ.get("AZURE_COSMOS_KEY_FILE"):
        try:
            return Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"AZURE_COSMOS_KEY_FILE {file} cannot be read: {error}") from error
    if not settings.tls:
        raise BadInput(f"no key for {settings.host}: set {SECRETS}")
    try:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415  # only where no key is
    except ImportError:
        raise BadInput(
            f"no key for {settings.host}: set {SECRETS}, or install azure-identity"
        ) from None
    return DefaultAzureCredential()


def _default_tls(host: str) -> bool:
    name = re.sub(r":\d+$", "", host)
    return name not in LOOPBACK


def _tls(text: str | None, host: str) -> bool:
    if text is None:
        return _default_tls(host)
    if text not in ("on", "off"):
        raise BadInput(f"tls is on or off, not {text!r:.20}")
    if text == "off" and _default_tls(host):
        raise BadInput("tls=off is possible on this machine only: the key would go over the wire")
    return text == "on"
