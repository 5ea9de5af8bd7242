"""For tests of the blob store: its wire, recorded or broken as wanted, and a few short verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob.aio import ContainerClient

from leasehold.core.model import Checkpoint, Group, Lease
from leasehold.ports import LeaseStore
from leasehold.stores.azure_blob import AzureBlobStore
from support.servers import Azurite


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    method: str
    path: str
    query: str
    if_match: str | None
    api_version: str
    status: int
    etag: str | None

    @property
    def wrote(self) -> bool:
        return self.method == "PUT" and self.status in (200, 201)


class Wire(AioHttpTransport):  # type: ignore[misc]
    """``fail(n)`` says of the n-th request: None, or "before" or "after" it reaches the store.
    ``meanwhile(n)`` runs before it is sent: what others do while this client is paused."""

    def __init__(self, fail: Callable[[int], str | None] = lambda n: None) -> None:
        super().__init__()
        self.fail = fail
        self.meanwhile: Callable[[int], Awaitable[None]] | None = None
        self.sent = 0
        self.exchanges: list[Exchange] = []
        self.in_flight = 0
        self.in_flight_max = 0

    async def send(self, request: Any, **config: Any) -> Any:
        nth = self.sent
        self.sent += 1
        if self.meanwhile is not None:
            await self.meanwhile(nth)
        fate = self.fail(nth)
        if fate == "before":
            raise ServiceResponseError("the request was lost")
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            response: Any = await super().send(request, **config)
        finally:
            self.in_flight -= 1
        url = urlsplit(request.url)
        self.exchanges.append(
            Exchange(
                method=request.method,
                path=unquote(url.path),
                query=url.query,
                if_match=_bare(request.headers.get("If-Match")),
                api_version=request.headers["x-ms-version"],
                status=response.status_code,
                etag=_bare(response.headers.get("ETag")),
            )
        )
        if fate == "after":
            raise ServiceResponseError("the answer was lost")
        return response


def client_on(azurite: Azurite, container: str, wire: Wire, **options: Any) -> ContainerClient:
    return ContainerClient(
        azurite.url,
        container,
        credential=AzureNamedKeyCredential(azurite.account, azurite.key),
        transport=wire,
        retry_total=0,
        **options,
    )


def store_on(azurite: Azurite, container: str, wire: Wire | None = None, **settings: Any) -> Any:
    return AzureBlobStore(lambda: client_on(azurite, container, wire or Wire()), **settings)


def at(sequence: int) -> Checkpoint:
    return Checkpoint(next_sequence=sequence, token=str(sequence * 100))


async def leases(store: LeaseStore, group: Group) -> dict[str, Lease]:
    return {lease.partition: lease for lease in (await store.snapshot(group)).leases}


async def take(store: LeaseStore, group: Group, partition: str, owner: str) -> Lease:
    (lease,) = await store.acquire([(await leases(store, group))[partition]], owner, 10.0)
    return lease


def _bare(etag: str | None) -> str | None:
    return etag.strip('"') if etag is not None else None
