"""Requests to one blob container: counted, bounded, with Azure's errors in our words.

The only file that imports Azure's packages; it is itself imported only for an azure-blob URL.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from leasehold.errors import BadInput, LeaseholdError, MissingExtra, StoreUnavailable
from leasehold.stores.azure_layout import STOCK_TTL_S, Blob

try:
    from azure.core import MatchConditions
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
    from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
    from azure.storage.blob.aio import ContainerClient
except ImportError as error:
    raise MissingExtra(
        "Azure Blob Storage needs an extra: pip install 'leasehold[azure]'"
    ) from error

T = TypeVar("T")

PAGE_BLOBS = 5000
_EXAMPLE = "azure-blob://ACCOUNT/CONTAINER?api_version=2017-11-09&prefix=PATH&endpoint=URL"
_SECRETS = "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"
_CONTAINER_NAME = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_MISSING, _CHANGED, _EXISTS = 404, 412, 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a store's URL says. Secrets are not among it."""

    account: str
    container: str
    endpoint: str = ""
    api_version: str = ""
    prefix: str = ""
    foreign_ttl_s: float = STOCK_TTL_S
    timeout_s: float = 5.0

    @classmethod
    def from_url(cls, url: str) -> Settings:
        # What might be a secret goes into no message, and neither does an error that quotes it.
        try:
            parts = urlsplit(url)
            fields = parse_qsl(
                parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
            )
        except ValueError:
            raise BadInput(f"cannot read this store URL; it looks like {_EXAMPLE}") from None
        given = dict(fields)
        if "@" in parts.netloc or parts.fragment:
            raise BadInput(
                f"a store URL holds no credentials, since URLs end up in logs: set {_SECRETS}"
            )
        known = {"api_version", "prefix", "endpoint", "foreign_ttl_s", "timeout_s"}
        if given.keys() - known:
            raise BadInput(
                f"an azure-blob URL knows only {', '.join(sorted(known))} after the '?'; "
                f"credentials come from the environment: set {_SECRETS}"
            )
        container = parts.path.strip("/")
        if not re.fullmatch(r"[a-z0-9-]+", parts.netloc):
            raise BadInput(f"an azure-blob URL names the storage account: {_EXAMPLE}")
        if not _CONTAINER_NAME.fullmatch(container):
            raise BadInput(
                f"{container!r} cannot be a container: 3 to 63 of a-z, 0-9 and single hyphens"
            )
        return cls(
            account=parts.netloc,
            container=container,
            endpoint=_endpoint(given.get("endpoint", "")),
            api_version=_api_version(given.get("api_version", "")),
            prefix=given.get("prefix", ""),
            foreign_ttl_s=_seconds("foreign_ttl_s", given, STOCK_TTL_S),
            timeout_s=_seconds("timeout_s", given, 5.0),
        )


def open_client(settings: Settings, environ: Mapping[str, str] = os.environ) -> ContainerClient:
    """A client for the container, with the secret from the environment. Sends nothing yet."""
    key, sas, endpoint = _secrets(settings, environ)
    # One try per request: the host tries again at its next interval, long before the client's
    # own first pause of 15 s would be over, and knows better what is still worth trying.
    options: dict[str, Any] = {"retry_total": 0}
    if settings.api_version:
        # By header, since the client refuses to be configured for versions before 2019.
        options["headers"] = {"x-ms-version": settings.api_version}
    try:
        return ContainerClient(
            endpoint,
            settings.container,
            credential=AzureNamedKeyCredential(settings.account, key)
            if key
            else AzureSasCredential(sas),
            **options,
        )
    except ValueError:
        raise BadInput(f"the endpoint or the secret of {settings.account} is malformed") from None


class Container:
    def __init__(self, client: ContainerClient, *, timeout_s: float, concurrency: int) -> None:
        self.requests: Counter[str] = Counter()
        self.seen: dict[str, Blob] = {}
        """Each blob as last answered. It may have changed since; its ETag tells."""
        self._client = client
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(concurrency)

    async def look(self, verb: str, name: str) -> Blob | None:
        blob = self._client.get_blob_client(name)
        try:
            found, date_s = await self._send(verb, blob.get_blob_properties)
        except _Refused as refusal:
            refusal.expect(_MISSING)
            self.seen.pop(name, None)
            return None
        return self._keep(_blob(name, found.metadata, found, date_s))

    async def make(
        self, verb: str, name: str, metadata: dict[str, str], *, over: bool = False
    ) -> Blob | None:
        """Put a blob where none is (or ``over`` what is). None: there is one."""
        blob = self._client.get_blob_client(name)
        put = partial(blob.upload_blob, b"", overwrite=over, metadata=metadata)
        while True:
            try:
                answer, date_s = await self._send(verb, put)
            except _Refused as refusal:
                if refusal.code == "ContainerNotFound":
                    await self._make_container(verb)
                    continue
                refusal.expect(_EXISTS, _CHANGED)
                return None
            return self._keep(_blob(name, metadata, answer, date_s))

    async def change(
        self, verb: str, name: str, metadata: dict[str, str], etag: str
    ) -> Blob | None:
        """Rewrite a blob's metadata if it is still the one of that ETag. None: it is not."""
        blob = self._client.get_blob_client(name)
        try:
            answer, date_s = await self._send(
                verb, partial(blob.set_blob_metadata, metadata, **_if_match(etag))
            )
        except _Refused as refusal:
            refusal.expect(_MISSING, _CHANGED)
            return None
        return self._keep(_blob(name, metadata, answer, date_s))

    async def remove(self, verb: str, name: str, etag: str | None = None) -> bool:
        """True: the blob is gone. With an ETag, only the blob of that one goes."""
        blob = self._client.get_blob_client(name)
        condition = _if_match(etag) if etag is not None else {}
        try:
            await self._send(verb, partial(blob.delete_blob, **condition))
        except _Refused as refusal:
            refusal.expect(_MISSING, _CHANGED)
            if refusal.status == _CHANGED:
                return False
        self.seen.pop(name, None)
        return True

    async def list_under(self, verb: str, prefix: str) -> tuple[list[Blob], float]:
        """All blobs under a prefix, and the store's time: one request per 5,000."""
        blobs: list[Blob] = []
        token: str | None = None

        async def page(**options: Any) -> tuple[list[Any], str | None]:
            pages: Any = self._client.list_blobs(
                prefix, include=["metadata"], results_per_page=PAGE_BLOBS, **options
            ).by_page(token)
            items = [item async for item in await anext(pages)]
            return items, pages.continuation_token

        while True:
            try:
                (items, token), date_s = await self._send(verb, page)
            except _Refused as refusal:
                if refusal.code != "ContainerNotFound":
                    refusal.expect()
                return [], refusal.date_s
            blobs += [_blob(item.name, item.metadata, item, date_s) for item in items]
            if not token:
                return blobs, date_s

    async def close(self) -> None:
        await self._client.close()

    def remember(self, blobs: Iterable[Blob]) -> None:
        """Keep what a listing said, unless an answer since then said something newer."""
        for blob in blobs:
            known = self.seen.get(blob.name)
            if known is None or blob.modified_s > known.modified_s:
                self.seen[blob.name] = blob

    async def _make_container(self, verb: str) -> None:
        try:
            await self._send(verb, self._client.create_container)
        except _Refused as refusal:
            if refusal.code != "ContainerAlreadyExists":
                refusal.expect()

    def _keep(self, blob: Blob) -> Blob:
        self.seen[blob.name] = blob
        return blob

    async def _send(self, verb: str, request: Callable[..., Awaitable[T]]) -> tuple[T, float]:
        """The answer and its ``Date``: the only clock by which anything here grows old."""
        dates = [0.0]

        def note(answer: Any) -> None:
            said = answer.http_response.headers.get("Date")
            dates.append(parsedate_to_datetime(said).timestamp() if said else 0.0)

        async with self._slots:
            self.requests[verb] += 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await request(raw_response_hook=note), dates[-1]
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"{self._where()}: no answer to {verb} within {self._timeout_s:g} s; try "
                    "again later, or with a larger timeout_s"
                ) from error
            except HttpResponseError as error:
                raise _Refused(self._where(), verb, error, dates[-1]) from error
            except AzureError as error:
                raise StoreUnavailable(
                    f"{self._where()} cannot be reached for {verb} ({type(error).__name__}): check "
                    "the account name, the endpoint and the network"
                ) from error

    def _where(self) -> str:
        client = self._client
        return f"storage account {client.account_name}, container {client.container_name}"


class _Refused(Exception):
    """An answer that is no success. The caller knows which ones it expects."""

    def __init__(self, where: str, verb: str, error: HttpResponseError, date_s: float) -> None:
        super().__init__(where, verb)
        # A key that cannot even sign a request has no status.
        unsigned = isinstance(error, ClientAuthenticationError)
        self.status = int(error.status_code or (401 if unsigned else 0))
        code = getattr(error, "error_code", None)
        self.code = str(getattr(code, "value", code) or "")
        self.date_s = date_s
        self._said = f"{where} answered {verb} with {self.status} {self.code}".rstrip()

    def expect(self, *statuses: int) -> None:
        """Raise for any other status, and where the account itself is what is missing."""
        if self.status in statuses and self.code != "ResourceNotFound":
            return
        raise self._meaning() from self.__cause__

    def _meaning(self) -> LeaseholdError:
        if self.status in (401, 403):
            return BadInput(
                f"{self._said}: check the secret in the environment ({_SECRETS}), what it permits, "
                "and this machine's clock, which Azure lets differ by 15 minutes"
            )
        passing = self.status in (408, 429) or not 400 <= self.status < 500
        if passing or self.code == "ContainerBeingDeleted":
            return StoreUnavailable(f"{self._said}: it is busy or in trouble; try again later")
        return BadInput(
            f"{self._said}: check the account, the container, the names in use and api_version"
        )


def _blob(name: str, metadata: Mapping[str, str | None] | None, answer: Any, date_s: float) -> Blob:
    return Blob(
        name=name,
        etag=str(answer["etag"]).strip('"'),
        metadata={key.lower(): value or "" for key, value in (metadata or {}).items()},
        modified_s=answer["last_modified"].timestamp(),
        date_s=date_s,
    )


def _if_match(etag: str) -> dict[str, Any]:
    return {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}


def _secrets(settings: Settings, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Account key or SAS token, and the endpoint."""
    said = dict(
        part.split("=", 1)
        for part in environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        if "=" in part
    )
    if said.get("AccountName", settings.account) != settings.account:
        said = {}
    key = said.get("AccountKey") or environ.get("AZURE_STORAGE_KEY", "")
    sas = said.get("SharedAccessSignature") or environ.get("AZURE_STORAGE_SAS_TOKEN", "")
    if not key and not sas:
        raise BadInput(f"no secret for storage account {settings.account}: set {_SECRETS}")
    suffix = said.get("EndpointSuffix", "core.windows.net")
    default = f"{said.get('DefaultEndpointsProtocol', 'https')}://{settings.account}.blob.{suffix}"
    return key, sas.lstrip("?"), settings.endpoint or said.get("BlobEndpoint") or default


def _endpoint(text: str) -> str:
    if text and not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9-]*)?", text):
        raise BadInput("endpoint is a plain http(s) address without credentials or a query")
    return text.rstrip("/")


def _api_version(text: str) -> str:
    if text and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        raise BadInput("api_version is a date, for example 2017-11-09")
    return text


def _seconds(name: str, given: Mapping[str, str], default: float) -> float:
    try:
        value = float(given.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} is a number of seconds above 0")
    return value
