"""The connection to one blob container: its URL, its secret from the environment, its client.

Imported only for an azure-blob URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from leasehold.errors import BadInput, MissingExtra
from leasehold.settings import STORE_TIMEOUT_S

try:
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
    from azure.storage.blob import ContainerClient as BlockingClient
    from azure.storage.blob.aio import ContainerClient
except ImportError as error:
    raise MissingExtra(
        "Azure Blob Storage needs an extra: pip install 'leasehold[azure]'"
    ) from error

_EXAMPLE = "azure-blob://ACCOUNT/CONTAINER?api_version=2017-11-09&prefix=PATH&endpoint=URL"
SECRETS = "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"
_CONTAINER_NAME = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """What a store's URL says. Secrets are not among it."""

    account: str
    container: str
    endpoint: str = ""
    api_version: str = ""
    prefix: str = ""
    timeout_s: float = STORE_TIMEOUT_S
    more: Mapping[str, str] = field(default_factory=dict)
    """What only the caller knows the meaning of."""

    @classmethod
    def from_url(cls, url: str, *, more: Collection[str] = ()) -> AzureSettings:
        """``more``: what else the caller lets the URL say."""
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
                f"a store URL holds no credentials, since URLs end up in logs: set {SECRETS}"
            )
        known = {"api_version", "prefix", "endpoint", "timeout_s", *more}
        if given.keys() - known:
            raise BadInput(
                f"an azure-blob URL knows only {', '.join(sorted(known))} after the '?'; "
                f"credentials come from the environment: set {SECRETS}"
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
            timeout_s=seconds("timeout_s", given, STORE_TIMEOUT_S),
            more={name: given[name] for name in more if name in given},
        )


def open_client(
    settings: AzureSettings, environ: Mapping[str, str] = os.environ
) -> ContainerClient:
    """A client for the container, with the secret from the environment. Sends nothing yet."""
    key, sas, endpoint = _secrets(settings, environ)
    try:
        return ContainerClient(
            endpoint,
            settings.container,
            credential=AzureNamedKeyCredential(settings.account, key)
            if key
            else AzureSasCredential(sas),
            **_options(settings),
        )
    except ValueError:
        raise BadInput(f"the endpoint or the secret of {settings.account} is malformed") from None


def open_blocking(url: str) -> tuple[BlockingClient, str, float]:
    """A client for threads, without an event loop; the prefix; and the time limit of a request."""
    settings = AzureSettings.from_url(url)
    like = open_client(settings)
    client = BlockingClient.from_container_url(
        like.url, credential=like.credential, **_options(settings)
    )
    return client, settings.prefix, settings.timeout_s


def _options(settings: AzureSettings) -> dict[str, Any]:
    # One try per request: the host tries again at its next interval, long before the client's
    # own first pause of 15 s would be over, and knows better what is still worth trying.
    options: dict[str, Any] = {"retry_total": 0}
    if settings.api_version:
        # By header, since the client refuses to be configured for versions before 2019.
        options["headers"] = {"x-ms-version": settings.api_version}
    return options


def _secrets(settings: AzureSettings, environ: Mapping[str, str]) -> tuple[str, str, str]:
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
        raise BadInput(f"no secret for storage account {settings.account}: set {SECRETS}")
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


def seconds(name: str, given: Mapping[str, str], default: float) -> float:
    try:
        value = float(given.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} is a number of seconds above 0")
    return value
